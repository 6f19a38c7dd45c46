"""What a test waits for, how far it is, and when its answer is no."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api.fleet import Fleet
from kwokfleet.experiment import progress
from kwokfleet.experiment.progress import Awaited, Step
from kwokfleet.measure.result import GateResult, Result
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict, WaveLedger

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
HALF_AN_HOUR = timedelta(minutes=30)
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
AWAITED = Awaited("lab", "jobs", NOW, gated=True, may_fail=False)


def fleet(*waves: dict[str, Any], **spec: object) -> Fleet:
    """Return a Fleet with some Waves."""
    named = [{"name": f"wave-{number}", "template": POD, **wave} for number, wave in enumerate(waves)]
    return Fleet.model_validate(
        {
            "apiVersion": "kwokfleet.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": "lab"},
            "spec": {"waves": named, **spec},
        }
    )


def played(verdict: str = "Passed", **fields: Any) -> RunRecord:  # noqa: ANN401  # fields of an Entry
    """Return a Run that is over."""
    return RunRecord(
        "0", NOW, **{"state": RunState.DONE, "submitted": 10, "total": 10, "verdict": RunVerdict(verdict), **fields}
    )


def measured(*gates: GateResult, end: datetime | None = NOW + timedelta(seconds=21.5)) -> Result:
    """Return the Result of a Run."""
    return Result(fleet="lab", wave="jobs", run="0", start=NOW, end=end, state="Done", gates=gates)


def part(entry: RunRecord | None, result: Result | None = None, awaited: Awaited = AWAITED) -> progress.Part:
    """Return how a Wave with one Run fares."""
    name = ("lab", "jobs", "0")
    found = progress.parts([awaited], {name: entry} if entry else {}, {name: result} if result else {})
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "start",
    [{"after": "10s"}, {"after": "0s"}, {"at": "2026-03-02T08:20:00Z"}, {"every": "10m"}, {"cron": "*/15 * * * *"}],
    ids=str,
)
def test_a_wave_that_is_due_in_time_is_waited_for(start: dict[str, Any]) -> None:
    """Whatever way its time is written."""
    cast = progress.cast([fleet({"start": start})], NOW, HALF_AN_HOUR)
    assert [str(each) for each in cast.awaited] == ["lab/wave-0"]
    assert NOW <= cast.awaited[0].due <= NOW + HALF_AN_HOUR


def test_a_wave_without_a_start_is_due_at_once() -> None:
    """As the daemon has it."""
    assert progress.cast([fleet({})], NOW, HALF_AN_HOUR).awaited[0].due == NOW


def test_a_wave_that_is_due_later_is_told_with_its_time() -> None:
    """Nobody should start a cluster for a Run that comes at night."""
    waves: list[dict[str, Any]] = [{"start": {"cron": "30 0 * * *"}}, {"start": {"after": "31m"}}]
    cast = progress.cast([fleet(*waves)], NOW, HALF_AN_HOUR)
    assert not cast.awaited
    assert cast.late == (
        ("lab/wave-0", datetime(2026, 3, 3, 0, 30, tzinfo=UTC)),
        ("lab/wave-1", NOW + timedelta(minutes=31)),
    )


def test_a_wave_whose_time_is_past_never_comes() -> None:
    """Not even by a second."""
    cast = progress.cast([fleet({"start": {"at": "2026-03-02T07:59:59Z"}})], NOW, HALF_AN_HOUR)
    assert (cast.awaited, cast.never) == ((), ("lab/wave-0",))


def test_what_is_suspended_is_not_waited_for() -> None:
    """A Wave, or a whole Fleet."""
    assert progress.cast([fleet({"suspend": True}, {})], NOW, HALF_AN_HOUR).asleep == ("lab/wave-0",)
    assert progress.cast([fleet({}, {}, suspend=True)], NOW, HALF_AN_HOUR).asleep == ("lab/wave-0", "lab/wave-1")


def test_gates_are_known_before_anything_is_played() -> None:
    """So that somebody can be told that nothing can fail."""
    waves: list[dict[str, Any]] = [{}, {"expect": {"deadline": "1m"}}, {"expect": {"failures": 0}}]
    cast = progress.cast([fleet(*waves)], NOW, HALF_AN_HOUR)
    assert [(each.gated, each.may_fail) for each in cast.awaited] == [(False, False), (True, False), (True, True)]


def test_a_wave_goes_from_waiting_to_over() -> None:
    """Submitted is not over: what was submitted is measured until it is complete."""
    steps = [
        part(None).step,
        part(RunRecord("0", NOW, submitted=3, total=10)).step,
        part(played("")).step,
        part(played("Passed")).step,
    ]
    assert steps == [Step.WAITING, Step.PLAYING, Step.MEASURING, Step.OVER]


def test_the_first_run_of_a_wave_is_waited_for_and_no_other() -> None:
    """One that recurs has no end."""
    later = RunRecord("1", NOW + timedelta(seconds=10))
    entries = {("lab", "jobs", "1"): later, ("lab", "jobs", "0"): played()}
    found = progress.parts([AWAITED], entries, {})
    assert [(each.name, each.awaited is not None, each.step) for each in found] == [
        ("lab/jobs", True, Step.OVER),
        ("lab/jobs/1", False, Step.PLAYING),
    ]
    assert progress.over(found)


def test_it_is_not_over_while_one_wave_has_not_begun() -> None:
    """However many others are."""
    other = Awaited("lab", "more", NOW, gated=False, may_fail=False)
    found = progress.parts([AWAITED, other], {("lab", "jobs", "0"): played()}, {})
    assert not progress.over(found)


def test_the_time_it_took_counts_from_when_it_was_due() -> None:
    """To when all was complete; unknown while it is not."""
    assert part(played(), measured()).took == timedelta(seconds=21.5)
    assert part(played(), measured(end=None)).took is None
    assert part(played()).took is None


def test_a_gate_that_did_not_hold_is_a_complaint() -> None:
    """With what was wanted and what was measured."""
    bad = GateResult(name="podStartup.p99", want="at most 5s", got="7.2s", passed=False)
    good = GateResult(name="failures", want="at most 0", got="0", passed=True)
    assert part(played("Failed"), measured(bad, good)).complaints == ("podStartup.p99: wanted at most 5s, got 7.2s",)
    assert part(played(), measured(good)).complaints == ()


def test_a_verdict_without_its_result_is_a_complaint_too() -> None:
    """A Result that cannot be read makes nothing good."""
    assert part(played("Failed")).complaints == ("a gate did not hold",)
    assert part(played("NoData")).complaints == ("there is no data for a gate",)
    assert part(played("Measured")).complaints == ()


def test_objects_that_were_refused_are_a_complaint_unless_the_wave_says_how_many_may() -> None:
    """Where nobody wrote a gate for it, a test whose objects do not exist must not pass."""
    entry = played(rejected=((0, 2),), error="Pod jobs-0: 403 quota")
    assert part(entry, measured()).complaints == ("3 of 10 objects were refused: Pod jobs-0: 403 quota",)
    may_fail = Awaited("lab", "jobs", NOW, gated=True, may_fail=True)
    assert part(entry, measured(), may_fail).complaints == ()


def test_a_run_that_somebody_cancelled_is_a_complaint() -> None:
    """It was not played to its end."""
    entry = played("Measured", state=RunState.CANCELLED)
    assert part(entry, measured()).complaints == ("it was cancelled",)


def test_ledgers_are_read_by_fleet_wave_and_run() -> None:
    """All Runs that they know of."""
    page = WaveLedger(NOW, NOW, (played(),))
    assert progress.entries({"lab": {"jobs": page}}) == {("lab", "jobs", "0"): played()}


def test_many_names_are_counted() -> None:
    """Three are named."""
    assert progress.some(["a", "b", "c"]) == "a, b, c"
    assert progress.some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
