"""The mirror on a real API server: what it shows, what wakes it, and that it ends when told to."""

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
def follower(api: client.KubeClient, box: Sandbox) -> Iterator[informer.Informer]:
    """Follow the nodes of this test that have our label."""
    with informer.Informer(api, (requests.NODE,), f"{requests.MANAGED_SELECTOR},{box.selector}") as made:
        assert not made.wait_until_synced(WAIT_S).unknown
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


def test_it_shows_what_is_created_changed_and_deleted(follower: informer.Informer, box: Sandbox) -> None:
    """An object appears, changes and disappears in the mirror as it does in the cluster."""
    box.cluster.apply(node(box, "a"))
    view = follower.wait(lambda view: key(box, "a") in view.objects, WAIT_S)
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"][objects.MANAGED_BY] == objects.KWOKFLEET
    box.cluster.apply(node(box, "a", tier="gold"))
    view = follower.wait(
        lambda view: view.objects[key(box, "a")].manifest["metadata"]["labels"].get("tier") == "gold", WAIT_S
    )
    assert view.objects[key(box, "a")].manifest["metadata"]["labels"]["tier"] == "gold"
    box.cluster.kubectl("delete", "node", f"{box.name}-a")
    assert key(box, "a") not in follower.wait(lambda view: not view.objects, WAIT_S).objects


def test_what_is_not_ours_is_not_there(follower: informer.Informer, box: Sandbox) -> None:
    """A node without our label never appears, and one that loses the label disappears."""
    foreign = node(box, "foreign")
    del foreign["metadata"]["labels"][objects.MANAGED_BY]
    box.cluster.apply(foreign)
    box.cluster.apply(node(box, "ours"))
    assert set(follower.wait(lambda view: bool(view.objects), WAIT_S).objects) == {key(box, "ours")}
    box.cluster.kubectl("label", "node", f"{box.name}-ours", f"{objects.MANAGED_BY}-")
    assert not follower.wait(lambda view: not view.objects, WAIT_S).objects


def test_a_heartbeat_changes_nothing(follower: informer.Informer, box: Sandbox) -> None:
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


def test_closing_in_the_middle_of_a_list_leaves_nothing_behind(api: client.KubeClient, box: Sandbox) -> None:
    """A mirror that is closed at any moment ends its threads, and no thread dies of it."""
    for number in range(20):
        box.cluster.apply(node(box, f"n{number}")) if number < 3 else None
        with informer.Informer(api) as made:
            made.wait(lambda view: bool(view.objects), number * 0.002)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("mirror-")]


def test_a_kind_that_the_cluster_does_not_know_is_missing_and_not_unknown(api: client.KubeClient) -> None:
    """Without its definition a custom resource has no objects: that is known, and said."""
    kind = requests.Kind("example.com/v1", "Nothing", "nothings")
    with informer.Informer(api, (kind,)) as made:
        view = made.wait_until_synced(WAIT_S)
    assert (set(view.missing), dict(view.unknown)) == ({"Nothing"}, {})


# ----------------------------------------------------------------------------------------
# kinds that few fleets use

LOGS = requests.Kind(objects.STAGE_API_VERSION, "ClusterLogs", "clusterlogs")


@pytest.fixture
def seldom(api: client.KubeClient, box: Sandbox) -> Iterator[Callable[[], AbstractContextManager[informer.Informer]]]:
    """Give the cluster kwok's kinds; return what follows all kinds for this test, which leaves no object of them."""
    kwok.install_crds(box.cluster)
    yield lambda: informer.Informer(api, requests.MANAGED_KINDS, f"{requests.MANAGED_SELECTOR},{box.selector}")
    box.cluster.kubectl("delete", LOGS.plural, "--selector", box.selector)


def logs(box: Sandbox, path: str = "/var/log/pods") -> dict[str, Any]:
    """Write an object of a kind of kwok's that few use."""
    spec = {"logs": [{"containers": ["main"], "logsFile": path}]}
    made = box.manifest(LOGS.api_version, LOGS.kind, "logs", spec=spec)
    made["metadata"]["labels"] |= OURS
    del made["metadata"]["namespace"]
    return made


def logs_key(box: Sandbox) -> ObjectKey:
    """Return what tells it from others."""
    return ObjectKey(LOGS.api_version, LOGS.kind, "", f"{box.name}-logs")


Seldom = Callable[[], AbstractContextManager[informer.Informer]]


def test_kinds_without_an_object_of_ours_have_no_thread_of_their_own(seldom: Seldom) -> None:
    """They are known all the same, and so is that there is nothing."""
    with seldom() as made:
        view = made.wait_until_synced(WAIT_S)
        following = {each.name for each in threading.enumerate() if each.name.startswith("mirror-")}
    assert (dict(view.unknown), dict(view.objects)) == ({}, {})
    assert set(view.versions) == {kind.kind for kind in requests.MANAGED_KINDS}
    often = {f"mirror-{kind.plural}" for kind in requests.MANAGED_KINDS if kind not in requests.KWOK_KINDS}
    assert following == {*often, "mirror-looker"}


def test_an_object_of_a_kind_that_few_use_is_shown_and_followed(seldom: Seldom, box: Sandbox) -> None:
    """Whole, as soon as anything is called known; and so is what becomes of it."""
    box.cluster.apply(logs(box))
    with seldom() as made:
        view = made.wait_until_synced(WAIT_S)
        assert view.objects[logs_key(box)].manifest["spec"]["logs"][0]["logsFile"] == "/var/log/pods"
        box.cluster.kubectl("delete", LOGS.plural, f"{box.name}-logs")
        assert logs_key(box) not in made.wait(lambda view: not view.objects, WAIT_S).objects


def test_a_kind_is_followed_before_somebody_writes_to_it(seldom: Seldom, box: Sandbox) -> None:
    """What was seen to be empty then shows what comes."""
    with seldom() as made:
        made.wait_until_synced(WAIT_S)
        made.watch_kinds({LOGS.kind})
        box.cluster.apply(logs(box))
        assert logs_key(box) in made.wait(lambda view: bool(view.objects), WAIT_S).objects


@pytest.mark.parametrize(
    ("fault", "settled"),
    [(faulty_proxy.Reject(403), True), (faulty_proxy.Reject(500), False), (faulty_proxy.Reset(), False)],
)
def test_a_look_that_failed_means_unknown(
    seldom: Seldom,
    box: Sandbox,
    tmp_path: Path,
    fault: faulty_proxy.Fault,
    settled: bool,  # noqa: FBT001  # the example
) -> None:
    """Never that there is nothing; once it succeeds, what is there is shown."""
    box.cluster.apply(logs(box))
    with faulty_proxy.proxy_to(box.cluster) as proxy:
        proxy.rule = lambda asked: fault if asked.resource.endswith(LOGS.plural) else None
        through = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))
        with informer.Informer(through, requests.MANAGED_KINDS, f"{requests.MANAGED_SELECTOR},{box.selector}") as made:
            view = made.wait(lambda view: bool(proxy.faults) and set(view.unknown) == {LOGS.kind}, WAIT_S)
            assert (set(view.unknown), dict(view.objects)) == ({LOGS.kind}, {})
            assert made.wait(lambda view: view.settled, WAIT_S if settled else 0.0).settled == settled
            if not settled:
                proxy.rule = faulty_proxy.pass_through
                assert logs_key(box) in made.wait_until_synced(WAIT_S).objects
        through.close()
