"""kwok in the pods of a StatefulSet: sized and configured by us, run by Kubernetes, real kwoks for real nodes."""

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
from tests.integration.test_keeper import LONG_LEASE, went_down

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
    """Name a fleet, and remove what is left of it in the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def fleet(name: str, shards: int) -> str:
    """Write a fleet file."""
    return FLEET.format(name=name, nodes=NODES, shards=shards)


def wait_driven(kept: SupervisedKwok, shards: int) -> None:
    """Wait until so many pods hold the leases of all nodes, each of its own."""
    waiting.until(lambda: len(kept.keeper.statuses()) == shards)
    kept.wait_ready()

    def shared() -> bool:
        held = kept.leases()
        return len(held) == NODES and set(held.values()) == kept.identities() and len(kept.identities()) == shards

    waiting.until(shared)


def test_shards_in_pods_share_the_nodes_and_none_is_lost_when_they_become_more_or_fewer(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Two, three, one: every node is driven by exactly one pod, shows its address, and does not leave Ready."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2, port=10250, leaseDuration=LONG_LEASE) as (
        kept,
        machine,
    ):
        kept.sync(fleet(name, 2))
        wait_driven(kept, 2)
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as seen:
            for count in (3, 1):
                kept.change(shards=count)
                kept.sync(fleet(name, count))
                waiting.until(kept.keeper.finish_change)
                wait_driven(kept, count)
                pods = cluster.get("pods", "--namespace", name)["items"]
                assert {each["metadata"]["name"] for each in pods} == {f"kwokfleet-kwok-{n}" for n in range(count)}
            assert not went_down(seen.seen)
        waiting.until(lambda: addresses(cluster, name) == {machine.pod("kwokfleet-kwok-0").address})
        assert not kept.sync(fleet(name, 1)).outcomes, "addresses are kwok's, and nothing differs"


def addresses(cluster: ControlPlane, name: str) -> set[str]:
    """Return where nodes say that their kubelet is."""
    nodes = cluster.get("nodes", "--selector", f"kwokfleet.dev/fleet={name}")["items"]
    return {each["address"] for node in nodes for each in node["status"]["addresses"]}


def test_a_killed_pod_drives_its_nodes_again_and_only_what_needs_a_new_pod_gets_one(
    cluster: ControlPlane, kwokfleet: Cli, tmp_path: Path, name: str
) -> None:
    """However long leases are, nobody waits for them; another duration replaces pods, another memory limit does not."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2, leaseDuration=LONG_LEASE) as (kept, machine):
        kept.sync(fleet(name, 2))
        wait_driven(kept, 2)
        before = kept.identities()
        os.kill(machine.pod("kwokfleet-kwok-1").container().pid, signal.SIGKILL)
        waiting.until(lambda: kept.status(1).restarts == 1)
        wait_driven(kept, 2)
        assert len(before & kept.identities()) == 1
        assert kept.status(1).pod == "kwokfleet-kwok-1"
        waiting.until(lambda: kept.status(1).memory)
        shown = kwokfleet.ok(
            "kwok", "status", str(kept.folder / "fleet.yaml"), KUBECONFIG=str(cluster.kubeconfig), POD_NAMESPACE=name
        )
        assert {"kwokfleet-kwok-0", "kwokfleet-kwok-1"} <= set(shown.split())
        before = kept.identities()
        assert not kept.change(memory_limit="8Gi")
        assert kept.change(lease_duration=timedelta(seconds=80))
        waiting.until(lambda: not before & kept.identities())
        wait_driven(kept, 2)
        assert kept.status(0).restarts == 0


def test_pods_go_on_when_another_one_leads(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Who leaves ends nothing; who comes finds them as they are, and deletes and restarts none."""
    with kwok_pods.supervised(cluster, tmp_path, name, shards=2) as (kept, machine):
        kept.sync(fleet(name, 2))
        wait_driven(kept, 2)
        before, pids = kept.identities(), machine.pids()
        kept.keeper.__exit__(None, None, None)
        with supervised_kwok.running(
            cluster, tmp_path / "other", name, name, shards=2, statefulSet=kwok_pods.NAME
        ) as other:
            wait_driven(other, 2)
            assert other.identities() == before
        assert machine.pids() == pids
