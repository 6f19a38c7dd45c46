"""The shipped scenarios, shortened, in one `kwokfleet test` on a real cluster.

They are smaller and have generous gates: the tests check whether they work, not how fast this machine is.
A wave with a scheduler of the test runs beside them, which is the main use case.
"""

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kwokfleet.kube import client
from kwokfleet.measure import result_store
from kwokfleet.measure.result import Clock, Result
from tests.harness import cli, in_process_sync, round_robin_scheduler
from tests.harness.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
SCENARIOS = ("diurnal", "gang-bursts", "load-test", "mcad-gpu", "mcad-stress", "node-failure")
WAVES = {
    ("diurnal", "day"),
    ("gang-bursts", "gangs"),
    ("load-test", "deployments"),
    ("load-test", "example"),
    ("mcad-gpu", "jobs"),
    *(("mcad-stress", f"jobs-{count}") for count in (1, 10, 20, 50, 75, 100)),
    ("node-failure", "jobs"),
    ("own-scheduler", "pods"),
}
END_S = 280
GENEROUS = 10
"""Factor for the limits of all gates."""

OWN_SCHEDULER = f"""
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: own-scheduler}}
spec:
  nodePools: [{{name: pool, replicas: 2}}]
  lifecycles: [{{name: quick, pod: {{complete: {{after: 1s, when: always}}}}}}]
  waves:
    - name: pods
      count: 6
      arrivals: {{rate: 2/s}}
      lifecycle: quick
      namespace: own-scheduler
      vary: {{scheduler: {{cycle: [{round_robin_scheduler.NAME}, default-scheduler]}}}}
      template:
        apiVersion: v1
        kind: Pod
        spec: {{schedulerName: "{{{{scheduler}}}}", containers: [{{name: main, image: busybox}}]}}
      expect: {{failures: 0}}
"""


def shortened(text: str) -> str:
    """Return a scenario of half a minute: fewer nodes and objects, all waves at once, generous gates."""
    text = re.sub(r"replicas: (\d{2,})", lambda match: f"replicas: {max(4, int(match[1]) // 2)}", text)
    text = re.sub(r"count: (\d{2,})", lambda match: f"count: {max(2, int(match[1]) // 10)}", text)
    text = re.sub(r"start: \{after: \w+\}", "start: {after: 1s}", text)
    text = re.sub(r"duration: \w+", "duration: 12s", text)
    text = re.sub(r"for: (\d{2,})s", lambda match: f"for: {int(match[1]) // 10 or 1}s", text)
    text = text.replace("every: 1m, for: 1s", "every: 10s, for: 8s")
    text = re.sub(r"throughput: \S+", "throughput: 0.1/s", text)
    head, *gates = re.split(r"(?=\n +expect:)", text)
    return head + "".join(_generous(gate) for gate in gates)


def _generous(gates: str) -> str:
    """Return gates with more time for each."""
    longer: Callable[[re.Match[str]], str] = lambda match: f"{match[1]}{float(match[2]) * GENEROUS:g}{match[3]}"  # noqa: E731  # said once
    return re.sub(r"((?:p\d\d|max|deadline): )([\d.]+)(s|m)\b", longer, gates)


@dataclass(frozen=True)
class ScenarioOutcome:
    """Outcome of the test command."""

    code: int
    stderr: str
    table: str
    reports: Path
    results: dict[tuple[str, str], Result]


@pytest.fixture(scope="module")
def outcome(session_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioOutcome]:
    """Run all scenarios with one command on the session's cluster."""
    folder = tmp_path_factory.mktemp("scenarios")
    shutil.copytree(ROOT / "stages", folder / "stages")
    (folder / "fleets").mkdir()
    for name in SCENARIOS:
        (folder / "fleets" / f"{name}.yaml").write_text(shortened((ROOT / "fleets" / f"{name}.yaml").read_text()))
    (folder / "fleets" / "own-scheduler.yaml").write_text(OWN_SCHEDULER)
    in_process_sync.delete_managed_objects(session_cluster)
    for program in cli.isolated(folder):
        api = client.connect(kubeconfig=session_cluster.kubeconfig)
        with round_robin_scheduler.running(api, "kwokfleet.dev/fleet=own-scheduler"):
            arguments = ("--kubeconfig", str(session_cluster.kubeconfig), "--report-dir", str(folder / "reports"))
            with program.start("test", str(folder / "fleets"), *arguments, "--timeout", "120s") as process:
                table, stderr = process.communicate(timeout=END_S)
        api.close()
        stored_results = result_store.ResultStore(program.data_dir / "results").find()
        results = {(stored.fleet, stored.wave): stored.result() for stored in stored_results}
        yield ScenarioOutcome(process.returncode, stderr, table, folder / "reports", results)


