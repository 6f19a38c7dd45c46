"""Verdicts, summaries and the GatesPassed condition of Results."""

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
PASSED_GATE = GateResult(name="failures", want="at most 0", got="0", passed=True)
FAILED_GATE = GateResult(name="podStartup.p99", want="at most 5s", got="7.2s", passed=False)
NO_DATA_GATE = GateResult(name="completion.p99", want="at most 1m", got="no data", passed=False, no_data=True)


def result(*gates: GateResult, **fields: Any) -> Result:  # noqa: ANN401  # of a Result
    """Return the Result of a Run with ten created objects."""
    values: dict[str, Any] = {"state": "Done", "objects": Counts(total=10, created=10), **fields}
    return Result(fleet="lab", wave="load", run="1", start=NOON, gates=gates, **values)


def wave(name: str, **expect: str) -> Wave:
    """Return a Wave with optional gates."""
    values: dict[str, Any] = {"name": name, "template": {"apiVersion": "v1", "kind": "ConfigMap"}}
    return Wave.model_validate(values | ({"expect": expect} if expect else {}))


def wave_ledger(*run_verdicts: RunVerdict) -> WaveLedger:
    """Return a ledger with one Run per verdict, the newest last."""
    runs = tuple(
        RunRecord(str(number), NOON, RunState.DONE if each else RunState.RUNNING, verdict=each)
        for number, each in enumerate(run_verdicts)
    )
    return WaveLedger(NOON, NOON, runs)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (result(), RunVerdict.MEASURED),
        (result(PASSED_GATE), RunVerdict.PASSED),
        (result(PASSED_GATE, FAILED_GATE), RunVerdict.FAILED),
        (result(NO_DATA_GATE, FAILED_GATE), RunVerdict.FAILED),
        (result(PASSED_GATE, NO_DATA_GATE), RunVerdict.NO_DATA),
        (result(objects=Counts(total=10)), RunVerdict.NO_DATA),
        (result(state="Cancelled"), RunVerdict.MEASURED),
    ],
)
def test_the_verdict_of_a_result(result: Result, verdict: RunVerdict) -> None:
    """Failed outranks NoData; without gates the verdict is Measured."""
    assert verdicts.verdict(result) is verdict


def test_failed_gates_are_listed_with_limit_and_value() -> None:
    """Passed gates are not listed."""
    assert verdicts.failed_gates(result(PASSED_GATE, FAILED_GATE)) == "podStartup.p99: wanted at most 5s, got 7.2s"
    assert verdicts.failed_gates(result(PASSED_GATE)) == ""


def test_a_summary_omits_quantiles_without_data() -> None:
    """They are not reported as 0."""
    latency = Latency(name="podStartup", of="pods", clock=Clock.WATCH, count=3, p50=1.5, p99=2.0)
    summary = verdicts.summarize(result(PASSED_GATE, FAILED_GATE, latencies=(latency,)))
    assert summary.latencies == {
        ("podStartup", "pods", "watch", "p50"): 1.5,
        ("podStartup", "pods", "watch", "p99"): 2.0,
    }
    assert summary.gates == {"failures": True, "podStartup.p99": False}


@pytest.mark.parametrize(
    ("run_verdicts", "status", "reason"),
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
def test_the_last_judged_run_decides(run_verdicts: tuple[RunVerdict, ...], status: str, reason: str) -> None:
    """Running and cancelled Runs are ignored."""
    condition = verdicts.condition([wave("load", deadline="1m")], {"load": wave_ledger(*run_verdicts)}, {}, "lab")
    assert condition is not None
    assert (condition["type"], condition["status"], condition["reason"]) == ("GatesPassed", status, reason)


def test_one_failed_wave_fails_the_condition_and_is_named() -> None:
    """The verdicts of other Waves do not matter."""
    waves = [wave("good", deadline="1m"), wave("load", deadline="1m"), wave("free")]
    ledgers = {"good": wave_ledger(RunVerdict.PASSED), "load": wave_ledger(RunVerdict.FAILED)}
    summaries = {("lab", "load"): ResultSummary("lab", "load", "0", "Failed", "deadline: wanted 1m, got 2m")}
    condition = verdicts.condition(waves, ledgers, summaries, "lab")
    assert condition is not None
    assert condition["message"] == "failed: load/0: deadline: wanted 1m, got 2m"
    older = {name: replace(each, run="7") for name, each in summaries.items()}
    assert verdicts.condition(waves, ledgers, older, "lab") == condition | {"message": "failed: load/0"}


def test_a_fleet_without_gates_has_no_gates_condition() -> None:
    """It would have no meaning."""
    assert verdicts.condition([wave("free")], {"free": wave_ledger(RunVerdict.MEASURED)}, {}, "lab") is None


def test_a_ledger_stores_verdicts_and_omits_open_ones() -> None:
    """Ledgers without verdicts are still valid."""
    before = wave_ledger(RunVerdict.FAILED, RunVerdict.OPEN)
    [serialized] = ledger.serialize({"load": before})
    assert [run.get("verdict") for run in serialized["runs"]] == ["Failed", None]
    assert ledger.parse([serialized])["load"].runs == before.runs
