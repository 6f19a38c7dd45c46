"""Daemon faults: kills, API server outage, failing fleets, conflicting controllers."""

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kwokfleet.daemon import fleet_backoff
from tests.harness import cli, daemon_process, daemon_testbed, faulty_proxy, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.faulty_proxy import Fault, ForwardThen, ProxiedRequest, Reject, Reset

Manifest = dict[str, Any]
ROUNDS = 50
TICK_COUNT, LONG_COUNT = 20, 1500
"""Objects per Run of the repeated wave, and of the long wave."""
WAVES = """
  waves:
    - name: ticks
      start: {{every: 2s}}
      count: {ticks}
      arrivals: {{rate: 20/s}}
      namespace: {name}
      template: {{apiVersion: v1, kind: ConfigMap, data: {{index: "{{{{index}}}}"}}}}
    - name: long
      start: {{after: 1s, missed: run}}
      count: {long}
      arrivals: {{rate: 10/s}}
      namespace: {name}
      template:
        apiVersion: batch/v1
        kind: Job
        metadata: {{annotations: {{index: "{{{{index}}}}"}}}}
        spec:
          suspend: true
          template: {{spec: {{restartPolicy: Never, containers: [{{name: main, image: none}}]}}}}
"""


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, untouched: None) -> Iterator[DaemonTestbed]:
    """Return a testbed in a cluster with foreign objects only."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def is_synced(testbed: DaemonTestbed) -> bool:
    """Return whether `diff` is empty."""
    return testbed.program.run("diff", str(testbed.files)).returncode == 0


# kills


class RandomChanges:
    """Random file changes, and a check of the waves' objects."""

    def __init__(self, testbed: DaemonTestbed, rng: random.Random) -> None:
        self._testbed, self._rng = testbed, rng
        self._extra_fleets: dict[str, int] = {}
        self.objects: dict[tuple[str, str, str], str] = {}

    def apply(self) -> None:
        """Change some files."""
        testbed, rng = self._testbed, self._rng
        labels = f"labels: {{tier: {rng.choice(['gold', 'tin', 'iron'])}}}"
        waves = WAVES.format(name=testbed.name, ticks=TICK_COUNT, long=LONG_COUNT)
        (testbed.files / f"{testbed.name}.yaml").write_text(testbed.text(rng.randint(2, 40), labels) + waves)
        for name, nodes in list(self._extra_fleets.items()):
            if nodes:
                self._save(name, rng.choice([0, rng.randint(1, 20)]))
            elif not testbed.nodes(name):  # deletion of a fleet with nodes would need an approval
                (testbed.files / f"{name}.yaml").unlink()
                del self._extra_fleets[name]
        if rng.random() < 0.5:
            self._save(f"{testbed.name}-{rng.randint(0, 4)}", rng.randint(1, 20))

    def _save(self, name: str, nodes: int) -> None:
        self._extra_fleets[name] = nodes
        self._testbed.save(nodes, name=name)

    def check_objects(self) -> None:
        """Check that every object seen before still exists with the same UID."""
        now = {}
        for kind, index in (("configmaps", ".data.index"), ("jobs", ".metadata.annotations.index")):
            columns = f"A:.metadata.labels['kwokfleet\\.dev/wave'],B:.metadata.labels['kwokfleet\\.dev/run'],C:{index}"
            chosen = ("-n", self._testbed.name, "-l", "kwokfleet.dev/wave", "--no-headers", "--ignore-not-found")
            text = self._testbed.cluster.kubectl(
                "get", kind, *chosen, "-o", f"custom-columns={columns},D:.metadata.uid"
            )
            for wave, run, number, uid in (line.split() for line in text.splitlines()):
                assert (wave, run, number) not in now, "duplicate object"
                now[wave, run, number] = uid
        assert self.objects.items() <= now.items(), "an object was deleted or replaced"
        self.objects = now


def ledger_runs(testbed: DaemonTestbed) -> dict[str, list[Manifest]]:
    """Return the Ledger: the Runs of each wave."""
    return {wave["name"]: wave["runs"] for wave in (testbed.fleet().get("status") or {}).get("waves") or ()}


