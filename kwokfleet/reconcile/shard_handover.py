"""Moves nodes from one kwok shard to another without waiting for leases to expire.

kwok acquires a node's lease when it first sees the node. If the lease is held, or its deletion has not reached kwok
yet, kwok retries after a quarter of the lease duration; a kwok that loses a node keeps the lease until it expires. So
the shard label is removed first, the leases are deleted while no kwok renews them, and the nodes get the new label once
every kwok has received the deletions.

The new kwok lists the pods of a node when it acquires the lease, often before its own cache shows the lease, and skips
them. These pods are requeued. A kwok that has just started lists all its pods anyway.
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
from kwokfleet.kwok import lease_client, requeue
from kwokfleet.reconcile.changes import Change, ChangeAction
from kwokfleet.reconcile.diff import ABSENT

log = structlog.get_logger()

SHARD = ("metadata", "labels", objects.SHARD)
ROUNDS = 4
"""Rounds of lease deletion: a lease renewed since it was read is not deleted."""
POLL_S, REQUEUE_AFTER_S, TIMEOUT_S = 0.25, 2.0, 15.0
"""Poll interval; time without progress until nodes are requeued; timeout, after which kwok's own retry takes over."""


def changes_shard(change: Change) -> bool:
    """Return whether a change moves a node to another shard."""
    return change.action is ChangeAction.UPDATE and any(
        difference.path == SHARD and difference.live is not ABSENT for difference in change.differences
    )


class ShardHandover:
    """Handover of nodes between shards."""

    def __init__(
        self, sender: throttled_client.ThrottledClient, changes: Sequence[Change], inventory: observed.Inventory
    ) -> None:
        self._sender = sender
        self._nodes = {change.key.name: change for change in changes}
        self._shards = {live.key.name: _shard(live.manifest) for live in inventory.values() if live.key.kind == "Node"}
        self._active: set[str] = set()
        """Shards whose kwok renewed leases before the handover."""

    def release(self) -> None:
        """Release the nodes from their shards."""
        throttled_client.send_all(
            self._sender, [requeue.unassign_request(name, self._shards[name]) for name in self._nodes]
        )
        try:
            self._delete_leases()
        except errors.ClusterError as error:  # the leases expire later
            log.warning("leases_not_released", error=str(error))
        self._sender.stop.wait(lease_client.WATCH_DELAY_S)

    def _delete_leases(self) -> None:
        """Delete the nodes' leases, and find the active shards."""
        for turn in range(ROUNDS):
            held = lease_client.held_leases(self._sender)
            if turn == 0:
                renewed = [
                    lease for lease in held if lease.node not in self._nodes and lease.is_fresh(datetime.now(UTC))
                ]
                self._active = {self._shards.get(lease.node, "") for lease in renewed} - {""}
            leases = [lease for lease in held if lease.node in self._nodes]
            if not leases:
                return
            lease_client.release_leases(self._sender, leases)

    def complete(self, shown: AbstractSet[str]) -> None:
        """Wait until the new kwok holds the nodes, and requeue their pods."""
        waiting = {name for name in shown & self._nodes.keys() if self._target(name) in self._active}
        try:
            held = self._held(waiting)
            if held:
                lease_client.requeue_pods(self._sender, held, f"moved-{secrets.token_hex(4)}")
        except errors.ClusterError as error:
            log.warning("pods_not_requeued", error=str(error))

    def _held(self, nodes: AbstractSet[str]) -> AbstractSet[str]:
        """Wait until the leases of *nodes* are held; return the nodes whose leases are."""
        began, waiting = time.monotonic(), nodes
        looked, before = began, nodes
        while waiting and time.monotonic() < began + TIMEOUT_S and not self._sender.stop.is_set():
            waiting = nodes - {lease.node for lease in lease_client.held_leases(self._sender)}
            self._sender.stop.wait(POLL_S if waiting else lease_client.WATCH_DELAY_S)
            if waiting and time.monotonic() > looked + REQUEUE_AFTER_S:
                if waiting == before:  # no progress
                    self._requeue_nodes(waiting)
                looked, before = time.monotonic(), waiting
        return nodes - waiting

    def _requeue_nodes(self, nodes: AbstractSet[str]) -> None:
        """Remove and restore the shard label of nodes whose lease is not held."""
        log.debug("nodes_requeued", nodes=len(nodes))
        for shard, names in itertools.groupby(sorted(nodes, key=self._target), key=self._target):
            lease_client.requeue_nodes(self._sender, set(names), shard, self._sender.stop.wait)

    def _target(self, node: str) -> str:
        return _shard(self._nodes[node].desired)


def _shard(node: objects.Manifest | None) -> str:
    return objects.labels(node or {}).get(objects.SHARD, "")
