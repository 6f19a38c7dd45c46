"""kwok, looked after: killed, restarted, reconfigured and sharded under real nodes and pods."""

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
"""So long that nobody could have waited for it to expire."""
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
    """Name a fleet, and remove what is left of it in the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def fleet(name: str, nodes: int, shards: int = 1) -> str:
    """Write a fleet file."""
    return FLEET.format(name=name, nodes=nodes, shards=shards)


def went_down(states: list[tuple[float, str, dict[str, Any]]]) -> list[str]:
    """Return the nodes that were seen not Ready."""
    return [
        thing["metadata"]["name"]
        for _, kind, thing in states
        if kind != "DELETED"
        and any(each["type"] == "Ready" and each["status"] != "True" for each in thing["status"]["conditions"])
    ]


def run_job(cluster: ControlPlane, namespace: str, pods: int) -> None:
    """Start a Job on nodes of the fleet; its lifecycle is the fleet's `work`."""
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
    """Return the phases of all pods of a Job."""
    chosen = ("--selector", "job-name=work", "-o", "jsonpath={.items[*].status.phase}")
    return cluster.kubectl("get", "pods", "-n", namespace, *chosen).split()


def test_a_killed_kwok_is_back_and_driving_at_once(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """After kill -9 pods run again without anybody waiting for old leases, jobs finish, and no node leaves Ready."""
    lifecycle = "\n  lifecycles: [{name: work, pod: {ready: 0s, complete: {after: 4s}}}]"
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as kept:
        kept.sync(fleet(name, 500).replace("taint: false}", "taint: false}" + lifecycle))
        kept.wait_ready()
        before = kept.status()
        waiting.until(lambda: len(kept.leases()) == 500)
        run_job(cluster, name, 20)
        waiting.until(lambda: len(phases(cluster, name)) == 20)
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as seen:
            waiting.until(lambda: "Running" in phases(cluster, name))
            os.kill(before.pid, signal.SIGKILL)
            assert "Running" in phases(cluster, name)
            waiting.until(lambda: kept.status().pid not in (0, before.pid))
            supervised_kwok.run_pod(cluster, name, "after", f"{name}-pool-499")
            waiting.until(lambda: supervised_kwok.phase(cluster, name, "after") == "Running")
            waiting.until(lambda: set(kept.leases().values()) == {kept.status().identity})
            waiting.until(lambda: phases(cluster, name) == ["Succeeded"] * 20)
            cluster.kubectl("wait", "--for=condition=Complete", "job/work", "-n", name, "--timeout=60s")
            assert not went_down(seen.seen)
        assert kept.status().identity != before.identity
        assert kept.status().restarts == 1


def test_twenty_kills_in_a_row_are_survived_with_longer_and_longer_pauses(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Each time it comes back; who looks sees how often it ended and how long it waits."""
    pauses = []
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as kept:
        kept.sync(fleet(name, 3))
        for number in range(1, 21):
            pid = waiting.until(lambda: kept.status().pid, deadline_s=90)
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda number=number: kept.status().restarts == number)  # type: ignore[misc]
            pauses.append(kept.status().pause_s)
            if pauses[-1]:
                kept.keeper.restart()  # a person who does not want to wait
        kept.wait_ready()
    assert pauses[:2] == [0, 0]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 1


def test_a_kwok_that_does_its_work_is_looked_after_without_a_request(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Renewals are heard, not asked for, so that an idle fleet costs nothing; and it is still known who drives."""

    def silent() -> bool:
        with cluster.counted_requests() as counted:
            time.sleep(2 * shard.CHECK_S)
        return not counted.of("GET", "leases")

    with supervised_kwok.running(cluster, tmp_path, name) as kept:
        kept.sync(fleet(name, 8))
        kept.wait_ready()
        waiting.until(silent)
        assert kept.status().identity in set(kept.leases().values())
        assert kept.status().state is shard.ShardState.READY


def test_a_changed_stage_reaches_pods_that_are_there(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """An edited Stage takes effect on running pods, and kwok is not restarted for it."""
    lifecycle = "\n  lifecycles:\n    - {name: short, pod: {ready: 0s, complete: {after: AFTER, when: always}}}"
    text = fleet(name, 2).replace("taint: false}", "taint: false}" + lifecycle)
    with supervised_kwok.running(cluster, tmp_path, name) as kept:
        kept.sync(text.replace("AFTER", "10h"))
        kept.wait_ready()
        pid = kept.status().pid
        supervised_kwok.run_pod(cluster, name, "long", f"{name}-pool-0")
        cluster.kubectl("label", "pod", "long", "-n", name, f"kwokfleet.dev/lifecycle={name}.short")
        waiting.until(lambda: supervised_kwok.phase(cluster, name, "long") == "Running")
        kept.sync(text.replace("AFTER", "0s"))
        waiting.until(lambda: supervised_kwok.phase(cluster, name, "long") == "Succeeded")
        assert kept.status().pid == pid
        assert kept.status().restarts == 0


def test_only_what_needs_a_restart_restarts(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Another lease duration means one new process; a change that kwok would not notice means none."""
    with supervised_kwok.running(cluster, tmp_path, name) as kept:
        kept.sync(fleet(name, 2))
        kept.wait_ready()
        pid = kept.status().pid
        assert not kept.change(memory_limit="8Gi")
        assert kept.status().pid == pid
        assert kept.change(lease_duration=timedelta(seconds=80))
        waiting.until(lambda: kept.status().pid not in (0, pid))
        kept.wait_ready()
        waiting.until(lambda: set(kept.leases().values()) == {kept.status().identity})
        assert kept.status().restarts == 0


def test_a_kwok_that_grows_too_large_is_restarted_and_not_in_a_loop(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Whoever looks sees why; a limit that it exceeds at once makes for longer and longer pauses."""
    with supervised_kwok.running(cluster, tmp_path, name, memoryLimit="1Gi") as kept:
        kept.sync(fleet(name, 2))
        kept.wait_ready()
        pid = kept.status().pid
        kept.change(memory_limit="8Mi")
        waiting.until(lambda: kept.status().restarts)
        assert not supervised_kwok.process_exists(pid)
        waiting.until(lambda: kept.status().pause_s >= 1, deadline_s=90)
        [seen] = supervisor.read_status(kept.folder / "kwok") or []
        assert seen.why.endswith("more than 8Mi")
        kept.change(memory_limit="1Gi")
        kept.wait_ready()


def test_shards_share_the_nodes_and_more_shards_lose_none(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Every node is driven by exactly one of two processes; going to three, no node leaves Ready."""
    with supervised_kwok.running(cluster, tmp_path, name, shards=2) as kept:
        kept.sync(fleet(name, 1000, 2))
        kept.wait_ready()
        waiting.until(lambda: len(kept.leases()) == 1000)
        held = kept.leases()
        assert set(held.values()) == {each.identity for each in kept.keeper.statuses()}
        with watching(cluster, "/api/v1/nodes", f"kwokfleet.dev/fleet={name}") as seen:
            kept.change(shards=3)
            kept.sync(fleet(name, 1000, 3))
            kept.wait_ready()
            waiting.until(lambda: len(set(kept.leases().values())) == 3 and len(kept.leases()) == 1000)
            assert set(kept.leases().values()) == {each.identity for each in kept.keeper.statuses()}
            assert not went_down(seen.seen)
        shards = {
            each.manifest["metadata"]["labels"]["kwokfleet.dev/shard"] for each in kept.nodes.view().objects.values()
        }
        assert shards == {"0", "1", "2"}


def test_one_shard_becomes_two_and_two_become_one_without_waiting_for_leases(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Whoever drives all nodes does so until they say whose they are; the last one takes them all at once."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration=LONG_LEASE) as kept:
        kept.sync(fleet(name, 24))
        kept.wait_ready()
        pid = kept.status().pid
        assert not kept.change(shards=2)
        assert not kept.keeper.finish_change()
        assert [each.pid for each in kept.keeper.statuses()] == [pid], "no node says yet whose it is"
        for count in (2, 1):
            kept.change(shards=count)
            kept.sync(fleet(name, 24, count))
            waiting.until(kept.keeper.finish_change)
            kept.wait_ready()
            waiting.until(lambda: len(kept.leases()) == 24 and set(kept.leases().values()) == kept.identities())
            assert len(kept.identities()) == count


def test_nodes_that_move_to_a_kwok_that_runs_are_driven_at_once_and_so_are_their_pods(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """Nobody waits for leases, and pods whose time was running when their node moved come to their end."""
    lifecycle = "\n  lifecycles:\n    - {name: work, pod: {ready: 0s, complete: {after: 8s}}}"
    with supervised_kwok.running(cluster, tmp_path, name, shards=3, leaseDuration=LONG_LEASE) as kept:
        for count in (3, 2):
            kept.change(shards=count)
            kept.sync(fleet(name, 60, count).replace("taint: false}", "taint: false}" + lifecycle))
            waiting.until(kept.keeper.finish_change)
            if count == 3:
                kept.wait_ready()
                run_job(cluster, name, 60)
                waiting.until(lambda: phases(cluster, name) == ["Running"] * 60)
        waiting.until(lambda: len(kept.leases()) == 60 and set(kept.leases().values()) == kept.identities())
        waiting.until(lambda: phases(cluster, name) == ["Succeeded"] * 60)


def test_a_configuration_that_kwok_refuses_is_told_from_a_crash(
    cluster: ControlPlane, tmp_path: Path, name: str
) -> None:
    """What only a person can mend is said with kwok's own words, and not tried in a loop."""
    with supervised_kwok.running(cluster, tmp_path, name, stagesAs="file") as kept:
        waiting.until(lambda: kept.status().state is shard.ShardState.REFUSED)
        assert "no stages found" in kept.status().why
        assert kept.status().restarts == 1
