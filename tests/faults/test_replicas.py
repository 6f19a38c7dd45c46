"""Two replicas on separate machines: after a kill the other continues, and all nodes stay Ready.

They have the ServiceAccount's rights, pod names and separate folders. So no replica can see that the process of
another is gone, as it could on one machine: the Lease must expire. Node monitoring has Kubernetes' defaults.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kwokfleet.embedded import state
from kwokfleet.kube import leader_election, leader_lease
from tests.harness import cli, control_plane, daemon_process, daemon_testbed, service_accounts, waiting, watch
from tests.harness.control_plane import ControlPlane

KILLS = 10
NODES = 500
JOBS_PER_S = 2
HANDOVER_S = leader_lease.LEASE_S + 2 * leader_election.RETRY_S
"""A candidate sees the last renewal late and polls at intervals."""
AS_IN_CLUSTERS = state.Spec(
    extra_args=(
        ("kube-controller-manager", "node-monitor-grace-period", "50s"),
        ("kube-controller-manager", "node-monitor-period", "5s"),
    )
)
"""Kubernetes defaults; the embedded cluster has a grace period four times as long."""
FLEET = f"""
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: busy}}
spec:
  nodePools:
    - {{name: pool, replicas: {NODES}}}
  waves:
    - name: load
      namespace: busy-load
      duration: 1h
      arrivals: {{rate: {JOBS_PER_S}/s}}
      template:
        apiVersion: batch/v1
        kind: Job
        spec:
          template:
            spec: {{restartPolicy: Never, containers: [{{name: main, image: none}}]}}
"""


@pytest.fixture(scope="module")
def replicas_cluster() -> Iterator[ControlPlane]:
    """Run a control plane with default node monitoring and kwokfleet's rights."""
    started = control_plane.running("replicas", AS_IN_CLUSTERS)
    cluster = next(started)
    service_accounts.install(cluster)
    yield cluster
    next(started, None)


class Replicas:
    """Daemon replicas, each with its own name and folders."""

    def __init__(self, testbed: daemon_testbed.DaemonTestbed, stack: ExitStack) -> None:
        self._testbed, self._stack = testbed, stack
        self._token = str(service_accounts.kubeconfig(testbed.cluster, testbed.folder))
        self._made = 0
        self.alive: list[daemon_process.DaemonProcess] = []

    def add(self) -> None:
        """Start another replica."""
        name = f"kwokfleet-{self._made}"
        self._made += 1
        data = self._testbed.folder / name
        variables = {"KWOKFLEET_DATA_DIR": str(data), "KUBECONFIG": self._token}
        variables |= {"POD_NAME": name, "POD_NAMESPACE": service_accounts.NAMESPACE}
        program = cli.Cli(data, self._testbed.program.environment)
        daemon = daemon_process.running(program, str(self._testbed.files), kwok=True, variables=variables)
        self.alive.append(self._stack.enter_context(daemon))

    @property
    def leader(self) -> daemon_process.DaemonProcess | None:
        """The leader, or None."""
        return next((replica for replica in self.alive if replica.is_leader), None)


def is_ready(node: watch.Manifest) -> bool:
    """Return whether a node is Ready."""
    conditions = node["status"].get("conditions") or ()
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def serves(replica: daemon_process.DaemonProcess) -> bool:
    """Return whether its readiness probe passes: synced, and kwok is ready."""
    try:
        return bool(replica.text("/readyz"))
    except OSError:
        return False


def is_driven_by_one(cluster: ControlPlane) -> bool:
    """Return whether one kwok holds the leases of all nodes."""
    held = cluster.get("leases", "--namespace=kube-node-lease")["items"]
    return len(held) == NODES and len({lease["spec"]["holderIdentity"] for lease in held}) == 1


@pytest.mark.timeout(900)
def test_the_leader_is_killed_again_and_again_under_load(
    replicas_cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path
) -> None:
    """A new leader within the lease time, no duplicate or missing Job, and all nodes always Ready."""
    with ExitStack() as stack:
        testbed = daemon_testbed.DaemonTestbed(replicas_cluster, kwokfleet, tmp_path)
        (testbed.files / "fleet.yaml").write_text(FLEET)
        replicas = Replicas(testbed, stack)
        replicas.add()
        replicas.add()
        waiting.until(lambda: replicas.leader and serves(replicas.leader))
        waiting.until(lambda: len(ready := testbed.nodes("busy")) == NODES and all(map(is_ready, ready)))
        nodes = stack.enter_context(watch.watching(replicas_cluster, "/api/v1/nodes"))
        jobs = stack.enter_context(watch.watching(replicas_cluster, "/apis/batch/v1/namespaces/busy-load/jobs"))
        for _ in range(KILLS):
            before = len(jobs.events)
            waiting.until(lambda before=before: len(jobs.events) > before)  # type: ignore[misc]  # the wave continues
            lead = replicas.leader
            assert lead is not None
            replicas.alive.remove(lead)
            lead.kill()
            replicas.add()
            waiting.until(lambda: replicas.leader, deadline_s=HANDOVER_S)
            waiting.until(lambda: (leader := replicas.leader) and serves(leader))
            waiting.until(lambda: is_driven_by_one(replicas_cluster))
        assert {manifest["metadata"]["name"] for _, _, manifest in nodes.events if not is_ready(manifest)} == set()
        assert len({manifest["metadata"]["name"] for _, _, manifest in nodes.events}) == NODES
        waiting.until(lambda: has_no_gap(jobs))
        jobs_created = {(manifest["metadata"]["name"], manifest["metadata"]["uid"]) for _, _, manifest in jobs.events}
        assert len(jobs_created) == len({name for name, _ in jobs_created}) > KILLS * JOBS_PER_S


def has_no_gap(jobs: watch.RecordedWatch) -> bool:
    """Return whether there is no gap in the Job indexes."""
    numbers = {int(manifest["metadata"]["annotations"]["kwokfleet.dev/index"]) for _, _, manifest in list(jobs.events)}
    return numbers == set(range(len(numbers)))
