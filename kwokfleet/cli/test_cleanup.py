"""Tests on an existing cluster: the check before the test, and the removal of its Fleets afterwards."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kwokfleet import errors
from kwokfleet.cli import connection, output, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kwokfleet.api.fleet import Fleet
    from kwokfleet.daemon import daemon
    from kwokfleet.kube import throttled_client
    from kwokfleet.kube.objects import Manifest


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """An existing cluster, and the Fleets of the test."""

    fleets: "Sequence[Fleet]"
    context: str | None
    kubeconfig: Path | None

    @property
    def names(self) -> list[str]:
        """Names of the Fleets, sorted."""
        return sorted(fleet.name for fleet in self.fleets)


@contextmanager
def removed_at_exit(cluster: SharedCluster) -> "Iterator[None]":
    """Delete the workloads and the status of these Fleets when the block ends."""
    try:
        yield
    finally:
        from kwokfleet.reconcile import status_writer

        with connection.connect_throttled(cluster.context, cluster.kubeconfig) as sender:
            _delete_workloads(sender, cluster)  # objects that were submitted while the daemon stopped
            for name in cluster.names:
                status_writer.StatusWriter(sender).delete(name)


def require_unknown_fleets(cluster: SharedCluster) -> None:
    """Raise if the cluster has one of these Fleets: its Runs are finished, and the test must not delete it."""
    from kwokfleet.experiment import progress
    from kwokfleet.reconcile import cluster_state

    with connection.connect_throttled(cluster.context, cluster.kubeconfig) as sender:
        known = sorted({fleet["metadata"]["name"] for fleet in cluster_state.list_fleets(sender)} & set(cluster.names))
    if known:
        raise errors.InputError(
            f"this cluster already has fleet {progress.abbreviate(known)}: its waves would not run again",
            hint=f"kwokfleet delete {known[0]}, or use a temporary cluster: omit --kubeconfig and --context",
        )


def remove_fleets(running_daemon: "daemon.Daemon", cluster: SharedCluster) -> None:
    """Delete the Fleets while the daemon is suspended, and kwok still runs: kwok finishes the deletion of pods."""
    from kwokfleet.daemon.trigger import PassReason
    from kwokfleet.source import loader

    running_daemon.suspended = True
    running_daemon.trigger.request(PassReason.ASKED)
    with connection.connect_throttled(cluster.context, cluster.kubeconfig) as sender:
        _delete_workloads(sender, cluster)
    for name in cluster.names:
        with session.open_deletion(name, cluster.context, cluster.kubeconfig) as (syncer, _view):
            empty = loader.empty_tree()
            left = syncer.converge(empty, syncer.plan(empty)).left
        remaining = len(left.changes) + sum(len(held.changes) for held in left.withheld)
        result = f"{remaining} objects remain; delete them: kwokfleet delete {name}" if remaining else "deleted"
        output.print_line(f"fleet {name}: {result}")


def _delete_workloads(sender: "throttled_client.ThrottledClient", cluster: SharedCluster) -> None:
    """Delete the objects of all Waves, and their namespaces if nothing else uses them."""
    from kwokfleet.kube import client, discovery, requests, throttled_client
    from kwokfleet.waves import churn

    resolver, deletions = discovery.KindResolver(sender), list[requests.Request]()
    namespaces: dict[str, Manifest] = {}
    for fleet in cluster.fleets:
        for wave in fleet.spec.waves:
            try:
                kind = resolver.of_manifest(wave.template)
                selector = churn.wave_selector(fleet.name, wave.name)
                workloads = client.list_objects(sender, kind, selector, metadata_only=True)
                deletions += [
                    requests.delete_any(kind, manifest, manifest["metadata"]["uid"]) for manifest in workloads
                ]
                created = client.list_objects(sender, requests.NAMESPACE, selector, metadata_only=True)
                namespaces |= {namespace["metadata"]["name"]: namespace for namespace in created}
            except errors.ClusterError as error:
                output.print_line(f"note: objects of wave {wave.name} may remain: {error}")
    occupied = discovery.occupied_namespaces(sender, namespaces.keys(), requests.UNMANAGED_SELECTOR)
    for name in namespaces.keys() - occupied.keys():
        deletions.append(requests.delete_any(requests.NAMESPACE, namespaces[name], namespaces[name]["metadata"]["uid"]))
    if deletions:
        throttled_client.send_all(sender, deletions)