def test_every_scenario_passes_its_gates(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """Exit code 0, and every wave ran once."""
    assert outcome.code == 0, outcome.stderr
    assert outcome.results.keys() == WAVES
    assert {name: result.passed for name, result in outcome.results.items()} == dict.fromkeys(WAVES, True)


def test_every_object_of_every_scenario_completes(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """Also on failing nodes, and those that waited for GPUs."""
    for name, result in outcome.results.items():
        assert result.objects.created == result.objects.total, name
        assert result.objects.failed == 0, name
        if result.template_kind == "Job":
            assert result.objects.completed == result.objects.total, name


def test_the_table_has_a_row_for_each_wave(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """In the order of the files, with its verdict."""
    rows = [line.split() for line in outcome.table.splitlines()[1:]]
    assert {row[0] for row in rows} == {"/".join(name) for name in WAVES}
    assert {row[-1] for row in rows} == {"passed"}


def test_gangs_have_eight_pods_each(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """All of them ran."""
    gangs = outcome.results["gang-bursts", "gangs"]
    assert gangs.pods.completed == 8 * gangs.objects.total


def test_each_scheduler_is_measured_separately(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """Latencies and throughput; a scheduler without Events has no Event latency."""
    result = outcome.results["own-scheduler", "pods"]
    for name in (round_robin_scheduler.NAME, "default-scheduler"):
        latency = result.latency("scheduling", f"pods/scheduler={name}", Clock.WATCH)
        assert latency is not None
        assert latency.count == 3
    assert {series.scheduler for series in result.throughput} == {"", round_robin_scheduler.NAME, "default-scheduler"}


def test_the_reports_are_written(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """JUnit and HTML."""
    assert list(ET.parse(outcome.reports / "junit.xml").getroot().iter("testcase"))  # noqa: S314  # our own
    assert list(outcome.reports.glob("*.html"))
    assert str(outcome.reports) in outcome.stderr


def test_the_test_removes_its_objects(cluster: ControlPlane, outcome: ScenarioOutcome) -> None:
    """No node, fleet or namespace is left."""
    assert cluster.get("nodes", "-l", "kwokfleet.dev/fleet")["items"] == []
    assert cluster.get("fleets")["items"] == []
    phases = {
        namespace["metadata"]["name"]: namespace["status"]["phase"] for namespace in cluster.get("namespaces")["items"]
    }
    assert not {name for name, phase in phases.items() if phase == "Active"} & {*SCENARIOS, "own-scheduler"}


def test_an_existing_fleet_is_an_error(cluster: ControlPlane, outcome: ScenarioOutcome, kwokfleet: cli.Cli) -> None:
    """Its waves have run already, and its objects are not the test's to delete."""
    kwokfleet.ok("sync", str(ROOT / "fleets" / "quickstart.yaml"), "--yes", "--kubeconfig", str(cluster.kubeconfig))
    done = kwokfleet.run("test", str(ROOT / "fleets" / "quickstart.yaml"), "--kubeconfig", str(cluster.kubeconfig))
    assert done.returncode == 2, done.stderr
    assert "this cluster already has fleet quickstart" in done.stderr
    assert len(cluster.get("nodes", "-l", "kwokfleet.dev/fleet=quickstart")["items"]) == 10
    kwokfleet.ok("delete", "quickstart", "--yes", "--kubeconfig", str(cluster.kubeconfig))
