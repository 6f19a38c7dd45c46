"""Verdicts on Results: for the Ledger, as a sentence, and as a condition of the Fleet."""

from collections.abc import Iterable, Mapping

from kwokfleet.api.wave import Wave
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure.result import Result, ResultSummary
from kwokfleet.waves.ledger import RunRecord, RunVerdict, WaveLedger

CONDITION = "GatesPassed"
_MAX_CHARS = 1024
_QUANTILES = ("p50", "p90", "p95", "p99")
_JUDGED = {RunVerdict.PASSED, RunVerdict.FAILED, RunVerdict.NO_DATA}


def verdict(result: Result) -> RunVerdict:
    """Return the verdict on a Result. Without objects, or without data for a gate, it is NO_DATA."""
    if result.state == "Cancelled":
        return RunVerdict.MEASURED
    if any(not gate.passed and not gate.no_data for gate in result.gates):
        return RunVerdict.FAILED
    if any(gate.no_data for gate in result.gates) or not (result.objects.created or result.pods.created):
        return RunVerdict.NO_DATA
    return RunVerdict.PASSED if result.gates else RunVerdict.MEASURED


def failed_gates(result: Result) -> str:
    """Return the failed gates, each with its limit and the measured value."""
    failed = (gate for gate in result.gates if not gate.passed or gate.no_data)
    texts = (f"{gate.name}: wanted {gate.want}, got {gate.got}{gate.why and f' ({gate.why})'}" for gate in failed)
    return "; ".join(texts)[:_MAX_CHARS]


def summarize(result: Result) -> ResultSummary:
    """Return the summary of a Result."""
    gates = {gate.name: gate.passed for gate in result.gates}
    latencies = {
        (latency.name, latency.of, latency.clock.value, quantile): seconds
        for latency in result.latencies
        for quantile in _QUANTILES
        if (seconds := getattr(latency, quantile)) is not None
    }
    key, is_cancelled = (result.fleet, result.wave, result.run), result.state == "Cancelled"
    return ResultSummary(*key, verdict(result).value, failed_gates(result), gates, latencies, is_cancelled)


def condition(
    waves: Iterable[Wave],
    wave_ledgers: Mapping[str, WaveLedger],
    summaries: Mapping[tuple[str, str], ResultSummary],
    fleet: str,
) -> Manifest | None:
    """Return the condition GatesPassed: the last judged Run of each Wave with gates. None without gates."""
    gated = sorted(wave.name for wave in waves if wave.expect is not None and wave.expect.model_fields_set)
    if not gated:
        return None
    judged = {name: record for name in gated if (record := _last_judged(wave_ledgers.get(name))) is not None}
    by_verdict: dict[RunVerdict, list[str]] = {}
    for name, record in judged.items():
        summary = summaries.get((fleet, name))
        failures = summary.why if summary is not None and summary.run == record.name else ""
        by_verdict.setdefault(record.verdict, []).append(f"{name}/{record.name}{failures and f': {failures}'}")
    waiting = [name for name in gated if name not in judged]
    if failed := by_verdict.get(RunVerdict.FAILED):
        return _condition("False", "GatesFailed", f"failed: {'; '.join(failed)}")
    if without_data := by_verdict.get(RunVerdict.NO_DATA):
        return _condition("Unknown", "NoData", f"no data: {'; '.join(without_data)}")
    if waiting:
        return _condition("Unknown", "NotJudged", f"no Run has been judged yet: {', '.join(waiting)}")
    return _condition("True", "GatesPassed", f"passed: {', '.join(by_verdict[RunVerdict.PASSED])}")


def _last_judged(wave_ledger: WaveLedger | None) -> RunRecord | None:
    runs = wave_ledger.runs if wave_ledger else ()
    return next((run for run in reversed(runs) if run.verdict in _JUDGED), None)


def _condition(status: str, reason: str, message: str) -> Manifest:
    return {"type": CONDITION, "status": status, "reason": reason, "message": message[:_MAX_CHARS]}
