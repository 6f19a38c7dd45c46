"""The daemon: killed at any moment, without its API server, with a fleet that fails, in a fight."""

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
"""Objects of each Run of the wave that comes again and again, and of the one that lasts."""
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
def lab(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, untouched: None) -> Iterator[DaemonTestbed]:
    """Give a test a folder, with nothing of ours in the cluster and something of others."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def settled(lab: DaemonTestbed) -> bool:
    """Tell whether the cluster is what the files say, by somebody who remembers nothing."""
    return lab.program.run("diff", str(lab.files)).returncode == 0


# killed


class Life:
    """What people do to the files while daemons come and go."""

    def __init__(self, lab: DaemonTestbed, dice: random.Random) -> None:
        self._lab, self._dice = lab, dice
        self._guests: dict[str, int] = {}
        self.objects: dict[tuple[str, str, str], str] = {}

    def goes_on(self) -> None:
        """Change a file or two."""
        lab, dice = self._lab, self._dice
        labels = f"labels: {{tier: {dice.choice(['gold', 'tin', 'iron'])}}}"
        waves = WAVES.format(name=lab.name, each=EACH, long=LONG)
        (lab.files / f"{lab.name}.yaml").write_text(lab.text(dice.randint(2, 40), labels) + waves)
        for name, nodes in list(self._guests.items()):
            if nodes:
                self._save(name, dice.choice([0, dice.randint(1, 20)]))
            elif not lab.nodes(name):  # an empty fleet may go; one with nodes would need an approval
                (lab.files / f"{name}.yaml").unlink()
                del self._guests[name]
        if dice.random() < 0.5:
            self._save(f"{lab.name}-{dice.randint(0, 4)}", dice.randint(1, 20))

    def _save(self, name: str, nodes: int) -> None:
        self._guests[name] = nodes
        self._lab.save(nodes, name=name)

    def looks(self) -> None:
        """Look at what the waves have made: what was there once is still there, and is still the same."""
        now = {}
        for kind, index in (("configmaps", ".data.index"), ("jobs", ".metadata.annotations.index")):
            columns = f"A:.metadata.labels['kwokfleet\\.dev/wave'],B:.metadata.labels['kwokfleet\\.dev/run'],C:{index}"
            chosen = ("-n", self._lab.name, "-l", "kwokfleet.dev/wave", "--no-headers", "--ignore-not-found")
            text = self._lab.cluster.kubectl("get", kind, *chosen, "-o", f"custom-columns={columns},D:.metadata.uid")
            for wave, run, number, uid in (line.split() for line in text.splitlines()):
                assert (wave, run, number) not in now, "an object is there twice"
                now[wave, run, number] = uid
        assert self.objects.items() <= now.items(), "an object is gone, or is another one"
        self.objects = now


def pages(lab: DaemonTestbed) -> dict[str, list[Manifest]]:
    """Return the Ledger: the Runs of each wave."""
    return {each["name"]: each["runs"] for each in (lab.fleet().get("status") or {}).get("waves") or ()}


@pytest.mark.timeout(900)
def test_killed_at_any_moment_it_loses_nothing_and_does_nothing_twice(lab: DaemonTestbed) -> None:
    """While files change and waves run: in the end the cluster is what the files say, each object was made once."""
    dice = random.Random(7)  # noqa: S311  # chance that can be repeated
    life = Life(lab, dice)
    for number in range(ROUNDS):
        life.goes_on()
        daemon = lab.start()
        if dice.random() < 0.8:  # most die at work, some on the way there
            waiting.until(lambda daemon=daemon: daemon.events("leading"))  # type: ignore[misc]
        time.sleep(dice.uniform(0.0, 2.0))
        daemon.kill()
        if number % 5 == 0:
            life.looks()
    with lab.run():
        waiting.until(lambda: [run["state"] for run in pages(lab).get("long", ())] == ["Done"], deadline_s=180)
        waiting.until(lambda: settled(lab))
        ledger = pages(lab)
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
    assert {run: count for run, count in counts.items() if count != EACH} == {}, "what was begun was finished"


# without its API server


def test_without_its_api_server_it_waits_and_heals_what_happened_meanwhile(
    lab: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """It says so, asks seldom, sleeps in between, and is the same process afterwards."""
    lab.save(20, "labels: {tier: gold}")
    with lab.run(through=through) as daemon:
        lab.wait_for_nodes(20)
        daemon.wait_synced()
        proxy.rule = lambda _asked: Reset()
        proxy.reset_all()
        lab.save(25, "labels: {tier: gold}")
        waiting.until(lambda: not daemon.is_leader)
        waiting.until(lambda: any("does not answer" in line["message"] for line in daemon.events("trouble")))
        lab.cluster.kubectl("delete", "node", f"{lab.name}-pool-2", "--wait=false")
        lab.cluster.kubectl("label", "node", f"{lab.name}-pool-3", "tier=tin", "--overwrite")
        asked, cpu = len(proxy.requests), spent(daemon)
        time.sleep(10)
        assert len(proxy.requests) - asked < 10 * 15, Counter(each.resource for each in proxy.requests[asked:])
        assert spent(daemon) - cpu < 1, "it sleeps while there is nobody to ask"
        proxy.rule = faulty_proxy.pass_through
        lab.wait_for_nodes(25)
        waiting.until(lambda: {node["metadata"]["labels"]["tier"] for node in lab.nodes()} == {"gold"})
        waiting.until(lambda: settled(lab))
        assert daemon.process.poll() is None


def spent(daemon: daemon_process.DaemonProcess) -> float:
    """Return the CPU seconds that a daemon has used."""
    times = psutil.Process(daemon.process.pid).cpu_times()
    return times.user + times.system


# a fleet that fails


def refused(proxy: faulty_proxy.FaultyProxy, name: str) -> list[float]:
    """Refuse to make the nodes of a fleet from now on; return when that was tried, as it goes on."""
    tries: list[float] = []

    def rule(asked: ProxiedRequest) -> Fault | None:
        if asked.method != "POST" or not asked.resource.endswith("/nodes") or f'"{name}"'.encode() not in asked.body:
            return None
        tries.append(asked.at)
        return Reject(422, "Node is invalid: spec.flavour: must be sweet")

    proxy.rule = rule
    return tries


def one_bad(lab: DaemonTestbed, proxy: faulty_proxy.FaultyProxy) -> tuple[str, list[float]]:
    """Save two fleets, one of which the API server refuses; return its name, and when it was tried."""
    bad = f"{lab.name}-bad"
    tries = refused(proxy, bad)
    lab.save(1, name=bad)
    lab.save(1)
    return bad, tries


def test_a_fleet_that_fails_is_tried_less_and_less_and_delays_no_other(
    lab: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """A changed file is tried at once; and once the fault is gone, it heals by itself."""
    bad, tries = one_bad(lab, proxy)
    with lab.run(through=through) as daemon:
        waiting.until(lambda: len(tries) >= 5, deadline_s=90)
        gaps = [after - before for before, after in itertools.pairwise(tries)]
        assert all(gap >= backoff.FIRST_S * 2**number for number, gap in enumerate(gaps)), gaps
        lab.wait_for_reason("Failed", bad)
        lab.save(5)
        lab.wait_for_nodes(5)
        before = len(tries)
        assert before == 5, "the other fleet's file is no reason to try this one again"
        lab.save(2, name=bad)
        waiting.until(lambda: len(tries) > before)
        assert tries[before] - tries[before - 1] < 2 * gaps[-1], "a new file does not wait for the old one's pause"
        proxy.rule = faulty_proxy.pass_through
        lab.wait_for_nodes(2, bad)
        lab.wait_for_reason("Synced", bad)
        waiting.until(lambda: settled(lab))
        assert_asleep(daemon)


def assert_asleep(daemon: daemon_process.DaemonProcess) -> None:
    """Check that a daemon with nothing to do does nothing."""
    cpu = spent(daemon)
    time.sleep(5)
    assert spent(daemon) - cpu < 0.5


def test_a_fleet_that_failed_and_is_not_wanted_any_more_is_forgotten(
    lab: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """There is nothing left to try again, and nothing keeps the daemon awake."""
    bad, tries = one_bad(lab, proxy)
    with lab.run(through=through) as daemon:
        waiting.until(lambda: len(tries) >= 2)
        (lab.files / f"{bad}.yaml").unlink()
        waiting.until(lambda: not lab.fleet(bad))
        time.sleep(3)
        assert_asleep(daemon)
        assert daemon.get("/api/v1/plan")["changes"] == []


# a fight


def test_a_file_that_changes_often_is_no_fight(lab: DaemonTestbed) -> None:
    """The same field is set again and again, to what the file says each time: nobody else wants anything."""
    with lab.run():
        for number in range(15):
            lab.save(1, f"labels: {{save: s{number}}}")
            waiting.until(
                lambda mark=f"s{number}": [node["metadata"]["labels"].get("save") for node in lab.nodes()] == [mark]  # type: ignore[misc]
            )
        lab.wait_for_reason("Synced")


def test_a_field_that_somebody_else_wants_is_given_up(
    lab: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """After some rounds; the fleet says who it is, and everything else of it is still done."""
    fought = f"{lab.name}-pool-1"
    lab.save(3, "labels: {tier: gold}")

    def rival() -> None:
        lab.cluster.kubectl("label", "node", fought, "tier=mine", "--overwrite", "--field-manager=rival")

    def rule(asked: ProxiedRequest) -> Fault | None:
        mine = asked.method == "PATCH" and asked.resource.endswith(f"/nodes/{fought}") and b"tier" in asked.body
        return ForwardThen(rival) if mine else None

    with lab.run(through=through) as daemon:
        lab.wait_for_nodes(3)
        daemon.wait_synced()
        proxy.rule = rule
        rival()
        lab.wait_for_reason("FieldConflict")
        fights = len(proxy.faults)
        conditions = {each["type"]: each for each in lab.fleet()["status"]["conditions"]}
        assert conditions["Stalled"]["status"] == "True"
        assert (
            f"manager 'rival' keeps changing metadata.labels.tier of node {fought}" in conditions["Stalled"]["message"]
        )
        lab.save(4, "labels: {tier: gold}")
        lab.wait_for_nodes(4)
        rival()
        assert_asleep(daemon)
        assert len(proxy.faults) == fights <= 10
        assert json.dumps(daemon.events("drift")).count(fought) <= fights + 1