@pytest.mark.timeout(900)
def test_kills_lose_no_object_and_create_none_twice(testbed: DaemonTestbed) -> None:
    """During file changes and Runs; at the end the cluster is in sync and every object was created once."""
    rng = random.Random(7)  # noqa: S311  # reproducible
    changes = RandomChanges(testbed, rng)
    for number in range(ROUNDS):
        changes.apply()
        daemon = testbed.start()
        if rng.random() < 0.8:  # most are killed as leader, some before
            waiting.until(lambda daemon=daemon: daemon.events("leading"))  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 2.0))
        daemon.kill()
        if number % 5 == 0:
            changes.check_objects()
    with testbed.run():
        waiting.until(
            lambda: [run["state"] for run in ledger_runs(testbed).get("long", ())] == ["Done"], deadline_s=180
        )
        waiting.until(lambda: is_synced(testbed))
        ledger = ledger_runs(testbed)
        changes.check_objects()
    [long] = ledger["long"]
    assert (long["submitted"], long["total"], long["failed"]) == (LONG_COUNT, LONG_COUNT, 0)
    unfinished = {run["name"] for run in ledger["ticks"] if run["state"] == "Running"}
    finished = [run for run in ledger["ticks"] if run["name"] not in unfinished]
    assert {(run["state"], run["submitted"], run["failed"]) for run in finished} == {("Done", TICK_COUNT, 0)}
    created = Counter((wave, run) for wave, run, _ in changes.objects)
    assert created.pop(("long", "0")) == LONG_COUNT
    last = max(int(run["name"]) for run in ledger["ticks"])
    counts = {run: count for (_, run), count in created.items() if int(run) <= last and run not in unfinished}
    assert len(counts) > ROUNDS // 4
    assert {run: count for run, count in counts.items() if count != TICK_COUNT} == {}, "every started Run was finished"


# API server outage


