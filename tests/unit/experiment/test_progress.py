"""The Waves a test waits for, the steps of their Runs, and their failures."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api.fleet import Fleet
from kwokfleet.experiment import progress
from kwokfleet.experiment.progress import ExpectedWave, RunProgress, RunStep, WaveSelection
from kwokfleet.measure.result import GateResult, Result
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict, WaveLedger

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
HALF_AN_HOUR = timedelta(minutes=30)
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
EXPECTED = ExpectedWave("lab", "jobs", has_gates=True, allows_failures=False)


def select(*waves: dict[str, Any], within: timedelta = HALF_AN_HOUR, **spec: object) -> WaveSelection:
    """Select the Waves of a Fleet for a test, by default of half an hour."""
    named = [{"name": f"wave-{number}", "template": POD, **wave} for number, wave in enumerate(waves)]
    fleet = Fleet.model_validate(
        {
            "apiVersion": "kwokfleet.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": "lab"},
            "spec": {"waves": named, **spec},
        }
    )
    return progress.select_waves([fleet], NOW, within)


def finished(verdict: str = "Passed", **fields: Any) -> RunRecord:  # noqa: ANN401  # fields of a RunRecord
    """Return a Run that has submitted all objects."""
    return RunRecord(
        "0", NOW, **{"state": RunState.DONE, "submitted": 10, "total": 10, "verdict": RunVerdict(verdict), **fields}
    )


def measured(*gates: GateResult, end: datetime | None = NOW + timedelta(seconds=21.5)) -> Result:
    """Return the Result of a Run."""
    return Result(fleet="lab", wave="jobs", run="0", start=NOW, end=end, state="Done", gates=gates)


def progress_of(
    record: RunRecord | None, result: Result | None = None, expected: ExpectedWave = EXPECTED
) -> RunProgress:
    """Return the progress of a Wave with at most one Run."""
    key = ("lab", "jobs", "0")
    (run,) = progress.run_progress([expected], {key: record} if record else {}, {key: result} if result else {})
    return run


@pytest.mark.parametrize(
    "start",
    [{"after": "10s"}, {"after": "0s"}, {"at": "2026-03-02T08:20:00Z"}, {"every": "10m"}, {"cron": "*/15 * * * *"}],
    ids=str,
)
def test_a_wave_that_starts_in_time_is_expected(start: dict[str, Any]) -> None:
    """Every kind of start time counts."""
    selection = select({"start": start})
    assert [str(wave) for wave in selection.expected] == ["lab/wave-0"]


def test_a_wave_without_a_start_is_due_at_once() -> None:
    """The daemon does the same."""
    assert [str(wave) for wave in select({}, within=timedelta(0)).expected] == ["lab/wave-0"]


def test_a_wave_that_starts_after_the_test_is_late() -> None:
    """Its start time is reported before a cluster is started."""
    selection = select({"start": {"cron": "30 0 * * *"}}, {"start": {"after": "31m"}})
    assert not selection.expected
    assert selection.late == (
        ("lab/wave-0", datetime(2026, 3, 3, 0, 30, tzinfo=UTC)),
        ("lab/wave-1", NOW + timedelta(minutes=31)),
    )


def test_a_wave_with_a_past_start_is_not_expected() -> None:
    """One second is enough."""
    selection = select({"start": {"at": "2026-03-02T07:59:59Z"}})
    assert (selection.expected, selection.past) == ((), ("lab/wave-0",))


def test_suspended_waves_are_not_expected() -> None:
    """A Wave or its whole Fleet can be suspended."""
    assert select({"suspend": True}, {}).suspended == ("lab/wave-0",)
    assert select({}, {}, suspend=True).suspended == ("lab/wave-0", "lab/wave-1")


def test_gates_are_known_before_the_test_starts() -> None:
    """The CLI reports a test that cannot fail."""
    selection = select({}, {"expect": {"deadline": "1m"}}, {"expect": {"failures": 0}})
    gates = [(wave.has_gates, wave.allows_failures) for wave in selection.expected]
    assert gates == [(False, False), (True, False), (True, True)]


def test_a_run_is_finished_only_after_its_verdict() -> None:
    """Submitted objects are measured until they are complete."""
    records = [None, RunRecord("0", NOW, submitted=3, total=10), finished(""), finished("Passed")]
    steps = [progress_of(record).step for record in records]
    assert steps == [RunStep.WAITING, RunStep.SUBMITTING, RunStep.MEASURING, RunStep.FINISHED]


def test_a_test_waits_only_for_the_first_run_of_a_wave() -> None:
    """A recurring Wave has no last Run."""
    later = RunRecord("1", NOW + timedelta(seconds=10))
    records = {("lab", "jobs", "1"): later, ("lab", "jobs", "0"): finished()}
    runs = progress.run_progress([EXPECTED], records, {})
    assert [(run.name, run.expected, run.step) for run in runs] == [
        ("lab/jobs", True, RunStep.FINISHED),
        ("lab/jobs/1", False, RunStep.SUBMITTING),
    ]
    assert progress.all_finished(runs)


def test_a_test_is_unfinished_while_an_expected_wave_has_no_run() -> None:
    """Finished Runs of other Waves do not count."""
    other = ExpectedWave("lab", "more", has_gates=False, allows_failures=False)
    runs = progress.run_progress([EXPECTED, other], {("lab", "jobs", "0"): finished()}, {})
    assert not progress.all_finished(runs)


def test_the_duration_counts_from_the_scheduled_start() -> None:
    """It ends with the last completion, and is unknown before."""
    assert progress_of(finished(), measured()).duration == timedelta(seconds=21.5)
    assert progress_of(finished(), measured(end=None)).duration is None
    assert progress_of(finished()).duration is None


def test_a_failed_gate_is_a_failure() -> None:
    """The message has the limit and the measured value."""
    bad = GateResult(name="podStartup.p99", want="at most 5s", got="7.2s", passed=False)
    good = GateResult(name="failures", want="at most 0", got="0", passed=True)
    failures = progress_of(finished("Failed"), measured(bad, good)).failures
    assert failures == ("podStartup.p99: wanted at most 5s, got 7.2s",)
    assert progress_of(finished(), measured(good)).failures == ()


def test_a_bad_verdict_without_a_result_is_a_failure() -> None:
    """A missing Result must not make a test pass."""
    assert progress_of(finished("Failed")).failures == ("a gate failed",)
    assert progress_of(finished("NoData")).failures == ("a gate has no data",)
    assert progress_of(finished("Measured")).failures == ()


def test_rejected_objects_are_a_failure_unless_the_wave_has_a_gate_for_them() -> None:
    """Objects that do not exist were not tested."""
    record = finished(rejected=((0, 2),), error="Pod jobs-0: 403 quota")
    failures = progress_of(record, measured()).failures
    assert failures == ("3 of 10 objects were rejected: Pod jobs-0: 403 quota",)
    tolerant = ExpectedWave("lab", "jobs", has_gates=True, allows_failures=True)
    assert progress_of(record, measured(), tolerant).failures == ()
    later = {("lab", "jobs", "0"): finished(), ("lab", "jobs", "1"): dataclasses.replace(record, name="1")}
    assert [run.failures for run in progress.run_progress([tolerant], later, {})] == [(), ()]


def test_a_cancelled_run_is_a_failure() -> None:
    """Its verdict does not matter."""
    record = finished("Measured", state=RunState.CANCELLED)
    assert progress_of(record, measured()).failures == ("the run was cancelled",)


def test_run_records_have_fleet_wave_and_run_as_key() -> None:
    """All Runs of a Ledger are returned."""
    ledger = WaveLedger(NOW, NOW, (finished(),))
    assert progress.run_records("lab", {"jobs": ledger}) == {("lab", "jobs", "0"): finished()}


def test_more_than_three_names_are_counted() -> None:
    """Messages stay short."""
    assert progress.abbreviate(["a", "b", "c"]) == "a, b, c"
    assert progress.abbreviate(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
