"""The scenarios that are shipped, shortened, played at once on a real cluster through `kwokfleet test`.

They are made smaller and given more time, so that this says whether they work, not how fast this machine is.
Beside them plays a wave for a scheduler of our own: that is what people test.
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
"""How much more time everything may take here."""

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
    """Return a scenario that takes half a minute: fewer nodes and objects, all waves at once, generous gates."""
    text = re.sub(r"replicas: (\d{2,})", lambda found: f"replicas: {max(4, int(found[1]) // 2)}", text)
    text = re.sub(r"count: (\d{2,})", lambda found: f"count: {max(2, int(found[1]) // 10)}", text)
    text = re.sub(r"start: \{after: \w+\}", "start: {after: 1s}", text)
    text = re.sub(r"duration: \w+", "duration: 12s", text)
    text = re.sub(r"for: (\d{2,})s", lambda found: f"for: {int(found[1]) // 10 or 1}s", text)
    text = text.replace("every: 1m, for: 1s", "every: 10s, for: 8s")
    text = re.sub(r"throughput: \S+", "throughput: 0.1/s", text)
    head, *gates = re.split(r"(?=\n +expect:)", text)
    return head + "".join(_generous(each) for each in gates)


def _generous(gates: str) -> str:
    """Return the gates of a wave, and whatever follows them, with more time for each."""
    longer: Callable[[re.Match[str]], str] = lambda found: f"{found[1]}{float(found[2]) * GENEROUS:g}{found[3]}"  # noqa: E731  # said once
    return re.sub(r"((?:p\d\d|max|deadline): )([\d.]+)(s|m)\b", longer, gates)


@dataclass(frozen=True)
class Played:
    """What came of the test."""

    code: int
    said: str
    table: str
    reports: Path
    results: dict[tuple[str, str], Result]


@pytest.fixture(scope="module")
def played(session_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Play all of them by one command, on the session's cluster."""
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
                table, said = process.communicate(timeout=END_S)
        api.close()
        kept = result_store.ResultStore(program.data_dir / "results").find()
        results = {(each.fleet, each.wave): each.result() for each in kept}
        yield Played(process.returncode, said, table, folder / "reports", results)


def test_every_scenario_holds_what_it_expects(cluster: ControlPlane, played: Played) -> None:
    """Exit code 0, every wave played once, every gate held."""
    assert played.code == 0, played.said
    assert played.results.keys() == WAVES
    assert {name: each.passed for name, each in played.results.items()} == dict.fromkeys(WAVES, True)


def test_every_object_of_every_scenario_is_complete(cluster: ControlPlane, played: Played) -> None:
    """Also those whose nodes failed under them, and those that had to wait for GPUs."""
    for name, each in played.results.items():
        assert each.objects.created == each.objects.total, name
        assert each.objects.failed == 0, name
        if each.template_kind == "Job":
            assert each.objects.completed == each.objects.total, name


def test_the_table_has_a_row_for_each_wave(cluster: ControlPlane, played: Played) -> None:
    """In the order of the files, with what came of it."""
    rows = [line.split() for line in played.table.splitlines()[1:]]
    assert {row[0] for row in rows} == {"/".join(name) for name in WAVES}
    assert {row[-1] for row in rows} == {"passed"}


def test_gangs_have_eight_pods_each(cluster: ControlPlane, played: Played) -> None:
    """All of them ran."""
    gangs = played.results["gang-bursts", "gangs"]
    assert gangs.pods.completed == 8 * gangs.objects.total


def test_a_scheduler_of_ones_own_is_measured_by_itself(cluster: ControlPlane, played: Played) -> None:
    """Latencies and throughput are told for each scheduler, and one that emits no Event has no such time."""
    made = played.results["own-scheduler", "pods"]
    for name in (round_robin_scheduler.NAME, "default-scheduler"):
        latency = made.latency("scheduling", f"pods/scheduler={name}", Clock.WATCH)
        assert latency is not None
        assert latency.count == 3
    assert {each.scheduler for each in made.throughput} == {"", round_robin_scheduler.NAME, "default-scheduler"}


def test_the_reports_are_written(cluster: ControlPlane, played: Played) -> None:
    """JUnit for the pipeline, a page for people."""
    assert list(ET.parse(played.reports / "junit.xml").getroot().iter("testcase"))  # noqa: S314  # our own
    assert list(played.reports.glob("*.html"))
    assert str(played.reports) in played.said


def test_the_cluster_is_left_as_it_was(cluster: ControlPlane, played: Played) -> None:
    """No node, no fleet, no namespace of ours."""
    assert cluster.get("nodes", "-l", "kwokfleet.dev/fleet")["items"] == []
    assert cluster.get("fleets")["items"] == []
    there = {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.get("namespaces")["items"]}
    assert not {name for name, phase in there.items() if phase == "Active"} & {*SCENARIOS, "own-scheduler"}


def test_a_fleet_that_is_there_already_is_refused(cluster: ControlPlane, played: Played, kwokfleet: cli.Cli) -> None:
    """Its waves have been played, and what is there is not the test's to remove."""
    kwokfleet.ok("sync", str(ROOT / "fleets" / "quickstart.yaml"), "--yes", "--kubeconfig", str(cluster.kubeconfig))
    done = kwokfleet.run("test", str(ROOT / "fleets" / "quickstart.yaml"), "--kubeconfig", str(cluster.kubeconfig))
    assert done.returncode == 2, done.stderr
    assert "this cluster already has fleet quickstart" in done.stderr
    assert len(cluster.get("nodes", "-l", "kwokfleet.dev/fleet=quickstart")["items"]) == 10
    kwokfleet.ok("delete", "quickstart", "--yes", "--kubeconfig", str(cluster.kubeconfig))
