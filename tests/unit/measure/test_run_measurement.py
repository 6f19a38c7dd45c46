"""One Run that is measured: when it is over, what nobody saw of it, and what is left on the shelf."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import structlog

from kwokfleet import errors
from kwokfleet.api import fleet as fleet_api
from kwokfleet.kube import requests
from kwokfleet.kube.requests import Request, Response
from kwokfleet.measure import run_measurement
from kwokfleet.measure.result_store import ResultStore, StoredResult
from kwokfleet.measure.run_measurement import MeasurementEnvironment, RunMeasurement
from kwokfleet.render import workloads
from kwokfleet.waves.ledger import RunRecord, RunState
from kwokfleet.waves.run_executor import Submission
from tests.harness.pod_timelines import T0, PodTimeline

START = datetime.fromtimestamp(T0, UTC)
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
JOB = requests.Kind("batch/v1", "Job", "jobs", namespaced=True)


class Silent:
    """A cluster that is away: what a Run comes to does not hang on it."""

    host = "https://away.example"

    def send(self, request: Request) -> Response:
        """Do not answer."""
        raise errors.UnreachableError(f"nobody answers {request.path}")


class Telling(Silent):
    """A cluster that knows one Event, and another program's."""

    def send(self, request: Request) -> Response:
        """Answer with them."""
        assert "reason%3DScheduled" in request.path
        about = {"kind": "Pod", "namespace": "default", "name": PodTimeline().name}
        events = [{"involvedObject": about, "eventTime": "2027-01-15T08:00:01.500000Z"}, {"involvedObject": {}}]
        return Response(200, orjson.dumps({"items": events}))


