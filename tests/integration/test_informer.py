"""The Informer on a real API server."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import client, objects, requests
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import ObjectKey
from tests.harness import faulty_proxy, kwok
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

OURS = {objects.MANAGED_BY: objects.KWOKFLEET}
FAKE = {objects.FAKE_NODE_KEY: objects.FAKE_NODE_VALUE}
WAIT_S = 30.0


@pytest.fixture
def api(cluster: ControlPlane) -> Iterator[client.KubeClient]:
    """Connect to the session's cluster."""
    connection = client.connect(kubeconfig=cluster.kubeconfig)
    yield connection
    connection.close()


@pytest.fixture
def node_informer(api: client.KubeClient, box: Sandbox) -> Iterator[informer.Informer]:
    """Watch the managed nodes of this test."""
    with informer.Informer(api, (requests.NODE,), f"{requests.MANAGED_SELECTOR},{box.selector}") as cache:
        assert not cache.wait_until_synced(WAIT_S).unknown
        yield cache


def node(box: Sandbox, name: str, **labels: str) -> dict[str, Any]:
    """Return a fake node of this test."""
    manifest = box.manifest("v1", "Node", name)
    manifest["metadata"]["labels"] |= OURS | labels
    manifest["metadata"]["annotations"] = dict(FAKE)
    return manifest


def key(box: Sandbox, name: str) -> ObjectKey:
    """Return the key of a node."""
    return ObjectKey("v1", "Node", "", f"{box.name}-{name}")


def send_heartbeat(box: Sandbox, name: str, time: str) -> None:
    """Send a heartbeat, as kwok does."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": time}
    patch = json.dumps({"status": {"conditions": [ready]}})
    box.cluster.kubectl("patch", "node", f"{box.name}-{name}", "--subresource=status", "--patch", patch)


def test_objects_are_added_updated_and_deleted(node_informer: informer.Informer, box: Sandbox) -> None:
    """The cache follows the cluster."""
    box.cluster.apply(node(box, "a"))
    view = node_informer.wait(lambda view: key(box, "a") in view.objects, WAIT_S)
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"][objects.MANAGED_BY] == objects.KWOKFLEET
    box.cluster.apply(node(box, "a", tier="gold"))
    view = node_informer.wait(
        lambda view: view.objects[key(box, "a")].manifest["metadata"]["labels"].get("tier") == "gold", WAIT_S
    )
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"]["tier"] == "gold"
    box.cluster.kubectl("delete", "node", f"{box.name}-a")
    assert key(box, "a") not in node_informer.wait(lambda view: not view.objects, WAIT_S).objects


def test_unmanaged_objects_are_not_cached(node_informer: informer.Informer, box: Sandbox) -> None:
    """A node without our label never appears; one that loses the label disappears."""
    foreign = node(box, "foreign")
    del foreign["metadata"]["labels"][objects.MANAGED_BY]
    box.cluster.apply(foreign)
    box.cluster.apply(node(box, "ours"))
    assert set(node_informer.wait(lambda view: bool(view.objects), WAIT_S).objects) == {key(box, "ours")}
    box.cluster.kubectl("label", "node", f"{box.name}-ours", f"{objects.MANAGED_BY}-")
    assert not node_informer.wait(lambda view: not view.objects, WAIT_S).objects


def test_a_heartbeat_keeps_the_object(node_informer: informer.Informer, box: Sandbox) -> None:
    """The cached object stays identical, so that it is not compared again."""
    box.cluster.apply(node(box, "a"))
    send_heartbeat(box, "a", "2026-03-01T08:00:00Z")
    # The controller manager removes the not-ready taint first; later updates are heartbeats only.
    before = node_informer.wait(lambda view: all(node.schedulable for node in view.objects.values()), WAIT_S)
    version = before.versions["Node"]
    send_heartbeat(box, "a", "2026-03-01T08:00:10Z")
    after = node_informer.wait(lambda view: view.versions["Node"] > version, WAIT_S)
    assert after.versions["Node"] > version
    assert after.objects[key(box, "a")] is before.objects[key(box, "a")]


def test_closing_during_a_list_ends_all_threads(api: client.KubeClient, box: Sandbox) -> None:
    """An Informer may be closed at any moment."""
    for number in range(20):
        box.cluster.apply(node(box, f"n{number}")) if number < 3 else None
        with informer.Informer(api) as cache:
            cache.wait(lambda view: bool(view.objects), number * 0.002)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("reflector-", "informer-"))]


def test_a_kind_without_definition_is_missing_not_unknown(api: client.KubeClient) -> None:
    """Without its CustomResourceDefinition a kind has no objects."""
    kind = requests.Kind("example.com/v1", "Nothing", "nothings")
    with informer.Informer(api, (kind,)) as cache:
        view = cache.wait_until_synced(WAIT_S)
    assert (set(view.missing), dict(view.unknown)) == ({"Nothing"}, {})


# ----------------------------------------------------------------------------------------
# rarely used kinds

LOGS = requests.Kind(objects.STAGE_API_VERSION, "ClusterLogs", "clusterlogs")


@pytest.fixture
def all_kinds(
    api: client.KubeClient, box: Sandbox
) -> Iterator[Callable[[], AbstractContextManager[informer.Informer]]]:
    """Install kwok's CRDs; return a function that opens an Informer of all kinds, and delete its objects at the end."""
    kwok.install_crds(box.cluster)
    yield lambda: informer.Informer(api, requests.MANAGED_KINDS, f"{requests.MANAGED_SELECTOR},{box.selector}")
    box.cluster.kubectl("delete", LOGS.plural, "--selector", box.selector)