def test_an_api_server_outage_is_survived_and_drift_is_repaired_afterwards(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """It reports the outage, retries rarely, uses little CPU and does not restart."""
    testbed.save(20, "labels: {tier: gold}")
    with testbed.run(through=through) as daemon:
        testbed.wait_for_nodes(20)
        daemon.wait_synced()
        proxy.rule = lambda _asked: Reset()
        proxy.reset_all()
        testbed.save(25, "labels: {tier: gold}")
        waiting.until(lambda: not daemon.is_leader)
        waiting.until(
            lambda: any("no response from the API server" in line["message"] for line in daemon.events("trouble"))
        )
        testbed.cluster.kubectl("delete", "node", f"{testbed.name}-pool-2", "--wait=false")
        testbed.cluster.kubectl("label", "node", f"{testbed.name}-pool-3", "tier=tin", "--overwrite")
        first, cpu = len(proxy.requests), cpu_seconds(daemon)
        time.sleep(10)
        assert len(proxy.requests) - first < 10 * 15, Counter(request.resource for request in proxy.requests[first:])
        assert cpu_seconds(daemon) - cpu < 1, "it uses little CPU during the outage"
        proxy.rule = faulty_proxy.pass_through
        testbed.wait_for_nodes(25)
        waiting.until(lambda: {node["metadata"]["labels"]["tier"] for node in testbed.nodes()} == {"gold"})
        waiting.until(lambda: is_synced(testbed))
        assert daemon.process.poll() is None


def cpu_seconds(daemon: daemon_process.DaemonProcess) -> float:
    """Return the CPU seconds of a daemon."""
    times = psutil.Process(daemon.process.pid).cpu_times()
    return times.user + times.system


# failing fleets


def reject_nodes(proxy: faulty_proxy.FaultyProxy, name: str) -> list[float]:
    """Reject the creation of a fleet's nodes; return a growing list of attempt times."""
    attempts: list[float] = []

    def rule(request: ProxiedRequest) -> Fault | None:
        if (
            request.method != "POST"
            or not request.resource.endswith("/nodes")
            or f'"{name}"'.encode() not in request.body
        ):
            return None
        attempts.append(request.at)
        return Reject(422, "Node is invalid: spec.flavour: must be sweet")

    proxy.rule = rule
    return attempts


def save_failing_fleet(testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy) -> tuple[str, list[float]]:
    """Save two fleets, one of which is rejected; return its name and its attempt times."""
    bad = f"{testbed.name}-bad"
    attempts = reject_nodes(proxy, bad)
    testbed.save(1, name=bad)
    testbed.save(1)
    return bad, attempts


def test_a_failing_fleet_backs_off_and_delays_no_other(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """A changed file is tried at once, and the fleet recovers when the fault ends."""
    bad, attempts = save_failing_fleet(testbed, proxy)
    with testbed.run(through=through) as daemon:
        waiting.until(lambda: len(attempts) >= 5, deadline_s=90)
        gaps = [after - before for before, after in itertools.pairwise(attempts)]
        assert all(gap >= fleet_backoff.FIRST_S * 2**number for number, gap in enumerate(gaps)), gaps
        testbed.wait_for_reason("Failed", bad)
        testbed.save(5)
        testbed.wait_for_nodes(5)
        before = len(attempts)
        assert before == 5, "a change of the other fleet does not retry this one"
        testbed.save(2, name=bad)
        waiting.until(lambda: len(attempts) > before)
        assert attempts[before] - attempts[before - 1] < 2 * gaps[-1], "a changed file does not wait for the backoff"
        proxy.rule = faulty_proxy.pass_through
        testbed.wait_for_nodes(2, bad)
        testbed.wait_for_reason("Synced", bad)
        waiting.until(lambda: is_synced(testbed))
        assert_idle(daemon)


def assert_idle(daemon: daemon_process.DaemonProcess) -> None:
    """Check that an idle daemon uses little CPU."""
    cpu = cpu_seconds(daemon)
    time.sleep(5)
    assert cpu_seconds(daemon) - cpu < 0.5


def test_a_failing_fleet_without_a_file_is_not_retried(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """No retry is left, and the daemon is idle."""
    bad, attempts = save_failing_fleet(testbed, proxy)
    with testbed.run(through=through) as daemon:
        waiting.until(lambda: len(attempts) >= 2)
        (testbed.files / f"{bad}.yaml").unlink()
        waiting.until(lambda: not testbed.fleet(bad))
        time.sleep(3)
        assert_idle(daemon)
        assert daemon.get("/api/v1/plan")["changes"] == []


# conflicting controllers


def test_a_file_that_changes_often_is_no_conflict(testbed: DaemonTestbed) -> None:
    """Repeated changes of a field by the file are no conflict."""
    with testbed.run():
        for number in range(15):
            testbed.save(1, f"labels: {{save: s{number}}}")
            waiting.until(
                lambda mark=f"s{number}": [node["metadata"]["labels"].get("save") for node in testbed.nodes()] == [mark]  # type: ignore[misc]
            )
        testbed.wait_for_reason("Synced")


def test_a_field_that_another_manager_keeps_changing_is_given_up(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """After some attempts; the status names the other manager, and other changes are still applied."""
    contested = f"{testbed.name}-pool-1"
    testbed.save(3, "labels: {tier: gold}")

    def change_by_rival() -> None:
        testbed.cluster.kubectl("label", "node", contested, "tier=mine", "--overwrite", "--field-manager=rival")

    def rule(request: ProxiedRequest) -> Fault | None:
        matches = (
            request.method == "PATCH" and request.resource.endswith(f"/nodes/{contested}") and b"tier" in request.body
        )
        return ForwardThen(change_by_rival) if matches else None

    with testbed.run(through=through) as daemon:
        testbed.wait_for_nodes(3)
        daemon.wait_synced()
        proxy.rule = rule
        change_by_rival()
        testbed.wait_for_reason("FieldConflict")
        conflicts = len(proxy.faults)
        conditions = {condition["type"]: condition for condition in testbed.fleet()["status"]["conditions"]}
        assert conditions["Stalled"]["status"] == "True"
        assert (
            f"manager 'rival' keeps changing metadata.labels.tier of node {contested}"
            in conditions["Stalled"]["message"]
        )
        testbed.save(4, "labels: {tier: gold}")
        testbed.wait_for_nodes(4)
        change_by_rival()
        assert_idle(daemon)
        assert len(proxy.faults) == conflicts <= 10
        assert json.dumps(daemon.events("drift")).count(contested) <= conflicts + 1
