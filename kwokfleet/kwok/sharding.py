"""The sharding rule: how many kwok instances share the nodes, and which instance drives a node."""

import hashlib
from dataclasses import dataclass

from kwokfleet.api.kwok_controller import KwokControllerSpec


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One of several kwok instances that share the nodes."""

    index: int = 0
    count: int = 1
    labelled: bool = False
    """Whether a single shard selects nodes by label, too."""

    @property
    def name(self) -> str:
        """The value of the shard label."""
        return str(self.index)

    @property
    def drives_all(self) -> bool:
        """Whether the shard drives every node, with or without a shard label."""
        return self.count == 1 and not self.labelled


def shard_spec(spec: KwokControllerSpec, index: int) -> ShardSpec:
    """Return the shard with an index; pods of a StatefulSet always select nodes by label."""
    return ShardSpec(index, spec.shards, labelled=spec.stateful_set is not None)


def shard_index(node_name: str, count: int) -> int:
    """Return the shard of a node by rendezvous hashing: a new shard takes its nodes, no other node moves."""
    scores = [hashlib.blake2b(f"{index}/{node_name}".encode(), digest_size=8).digest() for index in range(count)]
    return max(range(count), key=scores.__getitem__)
