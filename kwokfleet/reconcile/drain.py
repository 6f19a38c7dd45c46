"""Drains nodes: cordon, evict the pods, delete the node.

A whole pool without pods is deleted by one request, which names the resourceVersion of the checked list: a node
labelled later is not in it. Other nodes are drained within their pool's timeout and deleted one by one. A node that is
not empty in time stays cordoned, with the reason.
"""

import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from kwokfleet.api.node_pool import Drain
from kwokfleet.kube import objects, observed, rejections, requests
from kwokfleet.kube.informer import informer
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import patches
from kwokfleet.reconcile.changes import Change
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy

if TYPE_CHECKING:
    from kwokfleet.reconcile import applier

LISTING_S = 60.0
RETRY_S = 0.5
"""Interval between evictions of a pod that a PodDisruptionBudget protects."""
FEW = 8
"""Pools up to this size are deleted node by node."""
WHOLE_POOL_S = 600.0


class NodeDrainer:
    """Drains and deletes nodes."""

    def __init__(
        self, applier: "applier.Applier", policies: Mapping[str, FleetPolicy], inventory: observed.Inventory
    ) -> None:
        self._applier, self._sender = applier, applier.sender
        self._policies, self._inventory = policies, inventory

    def remove(self, changes: Sequence[Change]) -> list[Outcome]:
        """Delete nodes, pool by pool."""
        pools: dict[tuple[str, str], list[Change]] = {}
        for change in changes:
            pools.setdefault((change.fleet, change.pool), []).append(change)
        names = [change.key.name for change in changes]
        fields = ",".join(f"spec.nodeName={name}" for name in names) if len(names) == 1 else "spec.nodeName!="
        with informer.Informer(self._sender.api, (requests.POD,), "", fields) as pods:
            view = pods.wait_until_synced(LISTING_S)
            if view.unknown:
                why = f"cannot list its pods: {view.unknown['Pod']}"
                return [Outcome(change, ChangeResult.REFUSED, why) for change in changes]
            return [outcome for name, pool_changes in pools.items() for outcome in self._pool(name, pool_changes, pods)]

    def _pool(self, name: tuple[str, str], changes: list[Change], pods: informer.Informer) -> list[Outcome]:
        busy = {observed.node_name(pod) for pod in pods.view().objects.values() if not observed.is_finished(pod)}
        is_idle = not any(change.key.name in busy for change in changes)
        if is_idle and not self._applier.dry_run and self._is_whole(name, changes):
            outcomes = self._collection(name, changes)
        else:
            outcomes = self._one_by_one(changes, pods, self._policy(name))
        if self._policy(name).policy != "none" and not self._applier.dry_run:
            self._sweep({outcome.change.key.name for outcome in outcomes if outcome.is_applied}, pods)
        return outcomes

    def _policy(self, name: tuple[str, str]) -> Drain:
        fleet = self._policies.get(name[0])
        pool = fleet.pools.get(name[1]) if fleet else None
        return pool.drain if pool else Drain()

    # a whole pool at once

    def _is_whole(self, name: tuple[str, str], changes: Sequence[Change]) -> bool:
        """Return whether these are all nodes with the labels of a pool, and all are fake."""
        nodes = (live for live in self._inventory.values() if live.key.kind == "Node")
        members = [node for node in nodes if (node.fleet, node.pool) == name]
        keys = {change.key for change in changes}
        is_planned = all(node.key in keys and objects.is_managed(node.manifest) for node in members)
        return all(name) and len(members) > FEW and is_planned and len(members) == len(changes)

    def _collection(self, name: tuple[str, str], changes: Sequence[Change]) -> list[Outcome]:
        """Delete a pool by its labels, at the version of its list, until none of its nodes is left."""
        deadline = time.monotonic() + WHOLE_POOL_S
        expected = {change.key.name: change.live.uid for change in changes if change.live}
        title = f"nodes of pool {name[1]} deleted"
        while True:
            listed = self._listed(name)
            if listed is None or not all(expected.get(node) == uid for node, uid in listed[1].items()):
                break  # not the planned nodes: check each one
            self._applier.watch(title, len(expected) - len(listed[1]), len(expected))
            if not listed[1]:
                return [Outcome(change, ChangeResult.DONE) for change in changes]
            response = self._sender.send(requests.delete_pool(*name, listed[0]))
            if response.status not in (HTTPStatus.OK, HTTPStatus.GATEWAY_TIMEOUT) or time.monotonic() > deadline:
                break
        return self._applier.run_all(title, changes, self._applier.delete)

    def _listed(self, name: tuple[str, str]) -> tuple[int, dict[str, str]] | None:
        """Return the resourceVersion of a pool's list, and the UIDs of its nodes; None if one is not fake."""
        selector = f"{requests.MANAGED_SELECTOR},{objects.FLEET}={name[0]},{objects.POOL}={name[1]}"
        uids: dict[str, str] = {}
        token, version = "", 0
        while True:
            response = self._sender.send(requests.list_page(requests.NODE, selector, token, metadata_only=True))
            if response.status != HTTPStatus.OK:
                return None
            page = response.json()
            for item in page.get("items") or ():
                if not objects.is_fake_node(item):
                    return None
                uids[item["metadata"]["name"]] = item["metadata"]["uid"]
            version = int(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue") or ""
            if not token:
                return version, uids

    # node by node

    def _one_by_one(self, changes: Sequence[Change], pods: informer.Informer, policy: Drain) -> list[Outcome]:
        cordoned = self._applier.run_all("nodes cordoned", changes, self._cordon)
        remaining = {outcome.change.key: outcome for outcome in cordoned if not outcome.is_applied}
        cordoned_changes = [change for change in changes if change.key not in remaining]
        if policy.policy != "none" and not self._applier.dry_run:
            reasons = self._emptied({change.key.name for change in cordoned_changes}, pods, policy)
            for change in cordoned_changes:
                if change.key.name in reasons:
                    remaining[change.key] = Outcome(change, ChangeResult.DEADLINE, reasons[change.key.name])
        leaving = [change for change in cordoned_changes if change.key not in remaining]
        deleted = self._applier.run_all("nodes deleted", leaving, self._applier.delete)
        return [*remaining.values(), *deleted]

    def _cordon(self, change: Change) -> Outcome:
        live = change.live
        if live is None or not objects.is_managed(live.manifest):
            return Outcome(change, ChangeResult.CONFLICT, "the node is not managed by kwokfleet")
        if live.manifest["spec"].get("unschedulable"):
            return Outcome(change, ChangeResult.ALREADY)
        response = self._sender.send(requests.patch(change.key, patches.cordon(live), dry_run=self._applier.dry_run))
        if response.status == HTTPStatus.OK:
            return Outcome(change, ChangeResult.DONE)
        if response.status == HTTPStatus.NOT_FOUND:
            return Outcome(change, ChangeResult.ALREADY)
        if "metadata.uid" in response.message:
            return Outcome(change, ChangeResult.AGAIN, "the node was recreated meanwhile")
        return Outcome(change, ChangeResult.REFUSED, f"{response.status} {response.message}")

    def _emptied(self, nodes: set[str], pods: informer.Informer, policy: Drain) -> dict[str, str]:
        """Evict or delete all pods of *nodes*; return the nodes that are not empty in time, with the reason."""
        deadline = time.monotonic() + policy.timeout.total_seconds()
        reasons: dict[str, str] = {}
        requested: set[str] = set()
        while True:
            remaining = [pod for pod in pods.view().objects.values() if _must_go(pod, nodes)]
            self._applier.watch("pods evicted", len(requested) - len(remaining), max(len(requested), len(remaining)))
            if not remaining or time.monotonic() >= deadline or self._sender.stop.is_set():
                why = "pod {} has not terminated; check that kwok is running"
                return {observed.node_name(pod): reasons.get(pod.uid) or why.format(_name(pod)) for pod in remaining}
            for pod in remaining:
                if not pod.deleting and (pod.uid not in requested or pod.uid in reasons):
                    requested.add(pod.uid)
                    self._ask(pod, policy.policy, reasons)
            wait_s = min(RETRY_S, max(0.0, deadline - time.monotonic()))
            keys = {pod.key for pod in remaining}
            pods.wait(lambda view, keys=keys: not keys <= view.objects.keys(), wait_s)  # type: ignore[misc]

    def _ask(self, pod: Observed, policy: str, reasons: dict[str, str]) -> None:
        request = requests.evict(pod.key, pod.uid) if policy == "evict" else requests.delete(pod.key, pod.uid)
        response = self._sender.send(request)
        reasons.pop(pod.uid, None)
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            details = " ".join([response.message, *rejections.budget_messages(response)])
            reasons[pod.uid] = f"pod {_name(pod)} cannot be evicted now: {details}"
        elif response.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND):
            reasons[pod.uid] = f"pod {_name(pod)} cannot be evicted: {response.status} {response.message}"

    def _sweep(self, gone: set[str], pods: informer.Informer) -> None:
        """Delete late and DaemonSet pods of deleted nodes; the pod garbage collector takes a minute."""
        for pod in pods.view().objects.values():
            if observed.node_name(pod) in gone and not observed.is_finished(pod):
                self._sender.send(requests.delete(pod.key, pod.uid, grace_s=0))


def _must_go(pod: Observed, nodes: set[str]) -> bool:
    """Return whether a pod must be gone before its node is deleted. A DaemonSet recreates pods on cordoned nodes."""
    metadata = pod.manifest["metadata"]
    return (
        observed.node_name(pod) in nodes
        and not observed.is_finished(pod)
        and not metadata["mirror"]
        and not any(owner["kind"] == "DaemonSet" for owner in metadata["ownerReferences"])
    )


def _name(pod: Observed) -> str:
    return f"{pod.key.namespace}/{pod.key.name}"
