"""Nodes that go: which ones, in what order, and what becomes of their pods."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import cli, kwok, sync_testbed, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox
from tests.harness.sync_testbed import SyncTestbed, output

Manifest = dict[str, Any]
TIMEOUT_S = 3
POOL = {"name": "a", "drain": {"timeout": f"{TIMEOUT_S}s"}}


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[SyncTestbed]:
    """Give a test a fleet file and the session's cluster, with nothing of ours in it."""
    yield from sync_testbed.opened(cluster, kwokfleet, tmp_path)


@pytest.fixture
def played(testbed: SyncTestbed, tmp_path: Path) -> Iterator[None]:
    """Let kwok play the fleet's nodes, by the Stages that a sync puts into the cluster."""
    kwok.install_crds(testbed.cluster)
    with kwok.running(testbed.cluster, tmp_path / "kwok", selector=f"kwokfleet.dev/fleet={sync_testbed.FLEET}"):
        yield


@pytest.fixture
def pods(testbed: SyncTestbed, box: Sandbox, played: None) -> Callable[..., None]:
    """Return what puts pods onto nodes, and waits until kwok runs them."""

    def put(**nodes: str) -> None:
        for name, node in nodes.items():
            spec = {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none"}],
            }
            pod = box.manifest("v1", "Pod", name, spec=spec)
            pod["metadata"]["labels"] = box.labels | {"app": name}
            testbed.cluster.kubectl("create", "--filename", "-", stdin=json.dumps(pod))
        waiting.until(lambda: set(running(box)) >= {f"{box.name}-{name}" for name in nodes})

    return put


def running(box: Sandbox) -> dict[str, str]:
    """Return the pods that run, and where."""
    items = box.cluster.get("pods", "--namespace", box.name)["items"]
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"] for each in items if each["status"]["phase"] == "Running"
    }


