"""The Supervisor with real nodes and pods: kills, restarts, changes and shards."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kwok import shard, supervisor
from tests.harness import supervised_kwok, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.watch import watching

LONG_LEASE = "600s"
"""Longer than any test: no test waits for its expiry."""
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
spec: {{shards: {shards}}}
"""


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Return the name of a new fleet; delete its objects at the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def fleet(name: str, nodes: int, shards: int = 1) -> str:
    """Return a fleet file."""
    return FLEET.format(name=name, nodes=nodes, shards=shards)


def unready_nodes(states: list[tuple[float, str, dict[str, Any]]]) -> list[str]:
    """Return the nodes that were not Ready at some time."""
    return [
        node["metadata"]["name"]
        for _, kind, node in states
        if kind != "DELETED"
        and any(
            condition["type"] == "Ready" and condition["status"] != "True" for condition in node["status"]["conditions"]
        )
    ]


def run_job(cluster: ControlPlane, namespace: str, pods: int) -> None:
    """Start a Job on nodes of the fleet, with its lifecycle `work`."""
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work", "namespace": namespace},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"kwokfleet.dev/lifecycle": f"{namespace}.work"}},
                "spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {"kwokfleet.dev/fleet": namespace},
                    "containers": [{"name": "main", "image": "busybox"}],
                },
            },
        },
    }
    cluster.apply(manifest)


def phases(cluster: ControlPlane, namespace: str) -> list[str]:
    """Return the phases of the Job's pods."""
    selection = ("--selector", "job-name=work", "-o", "jsonpath={.items[*].status.phase}")
    return cluster.kubectl("get", "pods", "-n", namespace, *selection).split()


