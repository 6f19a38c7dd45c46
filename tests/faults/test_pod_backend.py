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
spec: {{{fields}}}
"""
IN_PODS = "shards: 2, statefulSet: kwokfleet-kwok"


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[ControlPlane]:
    """Return a control plane for these tests, in which undriven nodes become NotReady."""
    yield from control_plane.running("kwok-pods")


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed with a namespace and kwok's StatefulSet."""
    for testbed in daemon_testbed.opened(cluster, kwokfleet, tmp_path):
        cluster.kubectl("create", "namespace", testbed.name)
        kwok_pods.install(cluster, testbed.name)
        yield testbed
        kwok_pods.uninstall(cluster, testbed.name)
        cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


@pytest.fixture
def pod_kubelet(testbed: DaemonTestbed, tmp_path: Path) -> Iterator[kubelet.Kubelet]:
    """Run the pods of the namespace."""
    with kubelet.running(testbed.cluster, tmp_path / "machine", testbed.name) as pod_kubelet:
        yield pod_kubelet


def save(testbed: DaemonTestbed, fields: str) -> None:
    """Write the fleet file with fields of the KwokController."""
    (testbed.files / "fleet.yaml").write_text(testbed.text(NODES) + CONTROLLER.format(fields=fields))


def daemon(testbed: DaemonTestbed) -> Any:  # noqa: ANN401  # a context manager
    """Run a daemon in the namespace."""
    return testbed.run(kwok=True, through={"POD_NAMESPACE": testbed.name})


def kwok_states(process: daemon_process.DaemonProcess) -> list[tuple[bool, bool]]:
    """Return of each kwok whether it is ready, and whether it is a pod."""
    return [(kwok["state"] == "ready", bool(kwok["pod"])) for kwok in process.get("/api/v1/kwok")]


def holders(testbed: DaemonTestbed) -> set[str]:
    """Return the lease holders of the nodes; empty unless each node has one."""
    leases = testbed.cluster.get("leases", "-n", "kube-node-lease")["items"]
    held = [lease for lease in leases if lease["metadata"]["name"].startswith(testbed.name)]
    holder_names = [lease["spec"].get("holderIdentity") or "" for lease in held]
    return set(holder_names) if len(holder_names) == NODES and all(holder_names) else set()


def pods(testbed: DaemonTestbed) -> list[str]:
    """Return the pods of the namespace."""
    return sorted(pod["metadata"]["name"] for pod in testbed.cluster.get("pods", "-n", testbed.name)["items"])


def driven_twice(lease_watch: RecordedWatch) -> list[str]:
    """Return the nodes whose former lease holder came back: two kwoks drove it."""
    by_node: dict[str, list[str]] = {}
    for _, kind, lease in list(lease_watch.events):
        if kind != "DELETED":
            by_node.setdefault(lease["metadata"]["name"], []).append(lease["spec"].get("holderIdentity") or "")
    turns = {name: [holder for holder, _ in itertools.groupby(held)] for name, held in by_node.items()}
    return [name for name, held in turns.items() if len(held) != len(set(held))]


def test_pods_continue_after_their_daemon_was_killed(testbed: DaemonTestbed, pod_kubelet: kubelet.Kubelet) -> None:
    """The next leader adopts them and restarts none."""
    save(testbed, IN_PODS)
    with ExitStack() as stack:
        daemons = [stack.enter_context(daemon(testbed)) for _ in range(2)]
        waiting.until(lambda: len(holders(testbed)) == 2)
        before, pids = holders(testbed), pod_kubelet.pids()
        [lead] = [candidate for candidate in daemons if candidate.is_leader]
        waiting.until(lambda: kwok_states(lead) == [(True, True)] * 2)
        daemons.remove(lead)
        lead.kill()
        waiting.until(lambda: daemons[0].is_leader and kwok_states(daemons[0]) == [(True, True)] * 2)
        daemons[0].wait_synced()
        assert daemons[0].text("/readyz") == "ready\n"
        assert holders(testbed) == before
        assert pod_kubelet.pids() == pids