def logs(box: Sandbox, path: str = "/var/log/pods") -> dict[str, Any]:
    """Return an object of a rarely used kind."""
    spec = {"logs": [{"containers": ["main"], "logsFile": path}]}
    manifest = box.manifest(LOGS.api_version, LOGS.kind, "logs", spec=spec)
    manifest["metadata"]["labels"] |= OURS
    del manifest["metadata"]["namespace"]
    return manifest


def logs_key(box: Sandbox) -> ObjectKey:
    """Return its key."""
    return ObjectKey(LOGS.api_version, LOGS.kind, "", f"{box.name}-logs")


OpenInformer = Callable[[], AbstractContextManager[informer.Informer]]


def test_rare_kinds_without_objects_have_no_thread(all_kinds: OpenInformer) -> None:
    """They are known to be empty."""
    with all_kinds() as cache:
        view = cache.wait_until_synced(WAIT_S)
        threads = {
            thread.name for thread in threading.enumerate() if thread.name.startswith(("reflector-", "informer-"))
        }
    assert (dict(view.unknown), dict(view.objects)) == ({}, {})
    assert set(view.versions) == {kind.kind for kind in requests.MANAGED_KINDS}
    watched = {f"reflector-{kind.plural}" for kind in requests.MANAGED_KINDS if kind not in requests.KWOK_KINDS}
    assert threads == {*watched, "informer-poller"}


def test_an_object_of_a_rare_kind_is_cached_and_watched(all_kinds: OpenInformer, box: Sandbox) -> None:
    """It is in the first settled view, and its deletion is seen."""
    box.cluster.apply(logs(box))
    with all_kinds() as cache:
        view = cache.wait_until_synced(WAIT_S)
        assert view.objects[logs_key(box)].manifest["spec"]["logs"][0]["logsFile"] == "/var/log/pods"
        box.cluster.kubectl("delete", LOGS.plural, f"{box.name}-logs")
        assert logs_key(box) not in cache.wait(lambda view: not view.objects, WAIT_S).objects


def test_a_rare_kind_can_be_watched_before_a_write(all_kinds: OpenInformer, box: Sandbox) -> None:
    """An object that is created afterwards appears."""
    with all_kinds() as cache:
        cache.wait_until_synced(WAIT_S)
        cache.watch_kinds({LOGS.kind})
        box.cluster.apply(logs(box))
        assert logs_key(box) in cache.wait(lambda view: bool(view.objects), WAIT_S).objects


@pytest.mark.parametrize(
    ("fault", "settled"),
    [(faulty_proxy.Reject(403), True), (faulty_proxy.Reject(500), False), (faulty_proxy.Reset(), False)],
)
def test_a_failed_poll_means_unknown(
    all_kinds: OpenInformer,
    box: Sandbox,
    tmp_path: Path,
    fault: faulty_proxy.Fault,
    settled: bool,  # noqa: FBT001  # the example
) -> None:
    """A failed poll never means an empty kind; the next successful one shows the objects."""
    box.cluster.apply(logs(box))
    with faulty_proxy.proxy_to(box.cluster) as proxy:
        proxy.rule = lambda request: fault if request.resource.endswith(LOGS.plural) else None
        through = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))
        with informer.Informer(through, requests.MANAGED_KINDS, f"{requests.MANAGED_SELECTOR},{box.selector}") as cache:
            view = cache.wait(lambda view: bool(proxy.faults) and set(view.unknown) == {LOGS.kind}, WAIT_S)
            assert (set(view.unknown), dict(view.objects)) == ({LOGS.kind}, {})
            assert cache.wait(lambda view: view.settled, WAIT_S if settled else 0.0).settled == settled
            if not settled:
                proxy.rule = faulty_proxy.pass_through
                assert logs_key(box) in cache.wait_until_synced(WAIT_S).objects
        through.close()
