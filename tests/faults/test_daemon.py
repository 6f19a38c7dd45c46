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

from kwokfleet.daemon import backoff
from tests.harness import cli, daemon_process, daemon_testbed, faulty_proxy, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.faulty_proxy import Fault, ForwardThen, ProxiedRequest, Reject, Reset

Manifest = dict[str, Any]
ROUNDS = 50
EACH, LONG = 20, 1500
"""Objects per Run of the repeated wave, and of the long wave."""
WAVES = """
  waves:
    - name: ticks
      start: {{every: 2s}}
      count: {each}
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


def settled(testbed: DaemonTestbed) -> bool:
    """Return whether `diff` is empty."""
    return testbed.program.run("diff", str(testbed.files)).returncode == 0


# kills


class Life:
    """Random file changes, and a check of the waves' objects."""

    def __init__(self, testbed: DaemonTestbed, dice: random.Random) -> None:
        self._lab, self._dice = testbed, dice
        self._guests: dict[str, int] = {}
        self.objects: dict[tuple[str, str, str], str] = {}

    def goes_on(self) -> None:
        """Change some files."""
        testbed, dice = self._lab, self._dice
        labels = f"labels: {{tier: {dice.choice(['gold', 'tin', 'iron'])}}}"
        waves = WAVES.format(name=testbed.name, each=EACH, long=LONG)
        (testbed.files / f"{testbed.name}.yaml").write_text(testbed.text(dice.randint(2, 40), labels) + waves)
        for name, nodes in list(self._guests.items()):
            if nodes:
                self._save(name, dice.choice([0, dice.randint(1, 20)]))
            elif not testbed.nodes(name):  # deletion of a fleet with nodes would need an approval
                (testbed.files / f"{name}.yaml").unlink()
                del self._guests[name]
        if dice.random() < 0.5:
            self._save(f"{testbed.name}-{dice.randint(0, 4)}", dice.randint(1, 20))

    def _save(self, name: str, nodes: int) -> None:
        self._guests[name] = nodes
        self._lab.save(nodes, name=name)

    def looks(self) -> None:
        """Check that every object seen before still exists with the same UID."""
        now = {}
        for kind, index in (("configmaps", ".data.index"), ("jobs", ".metadata.annotations.index")):
            columns = f"A:.metadata.labels['kwokfleet\\.dev/wave'],B:.metadata.labels['kwokfleet\\.dev/run'],C:{index}"
            chosen = ("-n", self._lab.name, "-l", "kwokfleet.dev/wave", "--no-headers", "--ignore-not-found")
            text = self._lab.cluster.kubectl("get", kind, *chosen, "-o", f"custom-columns={columns},D:.metadata.uid")
            for wave, run, number, uid in (line.split() for line in text.splitlines()):
                assert (wave, run, number) not in now, "duplicate object"
                now[wave, run, number] = uid
        assert self.objects.items() <= now.items(), "an object was deleted or replaced"
        self.objects = now


def pages(testbed: DaemonTestbed) -> dict[str, list[Manifest]]:
    """Return the Ledger: the Runs of each wave."""
    return {each["name"]: each["runs"] for each in (testbed.fleet().get("status") or {}).get("waves") or ()}


@pytest.mark.timeout(900)
def test_killed_at_any_moment_it_loses_nothing_and_does_nothing_twice(testbed: DaemonTestbed) -> None:
    """During file changes and Runs; at the end the cluster is in sync and every object was created once."""
    dice = random.Random(7)  # noqa: S311  # reproducible
    life = Life(testbed, dice)
    for number in range(ROUNDS):
        life.goes_on()
        daemon = testbed.start()
        if dice.random() < 0.8:  # most are killed as leader, some before
            waiting.until(lambda daemon=daemon: daemon.events("leading"))  # type: ignore[misc]
        time.sleep(dice.uniform(0.0, 2.0))
        daemon.kill()
        if number % 5 == 0:
            life.looks()
    with testbed.run():
        waiting.until(lambda: [run["state"] for run in pages(testbed).get("long", ())] == ["Done"], deadline_s=180)
        waiting.until(lambda: settled(testbed))
        ledger = pages(testbed)
        life.looks()
    [long] = ledger["long"]
    assert (long["submitted"], long["total"], long["failed"]) == (LONG, LONG, 0)
    going = {run["name"] for run in ledger["ticks"] if run["state"] == "Running"}
    over = [run for run in ledger["ticks"] if run["name"] not in going]
    assert {(run["state"], run["submitted"], run["failed"]) for run in over} == {("Done", EACH, 0)}
    made = Counter((wave, run) for wave, run, _ in life.objects)
    assert made.pop(("long", "0")) == LONG
    last = max(int(run["name"]) for run in ledger["ticks"])
    counts = {run: count for (_, run), count in made.items() if int(run) <= last and run not in going}
    assert len(counts) > ROUNDS // 4
    assert {run: count for run, count in counts.items() if count != EACH} == {}, "every started Run was finished"


# API server outage


