"""kwok in pods, with killed daemons and changes of the backend."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness import (
    cli,
    control_plane,
    daemon_process,
    daemon_testbed,
    deploy_manifests,
    kubelet,
    kwok,
    kwok_pods,
    waiting,
)
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.watch import RecordedWatch, watching
from tests.integration.test_supervisor import unready_nodes

NODES = 30
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CONTROLLER = """---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{{how}}}
"""
IN_PODS = "shards: 2, statefulSet: kwokfleet-kwok"


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[ControlPlane]:
    """Return a control plane for these tests, in which undriven nodes become NotReady."""
    yield from control_plane.running("kwok-pods")


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed with a namespace and kwok's StatefulSet."""
    for made in daemon_testbed.opened(cluster, kwokfleet, tmp_path):
        cluster.kubectl("create", "namespace", made.name)
        kwok_pods.install(cluster, made.name)
        yield made
        kwok_pods.uninstall(cluster, made.name)
        cluster.kubectl("delete", "namespace", made.name, "--wait=false")


@pytest.fixture
def machine(testbed: DaemonTestbed, tmp_path: Path) -> Iterator[kubelet.Kubelet]:
    """Run the pods of the namespace."""
    with kubelet.running(testbed.cluster, tmp_path / "machine", testbed.name) as made:
        yield made


def save(testbed: DaemonTestbed, how: str) -> None:
    """Write the fleet file with fields of the KwokController."""
    (testbed.files / "fleet.yaml").write_text(testbed.text(NODES) + CONTROLLER.format(how=how))


def daemon(testbed: DaemonTestbed) -> Any:  # noqa: ANN401  # a context manager
    """Run a daemon in the namespace."""
    return testbed.run(kwok=True, through={"POD_NAMESPACE": testbed.name})


def kwoks(one: daemon_process.DaemonProcess) -> list[tuple[bool, bool]]:
    """Return of each kwok whether it is ready, and whether it is a pod."""
    return [(each["state"] == "ready", bool(each["pod"])) for each in one.get("/api/v1/kwok")]


def holders(testbed: DaemonTestbed) -> set[str]:
    """Return the lease holders of the nodes; empty unless each node has one."""
    there = testbed.cluster.get("leases", "-n", "kube-node-lease")["items"]
    held = [each for each in there if each["metadata"]["name"].startswith(testbed.name)]
    found = [each["spec"].get("holderIdentity") or "" for each in held]
    return set(found) if len(found) == NODES and all(found) else set()


def pods(testbed: DaemonTestbed) -> list[str]:
    """Return the pods of the namespace."""
    return sorted(each["metadata"]["name"] for each in testbed.cluster.get("pods", "-n", testbed.name)["items"])


def driven_twice(seen: RecordedWatch) -> list[str]:
    """Return the nodes whose former lease holder came back: two kwoks drove it."""
    by_node: dict[str, list[str]] = {}
    for _, kind, lease in list(seen.events):
        if kind != "DELETED":
            by_node.setdefault(lease["metadata"]["name"], []).append(lease["spec"].get("holderIdentity") or "")
    turns = {name: [who for who, _ in itertools.groupby(held)] for name, held in by_node.items()}
    return [name for name, held in turns.items() if len(held) != len(set(held))]


def test_pods_continue_after_their_daemon_was_killed(testbed: DaemonTestbed, machine: kubelet.Kubelet) -> None:
    """The next leader adopts them and restarts none."""
    save(testbed, IN_PODS)
    with ExitStack() as stack:
        daemons = [stack.enter_context(daemon(testbed)) for _ in range(2)]
        waiting.until(lambda: len(holders(testbed)) == 2)
        before, pids = holders(testbed), machine.pids()
        [lead] = [each for each in daemons if each.is_leader]
        waiting.until(lambda: kwoks(lead) == [(True, True)] * 2)
        daemons.remove(lead)
        lead.kill()
        waiting.until(lambda: daemons[0].is_leader and kwoks(daemons[0]) == [(True, True)] * 2)
        daemons[0].wait_synced()
        assert daemons[0].text("/readyz") == "ready\n"
        assert holders(testbed) == before
        assert machine.pids() == pids