def test_pods_go_before_their_node(testbed: SyncTestbed, box: Sandbox, pods: Callable[..., None]) -> None:
    """They are evicted, and none is left that runs on nothing; pods on nodes that stay are not disturbed."""
    testbed.write(POOL | {"replicas": 4})
    assert testbed.sync().returncode == 0
    pods(first="scene-a-0", second="scene-a-3", third="scene-a-3")
    testbed.write(POOL | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert running(box) == {f"{box.name}-first": "scene-a-0"}
    testbed.assert_settled(a=2)


def test_a_budget_is_respected(testbed: SyncTestbed, box: Sandbox, pods: Callable[..., None]) -> None:
    """A pod that may not go keeps its node, cordoned: exit code 7 names both; other nodes go, and later this one."""
    testbed.write(POOL | {"replicas": 3})
    assert testbed.sync().returncode == 0
    pods(guarded="scene-a-2", free="scene-a-1")
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    testbed.cluster.apply(box.manifest("policy/v1", "PodDisruptionBudget", "budget", spec=budget))
    watched = ("pdb", f"{box.name}-budget", "--namespace", box.name)
    waiting.until(lambda: testbed.cluster.get(*watched).get("status", {}).get("observedGeneration"))
    testbed.write(POOL | {"replicas": 1})
    done = testbed.sync()
    assert done.returncode == 7, output(done)
    assert f"node scene-a-2: pod {box.name}/{box.name}-guarded cannot be evicted now" in done.stderr
    assert f"{box.name}-budget" in done.stderr
    assert sorted(testbed.names()) == ["scene-a-0", "scene-a-2"]
    assert testbed.nodes()["scene-a-2"]["spec"]["unschedulable"]
    assert running(box) == {f"{box.name}-guarded": "scene-a-2"}
    testbed.cluster.kubectl("delete", *watched)
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert running(box) == {}
    testbed.assert_settled(a=1)


def test_a_node_that_is_wanted_again_is_opened_again(
    testbed: SyncTestbed, box: Sandbox, pods: Callable[..., None]
) -> None:
    """It was cordoned for a deletion that did not come to pass: after a sync, pods may come again."""
    testbed.write(POOL | {"replicas": 2})
    assert testbed.sync().returncode == 0
    pods(guarded="scene-a-1")
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    testbed.cluster.apply(box.manifest("policy/v1", "PodDisruptionBudget", "budget", spec=budget))
    testbed.write(POOL | {"replicas": 1})
    assert testbed.sync().returncode == 7
    testbed.write(POOL | {"replicas": 2})
    assert testbed.sync().returncode == 0
    assert "unschedulable" not in testbed.nodes()["scene-a-1"]["spec"]
    testbed.assert_settled(a=2)


def test_the_emptiest_nodes_go(testbed: SyncTestbed, box: Sandbox, pods: Callable[..., None]) -> None:
    """Those with the fewest pods, whatever their index; the others keep theirs, and nothing is left to do."""
    pool = POOL | {"scaleDown": "emptiest"}
    testbed.write(pool | {"replicas": 4})
    assert testbed.sync().returncode == 0
    pods(one="scene-a-1", two="scene-a-3", three="scene-a-3", four="scene-a-2")
    testbed.write(pool | {"replicas": 3})
    assert testbed.sync().returncode == 0
    assert testbed.names() == ["scene-a-1", "scene-a-2", "scene-a-3"]
    pods(five="scene-a-2")
    testbed.write(pool | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert testbed.names() == ["scene-a-2", "scene-a-3"]
    assert sorted(set(running(box).values())) == ["scene-a-2", "scene-a-3"]
    assert testbed.diff().returncode == 0


def test_the_newest_nodes_go(testbed: SyncTestbed) -> None:
    """A node that was made again is newer than those with a higher index."""
    pool = POOL | {"scaleDown": "newest"}
    testbed.write(pool | {"replicas": 3})
    assert testbed.sync().returncode == 0
    last = max(each["metadata"]["creationTimestamp"] for each in testbed.nodes().values())
    testbed.cluster.kubectl("delete", "node", "scene-a-0")
    waiting.until(lambda: _now(testbed) > last)  # the API server counts in seconds
    assert testbed.sync().returncode == 0
    testbed.write(pool | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert testbed.names() == ["scene-a-1", "scene-a-2"]
    assert testbed.diff().returncode == 0


def _now(testbed: SyncTestbed) -> str:
    """Return the API server's time, as it stands in objects that are made now."""
    made = testbed.cluster.kubectl(
        "create", "configmap", "now", "--dry-run=server", "--output", "jsonpath={.metadata.creationTimestamp}"
    )
    return made.strip()


def test_a_whole_idle_pool_goes_by_one_request(testbed: SyncTestbed) -> None:
    """However many nodes it has; another pool is left alone."""
    testbed.write({"name": "a", "replicas": 60}, {"name": "b", "replicas": 3})
    assert testbed.sync().returncode == 0
    testbed.write({"name": "a", "replicas": 0}, {"name": "b", "replicas": 3})
    with testbed.cluster.counted_requests() as counted:
        done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert counted.writes("nodes") == 1, counted.all()
    testbed.assert_settled(b=3)


def test_a_node_that_is_not_fake_survives_its_pool(testbed: SyncTestbed) -> None:
    """Whatever labels it carries: it is reported, with what to do, and nothing of it is ever written."""
    testbed.write({"name": "a", "replicas": 20})
    assert testbed.sync().returncode == 0
    real = testbed.nodes()["scene-a-0"]
    labels = real["metadata"]["labels"]
    testbed.cluster.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "real", "labels": labels | {"team": "others"}}}
    )
    before = testbed.nodes()["real"]["metadata"]
    testbed.write({"name": "a", "replicas": 0})
    done = testbed.sync()
    assert done.returncode == 5, output(done)
    assert "node real has kwokfleet's label but not the annotation kwok.x-k8s.io/node=fake" in done.stdout
    assert testbed.names() == ["real"]
    after = testbed.cluster.get("nodes", "real", "--show-managed-fields")
    assert (after["metadata"]["uid"], after["metadata"]["labels"]) == (before["uid"], before["labels"])
    assert "kwokfleet" not in {each["manager"] for each in after["metadata"]["managedFields"]}
    assert testbed.diff().returncode == 5