def context(**wave: Any) -> workloads.RunContext:  # noqa: ANN401  # any part of a file
    """Return a Wave of one pod that completes."""
    spec = {
        "nodePools": [{"name": "general", "replicas": 1}],
        "lifecycles": [{"name": "ends", "pod": {"complete": {"after": "1s", "when": "always"}}}],
        "waves": [{"name": "stress", "template": POD, "lifecycle": "ends", **wave}],
    }
    fleet = fleet_api.Fleet.model_validate(
        {"apiVersion": fleet_api.API_VERSION, "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec}
    )
    return workloads.RunContext(fleet, fleet.spec.waves[0], "0")


def made(folder: Path, total: int = 1, entry: RunRecord | None = None, **wave: Any) -> RunMeasurement:  # noqa: ANN401  # as context
    """Begin to measure a Run."""
    kinds = frozenset({requests.POD, JOB})
    return RunMeasurement(
        context(**wave),
        entry or RunRecord("0", START),
        total,
        kinds,
        MeasurementEnvironment(ResultStore(folder), lambda _node: "", {}),
    )


def live(run: RunMeasurement, pod: PodTimeline) -> None:
    """Let a pod be submitted, and live."""
    due = START + timedelta(seconds=pod.created)
    run.submitted(Submission(pod.index, due, due))
    for seen, manifest, received in pod.events():
        run.event(requests.POD, seen.name, manifest, received)


def kept(folder: Path) -> StoredResult:
    """Return what is on the shelf."""
    [found] = ResultStore(folder).find()
    return found


def test_a_run_is_over_a_moment_after_its_last_object_once_it_is_played(tmp_path: Path) -> None:
    """As long as it is played there may be rounds of churn; the last events of pods come by another way."""
    run = made(tmp_path)
    live(run, PodTimeline(0, 0, 1, 2, 3))
    assert not run.is_over(T0 + 100)
    run.update_record(RunRecord("0", START, RunState.DONE))
    assert not run.is_over(T0 + 100)
    assert run.is_over(T0 + 100 + run_measurement.SETTLE_S)


def test_a_run_that_the_ledger_has_forgotten_was_done(tmp_path: Path) -> None:
    """Nobody waits for ever for what nobody will say."""
    run = made(tmp_path)
    live(run, PodTimeline(0, 0, 1, 2, 3))
    run.update_record(None)
    assert [run.is_over(T0 + 100), run.is_over(T0 + 200)] == [False, True]


def test_a_deadline_ends_a_run_but_not_while_it_is_suspended(tmp_path: Path) -> None:
    """The time of a suspension does not count."""
    run = made(tmp_path, expect={"deadline": "60s"})
    assert [run.is_over(T0 + 59), run.is_over(T0 + 60)] == [False, True]
    rested = run.record.suspended(START + timedelta(seconds=30))
    run.update_record(rested)
    assert not run.is_over(T0 + 90)
    run.update_record(rested.resumed(START + timedelta(seconds=130)))
    assert [run.is_over(T0 + 159), run.is_over(T0 + 160)] == [False, True]


def test_who_comes_after_the_deadline_looks_before_it_judges(tmp_path: Path) -> None:
    """What is in the cluster is known before the Run is over."""
    came = datetime.now(UTC)
    run = made(tmp_path, entry=RunRecord("0", came - timedelta(minutes=2)), expect={"deadline": "60s"})
    run.restore()
    now = came.timestamp() + 1
    assert not run.is_over(now)
    run.watch_resumed(requests.POD, now)
    run.watch_resumed(JOB, now)
    assert run.is_over(now)


def test_what_nobody_saw_of_several_kinds_is_one_gap(tmp_path: Path) -> None:
    """From the first that was lost to the last that is back; another kind's trouble is none of ours."""
    run = made(tmp_path)
    run.watch_lost(requests.NODE, T0 + 1, "nodes")
    run.watch_lost(JOB, T0 + 2, "the connection broke")
    run.watch_lost(requests.POD, T0 + 3, "the connection broke")
    run.watch_resumed(JOB, T0 + 4)
    run.watch_resumed(JOB, T0 + 5)
    run.watch_resumed(requests.POD, T0 + 6)
    result = run.finish(Silent(), "Done")
    [gap] = result.gaps
    assert (gap.start.timestamp(), gap.end.timestamp(), gap.why) == (T0 + 2, T0 + 6, "the connection broke")


def test_who_goes_on_takes_up_the_notes_and_tells_of_the_gap(tmp_path: Path) -> None:
    """From the last note on; without notes, from the start."""
    first = made(tmp_path, 2)
    live(first, PodTimeline(0, 0, 1, 2, 3))
    first.tick(T0 + 4, {})
    first.release()
    second = made(tmp_path, 2)
    second.restore()
    for kind in (requests.POD, JOB):
        second.listing(kind)
    second.event(requests.POD, "LISTED", PodTimeline(0, 0, 1, 2, 3).at(9), T0 + 20)
    second.listed(requests.POD, T0 + 20)
    for kind in (requests.POD, JOB):
        second.watch_resumed(kind, T0 + 20)
    live(second, PodTimeline(1, 21, 22, 23, 24))
    result = second.finish(Silent(), "Done")
    [gap] = result.gaps
    assert (gap.start.timestamp(), gap.end.timestamp(), gap.why) == (T0 + 4, T0 + 20, run_measurement.NOT_RUNNING)
    assert (result.pods.created, result.pods.completed) == (2, 2)
    elsewhere = made(tmp_path / "elsewhere")
    elsewhere.restore()
    [gap] = elsewhere.finish(Silent(), "Done").gaps
    assert gap.start == START


def test_a_run_that_is_retried_keeps_what_was_measured_before(tmp_path: Path) -> None:
    """The time in which it was over is a gap of its own kind."""
    first = made(tmp_path, 2)
    live(first, PodTimeline(0, 0, 1, 2, 3))
    first.tick(T0 + 4, {})
    first.finish(Silent(), "Cancelled")
    again = made(tmp_path, 2)
    again.restore()
    for kind in (requests.POD, JOB):
        again.watch_resumed(kind, T0 + 20)
    result = again.finish(Silent(), "Done")
    assert [gap.why for gap in result.gaps] == [run_measurement.BEFORE_RETRY]
    assert result.pods.completed == 1


def test_what_is_left_is_the_result_the_pods_and_the_notes(tmp_path: Path) -> None:
    """Judged when it is done, not when it was cancelled or goes on; with the schedulers' own times."""
    run = made(tmp_path, expect={"failures": 0})
    live(run, PodTimeline(0, 0, 1, 2, 3))
    run.tick(T0 + 4, {})
    before = kept(tmp_path)
    assert (before.result().state, before.result().gates, list(before.pods())) == ("Running", (), [])
    result = run.finish(Telling(), "Done")
    assert kept(tmp_path).result() == result
    assert ([gate.passed for gate in result.gates], result.state) == ([True], "Done")
    [pod] = kept(tmp_path).pods()
    assert (pod.api["created"], pod.api["event"]) == (T0, T0 + 1.5)
    assert made(tmp_path, expect={"failures": 0}).finish(Silent(), "Cancelled").gates == ()


def test_a_shelf_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """It is said once, and the Run is judged."""
    (tmp_path / "lab").write_text("not a folder")
    run = made(tmp_path, expect={"failures": 0})
    live(run, PodTimeline(0, 0, 1, 2, 3))
    with structlog.testing.capture_logs() as said:
        for second in range(3):
            run.tick(T0 + second, {})
        assert run.finish(Silent(), "Done").gates[0].passed
        run.release()
    assert [each["event"] for each in said].count("result_not_stored") == 1
