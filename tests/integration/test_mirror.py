"""The mirror on a real API server: what it shows, what wakes it, and that it ends when told to."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kwokfleet.core import objects, requests
from kwokfleet.core.objects import ObjectKey
from kwokfleet.edge import cluster as edge
from kwokfleet.edge import mirror
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

OURS = {objects.MANAGED_BY: objects.US}
FAKE = {objects.FAKE_KEY: objects.FAKE_VALUE}
WAIT_S = 30.0


@pytest.fixture
def api(cluster: ControlPlane) -> Iterator[edge.Cluster]:
    """Connect to the session's cluster."""
    connection = edge.connect(kubeconfig=cluster.kubeconfig)
    yield connection
    connection.close()


@pytest.fixture
def follower(api: edge.Cluster, box: Sandbox) -> Iterator[mirror.Mirror]:
    """Follow the nodes of this test that have our label."""
    with mirror.Mirror(api, (requests.NODE,), f"{requests.OURS},{box.selector}") as made:
        assert not made.wait_until_known(WAIT_S).unknown
        yield made


def node(box: Sandbox, name: str, **labels: str) -> dict[str, Any]:
    """Write a fake node of this test."""
    made = box.manifest("v1", "Node", name)
    made["metadata"]["labels"] |= OURS | labels
    made["metadata"]["annotations"] = dict(FAKE)
    return made


def key(box: Sandbox, name: str) -> ObjectKey:
    """Return what tells that node from others."""
    return ObjectKey("v1", "Node", "", f"{box.name}-{name}")


def beat(box: Sandbox, name: str, time: str) -> None:
    """Let a node's heart beat, as kwok does."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": time}
    patch = json.dumps({"status": {"conditions": [ready]}})
    box.cluster.kubectl("patch", "node", f"{box.name}-{name}", "--subresource=status", "--patch", patch)


def test_it_shows_what_is_created_changed_and_deleted(follower: mirror.Mirror, box: Sandbox) -> None:
    """An object appears, changes and disappears in the mirror as it does in the cluster."""
    box.cluster.apply(node(box, "a"))
    view = follower.wait(lambda view: key(box, "a") in view.objects, WAIT_S)
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"][objects.MANAGED_BY] == objects.US
    box.cluster.apply(node(box, "a", tier="gold"))
    view = follower.wait(
        lambda view: view.objects[key(box, "a")].manifest["metadata"]["labels"].get("tier") == "gold", WAIT_S
    )
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"]["tier"] == "gold"
    box.cluster.kubectl("delete", "node", f"{box.name}-a")
    assert key(box, "a") not in follower.wait(lambda view: not view.objects, WAIT_S).objects


def test_what_is_not_ours_is_not_there(follower: mirror.Mirror, box: Sandbox) -> None:
    """A node without our label never appears, and one that loses the label disappears."""
    foreign = node(box, "foreign")
    del foreign["metadata"]["labels"][objects.MANAGED_BY]
    box.cluster.apply(foreign)
    box.cluster.apply(node(box, "ours"))
    assert set(follower.wait(lambda view: bool(view.objects), WAIT_S).objects) == {key(box, "ours")}
    box.cluster.kubectl("label", "node", f"{box.name}-ours", f"{objects.MANAGED_BY}-")
    assert not follower.wait(lambda view: not view.objects, WAIT_S).objects


def test_a_heartbeat_changes_nothing(follower: mirror.Mirror, box: Sandbox) -> None:
    """A node whose heart beats stays the very same object, so that nobody compares it again."""
    box.cluster.apply(node(box, "a"))
    beat(box, "a", "2026-03-01T08:00:00Z")
    # The controller manager takes its not-ready taint off: what comes after that is heartbeats alone.
    before = follower.wait(lambda view: all(each.schedulable for each in view.objects.values()), WAIT_S)
    version = before.versions["Node"]
    beat(box, "a", "2026-03-01T08:00:10Z")
    after = follower.wait(lambda view: view.versions["Node"] > version, WAIT_S)
    assert after.versions["Node"] > version
    assert after.objects[key(box, "a")] is before.objects[key(box, "a")]


def test_closing_in_the_middle_of_a_list_leaves_nothing_behind(api: edge.Cluster, box: Sandbox) -> None:
    """A mirror that is closed at any moment ends its threads, and no thread dies of it."""
    for number in range(20):
        box.cluster.apply(node(box, f"n{number}")) if number < 3 else None
        with mirror.Mirror(api) as made:
            made.wait(lambda view: bool(view.objects), number * 0.002)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("mirror-")]


def test_a_kind_that_the_cluster_does_not_know_is_missing_and_not_unknown(api: edge.Cluster) -> None:
    """Without its definition a custom resource has no objects: that is known, and said."""
    kind = requests.Kind("example.com/v1", "Nothing", "nothings")
    with mirror.Mirror(api, (kind,)) as made:
        view = made.wait_until_known(WAIT_S)
    assert (set(view.missing), dict(view.unknown)) == ({"Nothing"}, {})