def test_without_its_api_server_it_waits_and_heals_what_happened_meanwhile(
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
        waiting.until(lambda: any("does not answer" in line["message"] for line in daemon.events("trouble")))
        testbed.cluster.kubectl("delete", "node", f"{testbed.name}-pool-2", "--wait=false")
        testbed.cluster.kubectl("label", "node", f"{testbed.name}-pool-3", "tier=tin", "--overwrite")
        request, cpu = len(proxy.requests), spent(daemon)
        time.sleep(10)
        assert len(proxy.requests) - request < 10 * 15, Counter(each.resource for each in proxy.requests[request:])
        assert spent(daemon) - cpu < 1, "it uses little CPU during the outage"
        proxy.rule = faulty_proxy.pass_through
        testbed.wait_for_nodes(25)
        waiting.until(lambda: {node["metadata"]["labels"]["tier"] for node in testbed.nodes()} == {"gold"})
        waiting.until(lambda: settled(testbed))
        assert daemon.process.poll() is None


def spent(daemon: daemon_process.DaemonProcess) -> float:
    """Return the CPU seconds of a daemon."""
    times = psutil.Process(daemon.process.pid).cpu_times()
    return times.user + times.system


# failing fleets


def refused(proxy: faulty_proxy.FaultyProxy, name: str) -> list[float]:
    """Reject the creation of a fleet's nodes; return a growing list of attempt times."""
    tries: list[float] = []

    def rule(request: ProxiedRequest) -> Fault | None:
        if (
            request.method != "POST"
            or not request.resource.endswith("/nodes")
            or f'"{name}"'.encode() not in request.body
        ):
            return None
        tries.append(request.at)
        return Reject(422, "Node is invalid: spec.flavour: must be sweet")

    proxy.rule = rule
    return tries


def one_bad(testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy) -> tuple[str, list[float]]:
    """Save two fleets, one of which is rejected; return its name and its attempt times."""
    bad = f"{testbed.name}-bad"
    tries = refused(proxy, bad)
    testbed.save(1, name=bad)
    testbed.save(1)
    return bad, tries


def test_a_fleet_that_fails_is_tried_less_and_less_and_delays_no_other(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """A changed file is tried at once, and the fleet recovers when the fault ends."""
    bad, tries = one_bad(testbed, proxy)
    with testbed.run(through=through) as daemon:
        waiting.until(lambda: len(tries) >= 5, deadline_s=90)
        gaps = [after - before for before, after in itertools.pairwise(tries)]
        assert all(gap >= backoff.FIRST_S * 2**number for number, gap in enumerate(gaps)), gaps
        testbed.wait_for_reason("Failed", bad)
        testbed.save(5)
        testbed.wait_for_nodes(5)
        before = len(tries)
        assert before == 5, "a change of the other fleet does not retry this one"
        testbed.save(2, name=bad)
        waiting.until(lambda: len(tries) > before)
        assert tries[before] - tries[before - 1] < 2 * gaps[-1], "a changed file does not wait for the backoff"
        proxy.rule = faulty_proxy.pass_through
        testbed.wait_for_nodes(2, bad)
        testbed.wait_for_reason("Synced", bad)
        waiting.until(lambda: settled(testbed))
        assert_asleep(daemon)


def assert_asleep(daemon: daemon_process.DaemonProcess) -> None:
    """Check that an idle daemon uses little CPU."""
    cpu = spent(daemon)
    time.sleep(5)
    assert spent(daemon) - cpu < 0.5


def test_a_fleet_that_failed_and_is_not_wanted_any_more_is_forgotten(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """No retry is left, and the daemon is idle."""
    bad, tries = one_bad(testbed, proxy)
    with testbed.run(through=through) as daemon:
        waiting.until(lambda: len(tries) >= 2)
        (testbed.files / f"{bad}.yaml").unlink()
        waiting.until(lambda: not testbed.fleet(bad))
        time.sleep(3)
        assert_asleep(daemon)
        assert daemon.get("/api/v1/plan")["changes"] == []


# conflicting controllers


def test_a_file_that_changes_often_is_no_fight(testbed: DaemonTestbed) -> None:
    """Repeated changes of a field by the file are no conflict."""
    with testbed.run():
        for number in range(15):
            testbed.save(1, f"labels: {{save: s{number}}}")
            waiting.until(
                lambda mark=f"s{number}": [node["metadata"]["labels"].get("save") for node in testbed.nodes()] == [mark]  # type: ignore[misc]
            )
        testbed.wait_for_reason("Synced")


def test_a_field_that_somebody_else_wants_is_given_up(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """After some attempts; the status names the other manager, and other changes are still applied."""
    fought = f"{testbed.name}-pool-1"
    testbed.save(3, "labels: {tier: gold}")

    def rival() -> None:
        testbed.cluster.kubectl("label", "node", fought, "tier=mine", "--overwrite", "--field-manager=rival")

    def rule(request: ProxiedRequest) -> Fault | None:
        mine = request.method == "PATCH" and request.resource.endswith(f"/nodes/{fought}") and b"tier" in request.body
        return ForwardThen(rival) if mine else None

    with testbed.run(through=through) as daemon:
        testbed.wait_for_nodes(3)
        daemon.wait_synced()
        proxy.rule = rule
        rival()
        testbed.wait_for_reason("FieldConflict")
        fights = len(proxy.faults)
        conditions = {each["type"]: each for each in testbed.fleet()["status"]["conditions"]}
        assert conditions["Stalled"]["status"] == "True"
        assert (
            f"manager 'rival' keeps changing metadata.labels.tier of node {fought}" in conditions["Stalled"]["message"]
        )
        testbed.save(4, "labels: {tier: gold}")
        testbed.wait_for_nodes(4)
        rival()
        assert_asleep(daemon)
        assert len(proxy.faults) == fights <= 10
        assert json.dumps(daemon.events("drift")).count(fought) <= fights + 1
