"""kwok in pods under daemons that die, and files that change their mind about where kwok runs."""

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
from tests.integration.test_keeper import went_down

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
    """Keep a control plane of these tests' own, in which nodes that nobody drives become NotReady."""
    yield from control_plane.running("kwok-pods")


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Give a test a folder and a namespace with kwok's StatefulSet, with nothing of ours in the cluster."""
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
    """Say how kwok runs."""
    (testbed.files / "fleet.yaml").write_text(testbed.text(NODES) + CONTROLLER.format(how=how))


def daemon(testbed: DaemonTestbed) -> Any:  # noqa: ANN401  # a context manager
    """Run a daemon that is at home in the namespace."""
    return testbed.run(kwok=True, through={"POD_NAMESPACE": testbed.name})


def kwoks(one: daemon_process.DaemonProcess) -> list[tuple[bool, bool]]:
    """Return of each kwok whether it is ready, and whether it is a pod."""
    return [(each["state"] == "ready", bool(each["pod"])) for each in one.get("/api/v1/kwok")]


def holders(testbed: DaemonTestbed) -> set[str]:
    """Return who holds the nodes' leases; nobody unless each is held."""
    there = testbed.cluster.get("leases", "-n", "kube-node-lease")["items"]
    held = [each for each in there if each["metadata"]["name"].startswith(testbed.name)]
    found = [each["spec"].get("holderIdentity") or "" for each in held]
    return set(found) if len(found) == NODES and all(found) else set()


def pods(testbed: DaemonTestbed) -> list[str]:
    """Return the pods of the namespace."""
    return sorted(each["metadata"]["name"] for each in testbed.cluster.get("pods", "-n", testbed.name)["items"])


def came_back(seen: RecordedWatch) -> list[str]:
    """Return nodes whose lease somebody held again after another one did: two drove it."""
    by_node: dict[str, list[str]] = {}
    for _, kind, lease in list(seen.seen):
        if kind != "DELETED":
            by_node.setdefault(lease["metadata"]["name"], []).append(lease["spec"].get("holderIdentity") or "")
    turns = {name: [who for who, _ in itertools.groupby(held)] for name, held in by_node.items()}
    return [name for name, held in turns.items() if len(held) != len(set(held))]


def test_pods_do_not_notice_that_their_daemon_was_killed(testbed: DaemonTestbed, machine: kubelet.Kubelet) -> None:
    """Another one leads, shows them as they are, and neither replaces nor restarts any."""
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
    """As the files say, there and back, also when they change while no daemon runs; no node leaves Ready."""
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
        assert not went_down(nodes.seen)
        assert not came_back(leases)


def test_a_pod_whose_machine_is_lost_is_not_waited_for(
    testbed: DaemonTestbed, machine: kubelet.Kubelet, tmp_path: Path
) -> None:
    """Nobody will ever say that it has ended; another machine runs the next one, which drives the nodes."""
    save(testbed, IN_PODS)
    with daemon(testbed) as one:
        waiting.until(lambda: kwoks(one) == [(True, True)] * 2 and len(holders(testbed)) == 2)
        before = holders(testbed)
        machine.lose()
        with kubelet.running(testbed.cluster, tmp_path / "other", testbed.name):
            testbed.cluster.kubectl(
                "delete", "pods", "--all", "-n", testbed.name, "--wait=false"
            )  # as the node controller does
            waiting.until(lambda: len(holders(testbed)) == 2 and not holders(testbed) & before, deadline_s=120)
            waiting.until(lambda: kwoks(one) == [(True, True)] * 2)


def test_the_overlay_of_shards_works_with_no_more_rights_than_it_brings(cluster: ControlPlane, tmp_path: Path) -> None:
    """Daemon and kwoks in pods, each with the token of its own account: all nodes are driven, by two pods."""
    kwok.install_crds(cluster)
    wanted = deploy_manifests.kustomize("overlays/shards", tmp_path)
    files = next(each for each in wanted if each["metadata"]["name"] == "kwokfleet-fleets")
    files["data"]["fleet.yaml"] = files["data"]["fleet.yaml"].replace("replicas: 2000", f"replicas: {NODES}")
    text = "---\n".join(json.dumps(each) + "\n" for each in wanted)
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)
    try:
        with kubelet.running(cluster, tmp_path / "machine", deploy_manifests.NAMESPACE) as machine:
            waiting.until(lambda: driven(cluster) == NODES, deadline_s=120)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "deployment", "kwokfleet")
            pids = machine.pids()
            cluster.kubectl("apply", "--server-side", "--filename=-", stdin=text)  # takes nothing back
            kubelet.wait_ready(cluster, deploy_manifests.NAMESPACE, "statefulset", kwok_pods.NAME)
            assert len(pids) == 3
            assert machine.pids() == pids
    finally:
        cluster.kubectl("delete", "--filename=-", "--wait=false", stdin=text)


def driven(cluster: ControlPlane) -> int:
    """Count the nodes that kwok's pods drive."""
    held = ("get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[*].spec.holderIdentity}")
    return sum(each.startswith(kwok_pods.NAME) for each in cluster.kubectl(*held).split())


def test_pods_end_when_somebody_else_runs_kwok(testbed: DaemonTestbed, machine: kubelet.Kubelet) -> None:
    """And a StatefulSet that is scaled by hand is put right."""
    save(testbed, IN_PODS)
    with daemon(testbed) as one:
        waiting.until(lambda: kwoks(one) == [(True, True)] * 2)
        testbed.cluster.kubectl("scale", "statefulset", kwok_pods.NAME, "--replicas=0", "-n", testbed.name)
        found = ("get", "statefulset", kwok_pods.NAME, "-n", testbed.name, "-o", "jsonpath={.spec.replicas}")
        waiting.until(lambda: testbed.cluster.kubectl(*found) == "2")
        waiting.until(lambda: len(holders(testbed)) == 2 and kwoks(one) == [(True, True)] * 2)
        save(testbed, "mode: external")
        waiting.until(lambda: not pods(testbed))