def test_kwok_moves_between_pods_and_processes_and_no_node_is_driven_twice(
    testbed: DaemonTestbed, pod_kubelet: kubelet.Kubelet
) -> None:
    """The files change with and without a running daemon; no node leaves Ready."""
    save(testbed, "shards: 1")
    with (
        watching(testbed.cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={testbed.name}") as nodes,
        watching(testbed.cluster, LEASES) as leases,
    ):
        with daemon(testbed) as process:
            waiting.until(lambda: kwok_states(process) == [(True, False)] and len(holders(testbed)) == 1)
            save(testbed, IN_PODS)
            waiting.until(lambda: kwok_states(process) == [(True, True)] * 2 and len(holders(testbed)) == 2)
            save(testbed, "shards: 2")
            waiting.until(lambda: kwok_states(process) == [(True, False)] * 2 and len(holders(testbed)) == 2)
            assert not pods(testbed)
            save(testbed, IN_PODS)
            waiting.until(lambda: kwok_states(process) == [(True, True)] * 2 and len(holders(testbed)) == 2)
        assert pods(testbed) == ["kwokfleet-kwok-0", "kwokfleet-kwok-1"], "the pods continue without a daemon"
        save(testbed, "shards: 1")
        with daemon(testbed) as process:
            waiting.until(lambda: kwok_states(process) == [(True, False)] and len(holders(testbed)) == 1)
            assert not pods(testbed)
        assert not unready_nodes(nodes.events)
        assert not driven_twice(leases)


def test_a_pod_on_a_lost_machine_is_deleted_by_force(
    testbed: DaemonTestbed, pod_kubelet: kubelet.Kubelet, tmp_path: Path
) -> None:
    """The next pod drives the nodes."""
    save(testbed, IN_PODS)
    with daemon(testbed) as process:
        waiting.until(lambda: kwok_states(process) == [(True, True)] * 2 and len(holders(testbed)) == 2)
        before = holders(testbed)
        pod_kubelet.power_off()
        with kubelet.running(testbed.cluster, tmp_path / "other", testbed.name):
            testbed.cluster.kubectl(
                "delete", "pods", "--all", "-n", testbed.name, "--wait=false"
            )  # as the node controller does
            waiting.until(lambda: len(holders(testbed)) == 2 and not holders(testbed) & before, deadline_s=120)
            waiting.until(lambda: kwok_states(process) == [(True, True)] * 2)


def test_the_shards_overlay_works_with_its_own_rights(cluster: ControlPlane, tmp_path: Path) -> None:
    """Daemon and kwoks run in pods with their service accounts; two pods drive all nodes."""
    kwok.install_crds(cluster)
    objects = deploy_manifests.kustomize("overlays/shards", tmp_path)
    files = next(manifest for manifest in objects if manifest["metadata"]["name"] == "kwokfleet-fleets")
    files["data"]["fleet.yaml"] = files["data"]["fleet.yaml"].replace("replicas: 2000", f"replicas: {NODES}")
    text = "---\n".join(json.dumps(manifest) + "\n" for manifest in objects)
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)
    try:
        with kubelet.running(cluster, tmp_path / "machine", deploy_manifests.NAMESPACE) as pod_kubelet:
            waiting.until(lambda: driven_nodes(cluster) == NODES, deadline_s=120)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "deployment", "kwokfleet")
            pids = pod_kubelet.pids()
            cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)  # does not undo anything
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            assert len(pids) == 3
            assert pod_kubelet.pids() == pids
    finally:
        cluster.kubectl("delete", "--filename=-", "--wait=false", stdin=text)


def driven_nodes(cluster: ControlPlane) -> int:
    """Return the number of nodes that pods of kwok drive."""
    held = ("get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[*].spec.holderIdentity}")
    return sum(holder.startswith(kwok_pods.NAME) for holder in cluster.kubectl(*held).split())


def test_external_mode_removes_the_pods(testbed: DaemonTestbed, pod_kubelet: kubelet.Kubelet) -> None:
    """A StatefulSet that was scaled by hand is repaired before."""
    save(testbed, IN_PODS)
    with daemon(testbed) as process:
        waiting.until(lambda: kwok_states(process) == [(True, True)] * 2)
        testbed.cluster.kubectl("scale", "statefulset", kwok_pods.NAME, "--replicas=0", "-n", testbed.name)
        get_replicas = ("get", "statefulset", kwok_pods.NAME, "-n", testbed.name, "-o", "jsonpath={.spec.replicas}")
        waiting.until(lambda: testbed.cluster.kubectl(*get_replicas) == "2")
        waiting.until(lambda: len(holders(testbed)) == 2 and kwok_states(process) == [(True, True)] * 2)
        save(testbed, "mode: external")
        waiting.until(lambda: not pods(testbed))
