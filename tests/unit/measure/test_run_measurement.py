"""RunMeasurement: end of a Run, gaps and the stored result."""

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


class UnreachableClient:
    """Client of an unreachable cluster."""

    host = "https://away.example"

    def send(self, request: Request) -> Response:
        """Raise UnreachableError."""
        raise errors.UnreachableError(f"nobody answers {request.path}")


class EventsClient(UnreachableClient):
    """Client that returns one Scheduled Event and one unrelated Event."""

    def send(self, request: Request) -> Response:
        """Return the Events."""
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


def new_measurement(folder: Path, total: int = 1, entry: RunRecord | None = None, **wave: Any) -> RunMeasurement:  # noqa: ANN401  # as context
    """Return a RunMeasurement."""
    kinds = frozenset({requests.POD, JOB})
    return RunMeasurement(
        context(**wave),
        entry or RunRecord("0", START),
        total,
        kinds,
        MeasurementEnvironment(ResultStore(folder), lambda _node: "", {}),
    )


def run_pod(run: RunMeasurement, pod: PodTimeline) -> None:
    """Submit a pod and deliver its events."""
    due = START + timedelta(seconds=pod.created)
    run.submitted(Submission(pod.index, due, due))
    for seen, manifest, received in pod.events():
        run.event(requests.POD, seen.name, manifest, received)


def stored_result(folder: Path) -> StoredResult:
    """Return the only stored result."""
    [stored] = ResultStore(folder).find()
    return stored


def test_a_done_run_is_over_after_the_settle_time(tmp_path: Path) -> None:
    """A running Run may still churn, and the last pod events may be late."""
    run = new_measurement(tmp_path)
    run_pod(run, PodTimeline(0, 0, 1, 2, 3))
    assert not run.is_over(T0 + 100)
    run.update_record(RunRecord("0", START, RunState.DONE))
    assert not run.is_over(T0 + 100)
    assert run.is_over(T0 + 100 + run_measurement.SETTLE_S)


def test_a_run_missing_from_the_ledger_counts_as_done(tmp_path: Path) -> None:
    """Otherwise it would never end."""
    run = new_measurement(tmp_path)
    run_pod(run, PodTimeline(0, 0, 1, 2, 3))
    run.update_record(None)
    assert [run.is_over(T0 + 100), run.is_over(T0 + 200)] == [False, True]


def test_a_deadline_excludes_suspended_time(tmp_path: Path) -> None:
    """A suspended Run does not reach its deadline."""
    run = new_measurement(tmp_path, expect={"deadline": "60s"})
    assert [run.is_over(T0 + 59), run.is_over(T0 + 60)] == [False, True]
    suspended = run.record.suspended(START + timedelta(seconds=30))
    run.update_record(suspended)
    assert not run.is_over(T0 + 90)
    run.update_record(suspended.resumed(START + timedelta(seconds=130)))
    assert [run.is_over(T0 + 159), run.is_over(T0 + 160)] == [False, True]


def test_a_restart_after_the_deadline_lists_before_the_run_is_over(tmp_path: Path) -> None:
    """The result includes the state of the cluster."""
    restarted_at = datetime.now(UTC)
    run = new_measurement(
        tmp_path, entry=RunRecord("0", restarted_at - timedelta(minutes=2)), expect={"deadline": "60s"}
    )
    run.restore()
    now = restarted_at.timestamp() + 1
    assert not run.is_over(now)
    run.watch_resumed(requests.POD, now)
    run.watch_resumed(JOB, now)
    assert run.is_over(now)


def test_overlapping_watch_losses_are_one_gap(tmp_path: Path) -> None:
    """From the first loss to the last recovery; kinds outside the Run are ignored."""
    run = new_measurement(tmp_path)
    run.watch_lost(requests.NODE, T0 + 1, "nodes")
    run.watch_lost(JOB, T0 + 2, "the connection broke")
    run.watch_lost(requests.POD, T0 + 3, "the connection broke")
    run.watch_resumed(JOB, T0 + 4)
    run.watch_resumed(JOB, T0 + 5)
    run.watch_resumed(requests.POD, T0 + 6)
    result = run.finish(UnreachableClient(), "Done")
    [gap] = result.gaps
    assert (gap.start.timestamp(), gap.end.timestamp(), gap.why) == (T0 + 2, T0 + 6, "the connection broke")


