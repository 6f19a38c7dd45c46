"""Removes the objects of all Fleets: nodes with their pods, Stages, workloads, Fleet resources."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kwokfleet.install import installer
from kwokfleet.kube import client, objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.kwok import node_leases
from kwokfleet.reconcile import cluster_state, outcomes, patches, reconciler, status_writer, sync
from kwokfleet.source import loader

LIST_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class FleetRemoval:
    """Removes the objects of all Fleets; no daemon and no kwok may run."""

    sender: throttled_client.ThrottledClient
    report: Callable[[str], None]
    report_left: Callable[[str], None]
    wait: Callable[[str, Callable[[], bool]], None]

    def run(self) -> bool:
        """Remove the objects; return whether none is left."""
        with informer.Informer(self.sender.api, requests.MANAGED_KINDS) as cache:
            view = cache.wait_until_synced(LIST_TIMEOUT_S)
            live_nodes = (live for live in view.objects.values() if live.key.kind == "Node")
            nodes = {node.key.name: node for node in live_nodes if objects.is_managed(node.manifest)}
            self._delete_pods(nodes)
            names = {live.fleet for live in view.objects.values()}
            options = reconciler.ReconcileOptions(only=frozenset(names) | {""}, budget=False)
            session = sync.Sync(self.sender.api, cache, options, self.sender.limits)
            result = session.converge(loader.empty_tree(), session.plan(loader.empty_tree()))
        self._delete_leases(nodes.keys())
        self._delete_fleets()
        failures = outcomes.failures(result.outcomes)
        self.report(f"{len(result.outcomes) - len(failures)} objects of fleets removed")
        for outcome in failures:
            self.report_left(f"{installer.display_name(outcome.change.key)}: {outcome.message}")
        for group in result.left.withheld:
            self.report_left(f"{len(group.changes)} objects of fleet {group.fleet or '(shared)'}: {group.why}")
        return not failures and not result.left.withheld

    def _delete_pods(self, nodes: Mapping[str, Observed]) -> None:
        """Cordon the nodes, and delete their pods without grace period: no kubelet and no kwok ends them."""
        if not self._pods_on(nodes.keys()):
            return
        schedulable = [node for node in nodes.values() if not node.manifest["spec"].get("unschedulable")]
        cordons = [requests.patch(node.key, patches.cordon(node)) for node in schedulable]
        throttled_client.send_all(self.sender, cordons)

        def are_gone() -> bool:
            pods = self._pods_on(nodes.keys())
            throttled_client.send_all(self.sender, [_forced_delete(pod) for pod in pods])
            return not pods

        self.wait("pods on the fake nodes to be deleted", are_gone)

    def _pods_on(self, nodes: AbstractSet[str]) -> list[Manifest]:
        if not nodes:
            return []
        pods = client.list_objects(self.sender, requests.POD, fields="spec.nodeName!=")
        return [pod for pod in pods if pod["spec"]["nodeName"] in nodes and not _is_daemon_set_pod(pod)]

    def _delete_leases(self, nodes: AbstractSet[str]) -> None:
        listed = client.list_objects(self.sender, requests.LEASE, namespace=node_leases.NAMESPACE)
        leases = (lease for lease in map(node_leases.parse_lease, listed) if lease.node in nodes)
        throttled_client.send_all(self.sender, [node_leases.release_request(lease) for lease in leases])

    def _delete_fleets(self) -> None:
        writer = status_writer.StatusWriter(self.sender)
        for fleet in cluster_state.list_fleets(self.sender):
            name = fleet["metadata"]["name"]
            writer.delete(name)
            self.report(f"fleet {name} removed")


def _is_daemon_set_pod(pod: Manifest) -> bool:
    """Return whether a pod would be recreated at once; it is deleted with its node."""
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ())


def _forced_delete(pod: Manifest) -> requests.Request:
    return requests.delete(requests.item_key(requests.POD, pod), pod["metadata"]["uid"], grace_s=0)
