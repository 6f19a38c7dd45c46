"""Node deletion: which nodes, in what order, and the eviction of their pods."""

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
    """Return a testbed with a fleet file; the cluster has no managed objects."""
    yield from sync_testbed.opened(cluster, kwokfleet, tmp_path)


@pytest.fixture
def kwok_process(testbed: SyncTestbed, tmp_path: Path) -> Iterator[None]:
    """Run kwok for the fleet's nodes, with the Stages in the cluster."""
    kwok.install_crds(testbed.cluster)
    with kwok.running(testbed.cluster, tmp_path / "kwok", selector=f"kwokfleet.dev/fleet={sync_testbed.FLEET}"):
        yield


@pytest.fixture
def create_pods(testbed: SyncTestbed, box: Sandbox, kwok_process: None) -> Callable[..., None]:
    """Return a function that creates pods on nodes and waits until they run."""

    def create(**nodes: str) -> None:
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
        waiting.until(lambda: set(running_pods(box)) >= {f"{box.name}-{name}" for name in nodes})

    return create


def running_pods(box: Sandbox) -> dict[str, str]:
    """Return the nodes of running pods by pod name."""
    items = box.cluster.get("pods", "--namespace", box.name)["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in items if pod["status"]["phase"] == "Running"}


def test_pods_are_evicted_before_their_node_is_deleted(
    testbed: SyncTestbed, box: Sandbox, create_pods: Callable[..., None]
) -> None:
    """No pod is left without a node; pods on other nodes are not evicted."""
    testbed.write(POOL | {"replicas": 4})
    assert testbed.sync().returncode == 0
    create_pods(first="scene-a-0", second="scene-a-3", third="scene-a-3")
    testbed.write(POOL | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert running_pods(box) == {f"{box.name}-first": "scene-a-0"}
    testbed.assert_settled(a=2)


def test_a_pod_disruption_budget_delays_the_deletion_of_a_node(
    testbed: SyncTestbed, box: Sandbox, create_pods: Callable[..., None]
) -> None:
    """The node stays cordoned and exit code 7 names the pod; other nodes are deleted."""
    testbed.write(POOL | {"replicas": 3})
    assert testbed.sync().returncode == 0
    create_pods(guarded="scene-a-2", free="scene-a-1")
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    testbed.cluster.apply(box.manifest("policy/v1", "PodDisruptionBudget", "budget", spec=budget))
    pdb = ("pdb", f"{box.name}-budget", "--namespace", box.name)
    waiting.until(lambda: testbed.cluster.get(*pdb).get("status", {}).get("observedGeneration"))
    testbed.write(POOL | {"replicas": 1})
    done = testbed.sync()
    assert done.returncode == 7, output(done)
    assert f"node scene-a-2: pod {box.name}/{box.name}-guarded cannot be evicted now" in done.stderr
    assert f"{box.name}-budget" in done.stderr
    assert sorted(testbed.names()) == ["scene-a-0", "scene-a-2"]
    assert testbed.nodes()["scene-a-2"]["spec"]["unschedulable"]
    assert running_pods(box) == {f"{box.name}-guarded": "scene-a-2"}
    testbed.cluster.kubectl("delete", *pdb)
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert running_pods(box) == {}
    testbed.assert_settled(a=1)


def test_a_cordoned_node_that_is_desired_again_is_uncordoned(
    testbed: SyncTestbed, box: Sandbox, create_pods: Callable[..., None]
) -> None:
    """It was cordoned for a deletion that a budget blocked."""
    testbed.write(POOL | {"replicas": 2})
    assert testbed.sync().returncode == 0
    create_pods(guarded="scene-a-1")
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    testbed.cluster.apply(box.manifest("policy/v1", "PodDisruptionBudget", "budget", spec=budget))
    testbed.write(POOL | {"replicas": 1})
    assert testbed.sync().returncode == 7
    testbed.write(POOL | {"replicas": 2})
    assert testbed.sync().returncode == 0
    assert "unschedulable" not in testbed.nodes()["scene-a-1"]["spec"]
    testbed.assert_settled(a=2)


def test_scale_down_emptiest_deletes_the_nodes_with_the_fewest_pods(
    testbed: SyncTestbed, box: Sandbox, create_pods: Callable[..., None]
) -> None:
    """Regardless of their index."""
    pool = POOL | {"scaleDown": "emptiest"}
    testbed.write(pool | {"replicas": 4})
    assert testbed.sync().returncode == 0
    create_pods(one="scene-a-1", two="scene-a-3", three="scene-a-3", four="scene-a-2")
    testbed.write(pool | {"replicas": 3})
    assert testbed.sync().returncode == 0
    assert testbed.names() == ["scene-a-1", "scene-a-2", "scene-a-3"]
    create_pods(five="scene-a-2")
    testbed.write(pool | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert testbed.names() == ["scene-a-2", "scene-a-3"]
    assert sorted(set(running_pods(box).values())) == ["scene-a-2", "scene-a-3"]
    assert testbed.diff().returncode == 0


def test_scale_down_newest_deletes_the_newest_nodes(testbed: SyncTestbed) -> None:
    """A recreated node is newer than nodes with a higher index."""
    pool = POOL | {"scaleDown": "newest"}
    testbed.write(pool | {"replicas": 3})
    assert testbed.sync().returncode == 0
    last = max(node["metadata"]["creationTimestamp"] for node in testbed.nodes().values())
    testbed.cluster.kubectl("delete", "node", "scene-a-0")
    waiting.until(lambda: _now(testbed) > last)  # creationTimestamp has a resolution of one second
    assert testbed.sync().returncode == 0
    testbed.write(pool | {"replicas": 2})
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert testbed.names() == ["scene-a-1", "scene-a-2"]
    assert testbed.diff().returncode == 0


def _now(testbed: SyncTestbed) -> str:
    """Return the current time of the API server."""
    timestamp = testbed.cluster.kubectl(
        "create", "configmap", "now", "--dry-run=server", "--output", "jsonpath={.metadata.creationTimestamp}"
    )
    return timestamp.strip()


def test_an_idle_pool_is_deleted_with_one_request(testbed: SyncTestbed) -> None:
    """Regardless of its size; other pools are not changed."""
    testbed.write({"name": "a", "replicas": 60}, {"name": "b", "replicas": 3})
    assert testbed.sync().returncode == 0
    testbed.write({"name": "a", "replicas": 0}, {"name": "b", "replicas": 3})
    with testbed.cluster.counted_requests() as counted:
        done = testbed.sync()
    assert done.returncode == 0, output(done)
    assert counted.writes("nodes") == 1, counted.all()
    testbed.assert_settled(b=3)


def test_a_real_node_with_our_labels_is_not_deleted(testbed: SyncTestbed) -> None:
    """It is reported with a hint, and never written."""
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
    assert "kwokfleet" not in {entry["manager"] for entry in after["metadata"]["managedFields"]}
    assert testbed.diff().returncode == 5