def test_kwok_moves_between_pods_and_processes_and_no_node_is_driven_twice(
    testbed: DaemonTestbed, machine: kubelet.Kubelet
) -> None:
    """The files change with and without a running daemon; no node leaves Ready."""
    save(testbed, "shards: 1")
    with (
        watching(testbed.cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={testbed.name}") as nodes,
        watching(testbed.cluster, LEASES) as leases,
    ):
        with daemon(testbed) as one:
            waiting.until(lambda: kwoks(one) == [(True, False)] and len(holders(testbed)) == 1)
            save(testbed, IN_PODS)
            waiting.until(lambda: kwoks(one) == [(True, True)] * 2 and len(holders(testbed)) == 2)
            save(testbed, "shards: 2")
            waiting.until(lambda: kwoks(one) == [(True, False)] * 2 and len(holders(testbed)) == 2)
            assert not pods(testbed)
            save(testbed, IN_PODS)
            waiting.until(lambda: kwoks(one) == [(True, True)] * 2 and len(holders(testbed)) == 2)
        assert pods(testbed) == ["kwokfleet-kwok-0", "kwokfleet-kwok-1"], "they go on without a daemon"
        save(testbed, "shards: 1")
        with daemon(testbed) as one:
            waiting.until(lambda: kwoks(one) == [(True, False)] and len(holders(testbed)) == 1)
            assert not pods(testbed)
        assert not unready_nodes(nodes.events)
        assert not driven_twice(leases)


def test_a_pod_on_a_lost_machine_is_deleted_by_force(
    testbed: DaemonTestbed, machine: kubelet.Kubelet, tmp_path: Path
) -> None:
    """The next pod drives the nodes."""
    save(testbed, IN_PODS)
    with daemon(testbed) as one:
        waiting.until(lambda: kwoks(one) == [(True, True)] * 2 and len(holders(testbed)) == 2)
        before = holders(testbed)
        machine.power_off()
        with kubelet.running(testbed.cluster, tmp_path / "other", testbed.name):
            testbed.cluster.kubectl(
                "delete", "pods", "--all", "-n", testbed.name, "--wait=false"
            )  # as the node controller does
            waiting.until(lambda: len(holders(testbed)) == 2 and not holders(testbed) & before, deadline_s=120)
            waiting.until(lambda: kwoks(one) == [(True, True)] * 2)


def test_the_shards_overlay_works_with_its_own_rights(cluster: ControlPlane, tmp_path: Path) -> None:
    """Daemon and kwoks run in pods with their service accounts; two pods drive all nodes."""
    kwok.install_crds(cluster)
    wanted = deploy_manifests.kustomize("overlays/shards", tmp_path)
    files = next(each for each in wanted if each["metadata"]["name"] == "kwokfleet-fleets")
    files["data"]["fleet.yaml"] = files["data"]["fleet.yaml"].replace("replicas: 2000", f"replicas: {NODES}")
    text = "---\n".join(json.dumps(each) + "\n" for each in wanted)
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)
    try:
        with kubelet.running(cluster, tmp_path / "machine", deploy_manifests.NAMESPACE) as machine:
            waiting.until(lambda: driven_nodes(cluster) == NODES, deadline_s=120)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "deployment", "kwokfleet")
            pids = machine.pids()
            cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)  # takes nothing back
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            assert len(pids) == 3
            assert machine.pids() == pids
    finally:
        cluster.kubectl("delete", "--filename=-", "--wait=false", stdin=text)


def driven_nodes(cluster: ControlPlane) -> int:
    """Return the number of nodes that pods of kwok drive."""
    held = ("get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[*].spec.holderIdentity}")
    return sum(each.startswith(kwok_pods.NAME) for each in cluster.kubectl(*held).split())


def test_external_mode_removes_the_pods(testbed: DaemonTestbed, machine: kubelet.Kubelet) -> None:
    """A StatefulSet that was scaled by hand is repaired before."""
    save(testbed, IN_PODS)
    with daemon(testbed) as one:
        waiting.until(lambda: kwoks(one) == [(True, True)] * 2)
        testbed.cluster.kubectl("scale", "statefulset", kwok_pods.NAME, "--replicas=0", "-n", testbed.name)
        found = ("get", "statefulset", kwok_pods.NAME, "-n", testbed.name, "-o", "jsonpath={.spec.replicas}")
        waiting.until(lambda: testbed.cluster.kubectl(*found) == "2")
        waiting.until(lambda: len(holders(testbed)) == 2 and kwoks(one) == [(True, True)] * 2)
        save(testbed, "mode: external")
        waiting.until(lambda: not pods(testbed))
