"""Nodes that change from one kwok to another: the one lets go of them, and the other takes hold at once.

kwok tries to get a node's lease when it first sees the node. If somebody else holds it then, or if kwok has only
not heard yet that nobody does, it tries again after a quarter of the lease's duration; and one whose node goes
keeps the lease until that runs out. So nodes that move are nobody's at first. Their leases are removed while
nobody renews them, and when every kwok must have heard of it, the nodes are shown to the new one.

As it gets hold of a node it looks at the pods there, often before it has heard itself that the lease is its own,
and passes over them. They are shown to it again. A kwok that has only just started is shown all its pods anyway.
"""

import itertools
import secrets
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

import structlog

from kwokfleet import errors
from kwokfleet.kube import objects, observed, throttled_client
from kwokfleet.kwok import lease_client, node_leases, requeue
from kwokfleet.reconcile.changes import Change, ChangeAction
from kwokfleet.reconcile.diff import ABSENT

log = structlog.get_logger()

SHARD = ("metadata", "labels", objects.SHARD)
ROUNDS = 4
"""How often leases are removed: one that its holder was just renewing is another one than was read."""
LOOK_S, NUDGE_S, ARRIVED_S = 0.25, 2.0, 15.0
"""How often it is looked whether nodes have a driver again; after how long they are shown to it once more; when
it is left to itself, which takes a quarter of a lease's duration."""


def changes_shard(change: Change) -> bool:
    """Return whether a change takes a node from the kwok that drives it."""
    return change.action is ChangeAction.UPDATE and any(
        each.path == SHARD and each.live is not ABSENT for each in change.differences
    )


class ShardHandover:
    """Some nodes on their way from one kwok to another."""

    def __init__(
        self, sender: throttled_client.ThrottledClient, changes: Sequence[Change], inventory: observed.Inventory
    ) -> None:
        self._sender = sender
        self._nodes = {each.key.name: each for each in changes}
        self._shards = {each.key.name: _shard(each.manifest) for each in inventory.values() if each.key.kind == "Node"}
        self._driving: set[str] = set()
        """The shards whose kwok was at work before."""

    def leave(self) -> None:
        """Take the nodes from their kwoks."""
        throttled_client.send_all(
            self._sender, [requeue.unassign_request(name, self._shards[name]) for name in self._nodes]
        )
        try:
            self._release()
        except errors.ClusterError as error:  # they run out by themselves, if later
            log.warning("leases_not_released", error=str(error))
        self._sender.stop.wait(lease_client.WATCH_DELAY_S)

    def _release(self) -> None:
        """Remove the nodes' leases, and learn who else drives nodes."""
        for turn in range(ROUNDS):
            held = lease_client.held_leases(self._sender)
            if turn == 0:
                self._driving = self._at_work([each for each in held if each.node not in self._nodes])
            theirs = [each for each in held if each.node in self._nodes]
            if not theirs:
                return
            lease_client.release_leases(self._sender, theirs)

    def arrive(self, shown: AbstractSet[str]) -> None:
        """When nodes that are shown to a new kwok are held by it, let it look at the pods on them."""
        waiting = {name for name in shown & self._nodes.keys() if self._target(name) in self._driving}
        try:
            held = self._held(waiting)
            if held:
                lease_client.requeue_pods(self._sender, held, f"moved-{secrets.token_hex(4)}")
        except errors.ClusterError as error:
            log.warning("pods_not_shown_again", error=str(error))

    def _held(self, nodes: AbstractSet[str]) -> AbstractSet[str]:
        """Wait until somebody holds the leases of some nodes; return those of which that is so."""
        began, waiting = time.monotonic(), nodes
        looked, before = began, nodes
        while waiting and time.monotonic() < began + ARRIVED_S and not self._sender.stop.is_set():
            waiting = nodes - {each.node for each in lease_client.held_leases(self._sender)}
            self._sender.stop.wait(LOOK_S if waiting else lease_client.WATCH_DELAY_S)
            if waiting and time.monotonic() > looked + NUDGE_S:
                if waiting == before:  # none has come for a while
                    self._nudge(waiting)
                looked, before = time.monotonic(), waiting
        return nodes - waiting

    def _nudge(self, nodes: AbstractSet[str]) -> None:
        """Take nodes away from a kwok that has not got hold of them, and show them to it once more."""
        log.debug("nodes_shown_again", nodes=len(nodes))
        by_shard = itertools.groupby(sorted(nodes, key=self._target), key=self._target)
        for shard, names in by_shard:
            lease_client.requeue_nodes(self._sender, set(names), shard, self._sender.stop.wait)

    def _target(self, node: str) -> str:
        return _shard(self._nodes[node].desired)

    def _at_work(self, held: Sequence[node_leases.NodeLease]) -> set[str]:
        now = datetime.now(UTC)
        return {self._shards[each.node] for each in held if each.node in self._shards and each.is_fresh(now)} - {""}


def _shard(node: objects.Manifest | None) -> str:
    return objects.labels(node or {}).get(objects.SHARD, "")