def test_a_restart_restores_the_notes_and_records_a_gap(tmp_path: Path) -> None:
    """The gap begins at the last note, or at the start of the Run without notes."""
    first = new_measurement(tmp_path, 2)
    run_pod(first, PodTimeline(0, 0, 1, 2, 3))
    first.tick(T0 + 4, {})
    first.release()
    second = new_measurement(tmp_path, 2)
    second.restore()
    for kind in (requests.POD, JOB):
        second.listing(kind)
    second.event(requests.POD, "LISTED", PodTimeline(0, 0, 1, 2, 3).at(9), T0 + 20)
    second.listed(requests.POD, T0 + 20)
    for kind in (requests.POD, JOB):
        second.watch_resumed(kind, T0 + 20)
    run_pod(second, PodTimeline(1, 21, 22, 23, 24))
    result = second.finish(UnreachableClient(), "Done")
    [gap] = result.gaps
    assert (gap.start.timestamp(), gap.end.timestamp(), gap.why) == (T0 + 4, T0 + 20, run_measurement.NOT_RUNNING)
    assert (result.pods.created, result.pods.completed) == (2, 2)
    elsewhere = new_measurement(tmp_path / "elsewhere")
    elsewhere.restore()
    [gap] = elsewhere.finish(UnreachableClient(), "Done").gaps
    assert gap.start == START


def test_a_retried_run_keeps_earlier_measurements(tmp_path: Path) -> None:
    """The time before the retry is a gap with its own reason."""
    first = new_measurement(tmp_path, 2)
    run_pod(first, PodTimeline(0, 0, 1, 2, 3))
    first.tick(T0 + 4, {})
    first.finish(UnreachableClient(), "Cancelled")
    again = new_measurement(tmp_path, 2)
    again.restore()
    for kind in (requests.POD, JOB):
        again.watch_resumed(kind, T0 + 20)
    result = again.finish(UnreachableClient(), "Done")
    assert [gap.why for gap in result.gaps] == [run_measurement.BEFORE_RETRY]
    assert result.pods.completed == 1


def test_a_finished_run_stores_result_and_pods(tmp_path: Path) -> None:
    """Gates are evaluated only for state Done; Scheduled Events are included."""
    run = new_measurement(tmp_path, expect={"failures": 0})
    run_pod(run, PodTimeline(0, 0, 1, 2, 3))
    run.tick(T0 + 4, {})
    before = stored_result(tmp_path)
    assert (before.result().state, before.result().gates, list(before.pods())) == ("Running", (), [])
    result = run.finish(EventsClient(), "Done")
    assert stored_result(tmp_path).result() == result
    assert ([gate.passed for gate in result.gates], result.state) == ([True], "Done")
    [pod] = stored_result(tmp_path).pods()
    assert (pod.api["created"], pod.api["event"]) == (T0, T0 + 1.5)
    assert new_measurement(tmp_path, expect={"failures": 0}).finish(UnreachableClient(), "Cancelled").gates == ()


def test_a_result_store_error_does_not_end_the_run(tmp_path: Path) -> None:
    """It is logged once, and gates are still evaluated."""
    (tmp_path / "lab").write_text("not a folder")
    run = new_measurement(tmp_path, expect={"failures": 0})
    run_pod(run, PodTimeline(0, 0, 1, 2, 3))
    with structlog.testing.capture_logs() as logs:
        for second in range(3):
            run.tick(T0 + second, {})
        assert run.finish(UnreachableClient(), "Done").gates[0].passed
        run.release()
    assert [entry["event"] for entry in logs].count("result_not_stored") == 1
