"""Sync and diff inside the test process: faster for tests that run them often."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from kwokfleet.kube import client, objects, requests, throttled_client
from kwokfleet.kube.informer.informer import Informer
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.requests import Request
from kwokfleet.reconcile import outcomes, reconciler
from kwokfleet.reconcile import sync as syncing
from kwokfleet.reconcile.changes import Plan
from kwokfleet.source import loader
from tests.harness import control_plane, waiting

SYNC_TIMEOUT_S = 60.0
OURS = ("--selector", f"{objects.MANAGED_BY}={objects.KWOKFLEET}", "--ignore-not-found")


@dataclass(frozen=True)
class InProcessSync:
    """Sync and diff with a running informer."""

    api: client.KubeClient
    informer: Informer

    def sync(self, path: Path) -> syncing.SyncReport:
        """Sync files; it must succeed."""
        session, loaded = self._load(path)
        done = session.converge(loaded, session.plan(loaded))
        assert not outcomes.failures(done.outcomes), [
            (outcome.change.key, outcome.message) for outcome in outcomes.failures(done.outcomes)
        ]
        return done

    def diff(self, path: Path) -> Plan:
        """Return the Plan of a new sync."""
        session, loaded = self._load(path)
        return session.plan(loaded)

    def _load(self, path: Path) -> tuple[syncing.Sync, loader.Loaded]:
        loaded = loader.Loader().load(path)
        assert loaded.usable, loaded.problems
        return syncing.Sync(
            self.api, self.informer, reconciler.ReconcileOptions(), throttled_client.ClientLimits()
        ), loaded


@contextmanager
def running(cluster: control_plane.ControlPlane) -> Iterator[InProcessSync]:
    """Run an informer until the block ends."""
    api = client.connect(None, cluster.kubeconfig)
    try:
        with Informer(api) as informer:
            informer.wait_until_synced(SYNC_TIMEOUT_S)
            yield InProcessSync(api, informer)
    finally:
        api.close()


def delete_managed_objects(cluster: control_plane.ControlPlane) -> None:
    """Delete all managed objects of the cluster."""
    api = client.connect(None, cluster.kubeconfig)
    try:
        api.send(Request("DELETE", f"{requests.collection(requests.NODE)}?labelSelector={requests.MANAGED_SELECTOR}"))
        for kind in (*requests.MANAGED_KINDS, requests.FLEET):
            for key, uid in _managed_objects(api, kind):
                api.send(requests.delete(key, uid))
    finally:
        api.close()


def _managed_objects(api: client.KubeClient, kind: requests.Kind) -> list[tuple[ObjectKey, str]]:
    page = requests.list_page(kind, requests.MANAGED_SELECTOR, metadata_only=True)
    # A new CRD is briefly unavailable (429); an unknown kind has no objects (404).
    busy = HTTPStatus.TOO_MANY_REQUESTS
    [response] = waiting.until(lambda: [response for response in [api.send(page)] if response.status != busy])
    assert response.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND), response.message
    metadata = [item["metadata"] for item in response.json().get("items") or ()]
    return [
        (ObjectKey(kind.api_version, kind.kind, item.get("namespace", ""), item["name"]), item["uid"])
        for item in metadata
    ]
