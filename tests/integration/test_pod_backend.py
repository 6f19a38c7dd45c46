"""kwok in pods of a StatefulSet, with real kwoks and nodes."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.harness import kwok_pods, supervised_kwok, waiting
from tests.harness.cli import Cli
from tests.harness.control_plane import ControlPlane
from tests.harness.supervised_kwok import SupervisedKwok
from tests.harness.watch import watching
from tests.integration.test_supervisor import LONG_LEASE, unready_nodes

NODES = 40
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}}}
spec:
  nodePools:
    - {{name: pool, replicas: {nodes}, taint: false}}
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{shards: {shards}, statefulSet: kwokfleet-kwok, port: 10250}}
"""


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Return the name of a new fleet; delete its objects at the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def fleet(name: str, shards: int) -> str:
    """Return a fleet file."""
    return FLEET.format(name=name, nodes=NODES, shards=shards)


def wait_driven(supervised: SupervisedKwok, shards: int) -> None:
    """Wait until this number of pods holds the leases of all nodes."""
    waiting.until(lambda: len(supervised.supervisor.statuses()) == shards)
    supervised.wait_ready()

    def shared() -> bool:
        leases = supervised.leases()
        return (
            len(leases) == NODES
            and set(leases.values()) == supervised.identities()
            and len(supervised.identities()) == shards
        )

    waiting.until(shared)


def test_shards_in_pods_scale_up_and_down_without_losing_nodes(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Each node has one driver and its address, and none leaves Ready."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2, port=10250, leaseDuration=LONG_LEASE) as (
        supervised,
        pod_kubelet,
    ):
        supervised.sync(fleet(name, 2))
        wait_driven(supervised, 2)
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as node_watch:
            for count in (3, 1):
                supervised.change(shards=count)
                supervised.sync(fleet(name, count))
                waiting.until(supervised.supervisor.finish_change)
                wait_driven(supervised, count)
                pods = cluster.get("pods", "--namespace", name)["items"]
                assert {pod["metadata"]["name"] for pod in pods} == {f"kwokfleet-kwok-{n}" for n in range(count)}
            assert not unready_nodes(node_watch.events)
        waiting.until(lambda: addresses(cluster, name) == {pod_kubelet.pod("kwokfleet-kwok-0").address})
        assert not supervised.sync(fleet(name, 1)).outcomes, "addresses set by kwok are no difference"


def addresses(cluster: ControlPlane, name: str) -> set[str]:
    """Return the kubelet addresses of the nodes."""
    nodes = cluster.get("nodes", "--selector", f"kwokfleet.dev/fleet={name}")["items"]
    return {address["address"] for node in nodes for address in node["status"]["addresses"]}


def test_a_killed_pod_drives_its_nodes_again_at_once(
    cluster: ControlPlane, kwokfleet: Cli, tmp_path: Path, name: str
) -> None:
    """Another lease duration replaces the pods, another memory limit does not."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2, leaseDuration=LONG_LEASE) as (supervised, pod_kubelet):
        supervised.sync(fleet(name, 2))
        wait_driven(supervised, 2)
        before = supervised.identities()
        os.kill(pod_kubelet.pod("kwokfleet-kwok-1").container().pid, signal.SIGKILL)
        waiting.until(lambda: supervised.status(1).restarts == 1)
        wait_driven(supervised, 2)
        assert len(before & supervised.identities()) == 1
        assert supervised.status(1).pod == "kwokfleet-kwok-1"
        waiting.until(lambda: supervised.status(1).memory)
        output = kwokfleet.ok(
            "kwok",
            "status",
            str(supervised.folder / "fleet.yaml"),
            KUBECONFIG=str(cluster.kubeconfig),
            POD_NAMESPACE=name,
        )
        assert {"kwokfleet-kwok-0", "kwokfleet-kwok-1"} <= set(output.split())
        before = supervised.identities()
        assert not supervised.change(memory_limit="8Gi")
        assert supervised.change(lease_duration=timedelta(seconds=80))
        waiting.until(lambda: not before & supervised.identities())
        wait_driven(supervised, 2)
        assert supervised.status(0).restarts == 0


def test_pods_continue_when_another_daemon_leads(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """The next supervisor adopts them and restarts none."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2) as (supervised, pod_kubelet):
        supervised.sync(fleet(name, 2))
        wait_driven(supervised, 2)
        before, pids = supervised.identities(), pod_kubelet.pids()
        supervised.supervisor.__exit__(None, None, None)
        with supervised_kwok.running(
            cluster, tmp_path / "other", name, name, shards=2, statefulSet=kwok_pods.NAME
        ) as other:
            wait_driven(other, 2)
            assert other.identities() == before
        assert pod_kubelet.pids() == pids