def test_a_killed_kwok_drives_its_nodes_again_at_once(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """After kill -9 pods run without waiting for old leases, Jobs finish, and no node leaves Ready."""
    lifecycle = "\n  lifecycles: [{name: work, pod: {ready: 0s, complete: {after: 4s}}}]"
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as supervised:
        supervised.sync(fleet(name, 500).replace("taint: false}", "taint: false}" + lifecycle))
        supervised.wait_ready()
        before = supervised.status()
        waiting.until(lambda: len(supervised.leases()) == 500)
        run_job(cluster, name, 20)
        waiting.until(lambda: len(phases(cluster, name)) == 20)
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as node_watch:
            waiting.until(lambda: "Running" in phases(cluster, name))
            os.kill(before.pid, signal.SIGKILL)
            assert "Running" in phases(cluster, name)
            waiting.until(lambda: supervised.status().pid not in (0, before.pid))
            supervised_kwok.run_pod(cluster, name, "after", f"{name}-pool-499")
            waiting.until(lambda: supervised_kwok.phase(cluster, name, "after") == "Running")
            waiting.until(lambda: set(supervised.leases().values()) == {supervised.status().identity})
            waiting.until(lambda: phases(cluster, name) == ["Succeeded"] * 20)
            cluster.kubectl("wait", "--for=condition=Complete", "job/work", "-n", name, "--timeout=60s")
            assert not unready_nodes(node_watch.events)
        assert supervised.status().identity != before.identity
        assert supervised.status().restarts == 1


def test_twenty_kills_in_a_row_are_survived_with_growing_pauses(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """The status shows the number of restarts and the pause."""
    pauses = []
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as supervised:
        supervised.sync(fleet(name, 3))
        for number in range(1, 21):
            pid = waiting.until(lambda: supervised.status().pid, deadline_s=90)
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda number=number: supervised.status().restarts == number)  # type: ignore[misc]
            pauses.append(supervised.status().pause_s)
            if pauses[-1]:
                supervised.supervisor.restart()  # a manual restart skips the pause
        supervised.wait_ready()
    assert pauses[:2] == [0, 0]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 1


def test_a_healthy_kwok_costs_no_requests(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Lease renewals are watched, not polled."""

    def silent() -> bool:
        with cluster.counted_requests() as counted:
            time.sleep(2 * shard.CHECK_S)
        return not counted.of("GET", "leases")

    with supervised_kwok.running(cluster, tmp_path, name) as supervised:
        supervised.sync(fleet(name, 8))
        supervised.wait_ready()
        waiting.until(silent)
        assert supervised.status().identity in set(supervised.leases().values())
        assert supervised.status().state is shard.ShardState.READY


def test_a_changed_stage_applies_to_running_pods(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Kwok is not restarted for it."""
    lifecycle = "\n  lifecycles:\n    - {name: short, pod: {ready: 0s, complete: {after: AFTER, when: always}}}"
    text = fleet(name, 2).replace("taint: false}", "taint: false}" + lifecycle)
    with supervised_kwok.running(cluster, tmp_path, name) as supervised:
        supervised.sync(text.replace("AFTER", "10h"))
        supervised.wait_ready()
        pid = supervised.status().pid
        supervised_kwok.run_pod(cluster, name, "long", f"{name}-pool-0")
        cluster.kubectl("label", "pod", "long", "-n", name, f"kwokfleet.dev/lifecycle={name}.short")
        waiting.until(lambda: supervised_kwok.phase(cluster, name, "long") == "Running")
        supervised.sync(text.replace("AFTER", "0s"))
        waiting.until(lambda: supervised_kwok.phase(cluster, name, "long") == "Succeeded")
        assert supervised.status().pid == pid
        assert supervised.status().restarts == 0


def test_only_relevant_changes_restart_kwok(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Another lease duration needs one new process; another memory limit needs none."""
    with supervised_kwok.running(cluster, tmp_path, name) as supervised:
        supervised.sync(fleet(name, 2))
        supervised.wait_ready()
        pid = supervised.status().pid
        assert not supervised.change(memory_limit="8Gi")
        assert supervised.status().pid == pid
        assert supervised.change(lease_duration=timedelta(seconds=80))
        waiting.until(lambda: supervised.status().pid not in (0, pid))
        supervised.wait_ready()
        waiting.until(lambda: set(supervised.leases().values()) == {supervised.status().identity})
        assert supervised.status().restarts == 0


def test_a_kwok_above_its_memory_limit_is_restarted_with_growing_pauses(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """The status shows the reason."""
    with supervised_kwok.running(cluster, tmp_path, name, memoryLimit="1Gi") as supervised:
        supervised.sync(fleet(name, 2))
        supervised.wait_ready()
        pid = supervised.status().pid
        supervised.change(memory_limit="8Mi")
        waiting.until(lambda: supervised.status().restarts)
        assert not supervised_kwok.process_exists(pid)
        waiting.until(lambda: supervised.status().pause_s >= 1, deadline_s=90)
        [status] = supervisor.read_status(supervised.folder / "kwok") or []
        assert status.why.endswith("exceeds the limit 8Mi")
        supervised.change(memory_limit="1Gi")
        supervised.wait_ready()


def test_a_third_shard_takes_nodes_without_losing_any(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Each node has exactly one driver, and none leaves Ready."""
    with supervised_kwok.running(cluster, tmp_path, name, shards=2) as supervised:
        supervised.sync(fleet(name, 1000, 2))
        supervised.wait_ready()
        waiting.until(lambda: len(supervised.leases()) == 1000)
        held = supervised.leases()
        assert set(held.values()) == {status.identity for status in supervised.supervisor.statuses()}
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as node_watch:
            supervised.change(shards=3)
            supervised.sync(fleet(name, 1000, 3))
            supervised.wait_ready()
            waiting.until(lambda: len(set(supervised.leases().values())) == 3 and len(supervised.leases()) == 1000)
            assert set(supervised.leases().values()) == {status.identity for status in supervised.supervisor.statuses()}
            assert not unready_nodes(node_watch.events)
        shards = {
            node.manifest["metadata"]["labels"]["kwokfleet.dev/shard"]
            for node in supervised.nodes.view().objects.values()
        }
        assert shards == {"0", "1", "2"}


def test_one_shard_becomes_two_and_one_again_without_waiting_for_leases(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """A shard that drives all nodes does so until they have shard labels; the last shard takes them all at once."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as supervised:
        supervised.sync(fleet(name, 24))
        supervised.wait_ready()
        pid = supervised.status().pid
        assert not supervised.change(shards=2)
        assert not supervised.supervisor.finish_change()
        assert [status.pid for status in supervised.supervisor.statuses()] == [pid], "no node has a shard label yet"
        for count in (2, 1):
            supervised.change(shards=count)
            supervised.sync(fleet(name, 24, count))
            waiting.until(supervised.supervisor.finish_change)
            supervised.wait_ready()
            waiting.until(
                lambda: len(supervised.leases()) == 24 and set(supervised.leases().values()) == supervised.identities()
            )
            assert len(supervised.identities()) == count


def test_moved_nodes_and_their_pods_are_driven_at_once(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """No lease has to expire, and pods with a pending delay complete."""
    lifecycle = "\n  lifecycles:\n    - {name: work, pod: {ready: 0s, complete: {after: 8s}}}"
    with supervised_kwok.running(cluster, tmp_path, name, shards=3, leaseDuration=LONG_LEASE) as supervised:
        for count in (3, 2):
            supervised.change(shards=count)
            supervised.sync(fleet(name, 60, count).replace("taint: false}", "taint: false}" + lifecycle))
            waiting.until(supervised.supervisor.finish_change)
            if count == 3:
                supervised.wait_ready()
                run_job(cluster, name, 60)
                waiting.until(lambda: phases(cluster, name) == ["Running"] * 60)
        waiting.until(
            lambda: len(supervised.leases()) == 60 and set(supervised.leases().values()) == supervised.identities()
        )
        waiting.until(lambda: phases(cluster, name) == ["Succeeded"] * 60)


def test_a_rejected_configuration_is_not_retried_in_a_loop(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """The status has kwok's own error."""
    with supervised_kwok.running(cluster, tmp_path, name, stagesAs="file") as supervised:
        waiting.until(lambda: supervised.status().state is shard.ShardState.REFUSED)
        assert "no stages found" in supervised.status().why
        assert supervised.status().restarts == 1
