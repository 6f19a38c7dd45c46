"""What a Result comes to: in a word, in a sentence, and as a condition of its Fleet."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kwokfleet.api.wave import Wave
from kwokfleet.measure import verdicts
from kwokfleet.measure.result import Clock, Counts, GateResult, Latency, Result, ResultSummary
from kwokfleet.waves import ledger
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict, WaveLedger

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HELD = GateResult(name="failures", want="at most 0", got="0", passed=True)
MISSED = GateResult(name="podStartup.p99", want="at most 5s", got="7.2s", passed=False)
UNKNOWN = GateResult(name="completion.p99", want="at most 1m", got="no data", passed=False, no_data=True)


def made(*gates: GateResult, **fields: Any) -> Result:  # noqa: ANN401  # of a Result
    """Return the Result of a Run of which ten objects were seen."""
    given: dict[str, Any] = {"state": "Done", "objects": Counts(total=10, created=10), **fields}
    return Result(fleet="lab", wave="load", run="1", start=NOON, gates=gates, **given)


def wave(name: str, **expect: str) -> Wave:
    """Return a Wave, with gates if any are given."""
    given: dict[str, Any] = {"name": name, "template": {"apiVersion": "v1", "kind": "ConfigMap"}}
    return Wave.model_validate(given | ({"expect": expect} if expect else {}))


def page(*found: RunVerdict) -> WaveLedger:
    """Return a page with a Run for each verdict, the newest last."""
    runs = tuple(
        RunRecord(str(number), NOON, RunState.DONE if each else RunState.RUNNING, verdict=each)
        for number, each in enumerate(found)
    )
    return WaveLedger(NOON, NOON, runs)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (made(), RunVerdict.MEASURED),
        (made(HELD), RunVerdict.PASSED),
        (made(HELD, MISSED), RunVerdict.FAILED),
        (made(UNKNOWN, MISSED), RunVerdict.FAILED),
        (made(HELD, UNKNOWN), RunVerdict.NO_DATA),
        (made(objects=Counts(total=10)), RunVerdict.NO_DATA),
        (made(state="Cancelled"), RunVerdict.MEASURED),
    ],
)
def test_a_result_comes_to_one_word(result: Result, verdict: RunVerdict) -> None:
    """A gate that failed counts most; one without data is no success; without gates it was measured."""
    assert verdicts.verdict(result) is verdict


def test_the_gates_that_did_not_hold_are_told_with_what_was_wanted_and_got() -> None:
    """Those that held are not."""
    assert verdicts.failed_gates(made(HELD, MISSED)) == "podStartup.p99: wanted at most 5s, got 7.2s"
    assert verdicts.failed_gates(made(HELD)) == ""


def test_what_is_shown_of_a_result_has_no_number_where_there_is_none() -> None:
    """A quantile without data is left out: it is not 0."""
    latency = Latency(name="podStartup", of="pods", clock=Clock.WATCH, count=3, p50=1.5, p99=2.0)
    shown = verdicts.summarize(made(HELD, MISSED, latencies=(latency,)))
    assert shown.latencies == {("podStartup", "pods", "watch", "p50"): 1.5, ("podStartup", "pods", "watch", "p99"): 2.0}
    assert shown.gates == {"failures": True, "podStartup.p99": False}


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        ((), "Unknown", "NotJudged"),
        ((RunVerdict.OPEN,), "Unknown", "NotJudged"),
        ((RunVerdict.PASSED,), "True", "GatesPassed"),
        ((RunVerdict.FAILED, RunVerdict.PASSED), "True", "GatesPassed"),
        ((RunVerdict.PASSED, RunVerdict.FAILED), "False", "GatesFailed"),
        ((RunVerdict.PASSED, RunVerdict.NO_DATA), "Unknown", "NoData"),
        ((RunVerdict.FAILED, RunVerdict.OPEN), "False", "GatesFailed"),
        ((RunVerdict.PASSED, RunVerdict.MEASURED), "True", "GatesPassed"),
    ],
)
def test_the_last_judged_run_decides(found: tuple[RunVerdict, ...], status: str, reason: str) -> None:
    """One that is under way, or was cancelled, says nothing yet."""
    condition = verdicts.condition([wave("load", deadline="1m")], {"load": page(*found)}, {}, "lab")
    assert condition is not None
    assert (condition["type"], condition["status"], condition["reason"]) == ("GatesPassed", status, reason)


def test_one_wave_that_failed_is_enough_and_is_named_with_its_gates() -> None:
    """Whatever the others came to."""
    waves = [wave("good", deadline="1m"), wave("load", deadline="1m"), wave("free")]
    pages = {"good": page(RunVerdict.PASSED), "load": page(RunVerdict.FAILED)}
    known = {("lab", "load"): ResultSummary("lab", "load", "0", "Failed", "deadline: wanted 1m, got 2m")}
    condition = verdicts.condition(waves, pages, known, "lab")
    assert condition is not None
    assert condition["message"] == "failed: load/0: deadline: wanted 1m, got 2m"
    older = {name: replace(each, run="7") for name, each in known.items()}
    assert verdicts.condition(waves, pages, older, "lab") == condition | {"message": "failed: load/0"}


def test_a_fleet_that_expects_nothing_has_no_such_condition() -> None:
    """Nobody need wonder what it means."""
    assert verdicts.condition([wave("free")], {"free": page(RunVerdict.MEASURED)}, {}, "lab") is None


def test_a_verdict_is_in_the_ledger_and_none_is_not() -> None:
    """What was written before there were verdicts is read as before."""
    before = page(RunVerdict.FAILED, RunVerdict.OPEN)
    [told] = ledger.serialize({"load": before})
    assert [run.get("verdict") for run in told["runs"]] == ["Failed", None]
    assert ledger.parse([told])["load"].runs == before.runs
