"""Removes the objects of all Fleets: nodes with their pods, Stages, workloads, Fleet resources."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kwokfleet.install import installer
from kwokfleet.kube import client, objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest, ObjectKey
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
            nodes = {
                key.name
                for key, live in view.objects.items()
                if key.kind == "Node" and objects.is_managed(live.manifest)
            }
            self._delete_pods(view, nodes)
            names = {live.fleet for live in view.objects.values()}
            options = reconciler.ReconcileOptions(only=frozenset(names) | {""}, budget=False)
            session = sync.Sync(self.sender.api, cache, options, self.sender.limits)
            result = session.converge(loader.empty_tree(), session.plan(loader.empty_tree()))
        self._delete_leases(nodes)
        self._delete_fleets()
        failures = outcomes.failures(result.outcomes)
        self.report(f"{len(result.outcomes) - len(failures)} objects of fleets removed")
        for outcome in failures:
            self.report_left(f"{installer.display_name(outcome.change.key)}: {outcome.message}")
        for group in result.left.withheld:
            self.report_left(f"{len(group.changes)} objects of fleet {group.fleet or '(shared)'}: {group.why}")
        return not failures and not result.left.withheld

    def _delete_pods(self, view: informer.CacheView, nodes: AbstractSet[str]) -> None:
        """Cordon the nodes, and delete their pods without grace period: no kubelet and no kwok ends them."""
        if not self._pods_on(nodes):
            return
        cordons = [
            requests.patch(live.key, patches.cordon(live))
            for live in view.objects.values()
            if live.key.kind == "Node" and live.key.name in nodes and not live.manifest["spec"].get("unschedulable")
        ]
        throttled_client.send_all(self.sender, cordons)

        def are_gone() -> bool:
            pods = self._pods_on(nodes)
            throttled_client.send_all(self.sender, [_forced_delete(pod) for pod in pods])
            return not pods

        self.wait("pods on the fake nodes to be deleted", are_gone)

    def _pods_on(self, nodes: AbstractSet[str]) -> list[Manifest]:
        if not nodes:
            return []
        pods = client.list_objects(self.sender, requests.POD, fields="spec.nodeName!=")
        return [pod for pod in pods if pod["spec"]["nodeName"] in nodes and not _is_daemon_set_pod(pod)]

    def _delete_leases(self, nodes: AbstractSet[str]) -> None:
        leases = map(
            node_leases.parse_lease,
            client.list_objects(self.sender, requests.LEASE, namespace=node_leases.NAMESPACE),
        )
        throttled_client.send_all(
            self.sender, [node_leases.release_request(lease) for lease in leases if lease.node in nodes]
        )

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
    metadata = pod["metadata"]
    key = ObjectKey("v1", "Pod", metadata["namespace"], metadata["name"])
    return requests.delete(key, metadata["uid"], grace_s=0)
