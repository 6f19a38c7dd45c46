"""A cluster that is not ours alone, left as it was found: what a test needs of it before, and removes from it after."""

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
    """A cluster, and the Fleets that are to be on it for a while."""

    fleets: "Sequence[Fleet]"
    context: str | None
    kubeconfig: Path | None

    @property
    def names(self) -> list[str]:
        """The Fleets' names."""
        return sorted(each.name for each in self.fleets)


@contextmanager
def removed_at_exit(site: SharedCluster) -> "Iterator[None]":
    """Let the cluster forget, in the end, whatever it still knows of these Fleets."""
    try:
        yield
    finally:
        from kwokfleet.reconcile import status_writer

        with _sending(site) as sender:
            _remove_played(sender, site)  # what was on its way when the daemon was told to rest
            for name in site.names:
                status_writer.StatusWriter(sender).delete(name)


def require_unknown_fleets(site: SharedCluster) -> None:
    """Refuse a cluster that knows these Fleets: their Runs have been, and nobody asked to remove what is theirs."""
    from kwokfleet.experiment import progress
    from kwokfleet.reconcile import cluster_state

    with _sending(site) as sender:
        known = sorted({each["metadata"]["name"] for each in cluster_state.list_fleets(sender)} & set(site.names))
    if known:
        raise errors.InputError(
            f"this cluster has a fleet {progress.abbreviate(known)} already: its waves would not be played again",
            hint=f"kwokfleet delete {known[0]}, or test on a cluster of its own: without --kubeconfig",
        )


@contextmanager
def _sending(site: SharedCluster) -> "Iterator[throttled_client.ThrottledClient]":
    import threading

    from kwokfleet.kube import throttled_client

    api = connection.connect(site.context, site.kubeconfig)
    try:
        yield throttled_client.ThrottledClient(api, throttled_client.ClientLimits(), threading.Event())
    finally:
        api.close()


def remove_fleets(made: "daemon.Daemon", site: SharedCluster) -> None:
    """Remove Fleets while their kwok still runs, because it lets pods go; the daemon only looks on meanwhile."""
    from kwokfleet.daemon.trigger import PassReason
    from kwokfleet.kube import throttled_client
    from kwokfleet.reconcile import reconciler
    from kwokfleet.source import loader

    made.suspended = True
    made.request(PassReason.ASKED)
    with _sending(site) as sender:
        _remove_played(sender, site)
    for name in site.names:
        ordered = reconciler.ReconcileOptions(only=frozenset({name, ""}), budget=False)
        with session.open_session(site.context, site.kubeconfig, ordered, throttled_client.ClientLimits()) as syncer:
            view = connection.wait_until_listed(syncer.informer)
            if {each.fleet for each in view.objects.values()} - {name, ""}:
                syncer.limit_to({name})  # what Fleets share is still needed by the others
            nothing = loader.empty_tree()
            left = syncer.converge(nothing, syncer.plan(nothing)).left
        stays = len(left.changes) + sum(len(each.changes) for each in left.withheld)
        rest = f"{stays} objects stay; see kwokfleet delete {name}" if stays else "gone from the cluster"
        output.print_line(f"fleet {name}: {rest}")


def _remove_played(sender: "throttled_client.ThrottledClient", site: SharedCluster) -> None:
    """Remove what the Waves have made, wherever it is, and namespaces of theirs that nobody else uses."""
    from kwokfleet.kube import client, discovery, requests, throttled_client
    from kwokfleet.waves import churn

    known, work = discovery.KindResolver(sender), list[requests.Request]()
    places: dict[str, Manifest] = {}
    for fleet in site.fleets:
        for wave in fleet.spec.waves:
            try:
                kind = known.of_manifest(wave.template)
                mine = churn.wave_selector(fleet.name, wave.name)
                found = client.list_objects(sender, kind, mine, metadata_only=True)
                work += [requests.delete_any(kind, each, each["metadata"]["uid"]) for each in found]
                made = client.list_objects(sender, requests.NAMESPACE, mine, metadata_only=True)
                places |= {each["metadata"]["name"]: each for each in made}
            except errors.ClusterError as error:
                output.print_line(f"note: what wave {wave.name} has made may stay: {error}")
    for name in (
        places.keys() - discovery.occupied_namespaces(sender, places.keys(), requests.UNMANAGED_SELECTOR).keys()
    ):
        work.append(requests.delete_any(requests.NAMESPACE, places[name], places[name]["metadata"]["uid"]))
    if work:
        throttled_client.send_all(sender, work)
