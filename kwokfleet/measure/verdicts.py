"""What the Result of a Run comes to: in a word for the Ledger, in a sentence, and as a condition of its Fleet."""

from collections.abc import Iterable, Mapping

from kwokfleet.api.wave import Wave
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure.result import GateResult, Result, ResultSummary
from kwokfleet.waves.ledger import RunRecord, RunVerdict, WaveLedger

CONDITION = "GatesPassed"
_WORDS = 1024
_QUANTILES = ("p50", "p90", "p95", "p99")
_JUDGED = {RunVerdict.PASSED, RunVerdict.FAILED, RunVerdict.NO_DATA}


def verdict(made: Result) -> RunVerdict:
    """Return what a Result comes to; one that nothing is known of, or that a gate has no data for, is no success."""
    if made.state == "Cancelled":
        return RunVerdict.MEASURED
    if any(not gate.passed and not gate.no_data for gate in made.gates):
        return RunVerdict.FAILED
    if any(gate.no_data for gate in made.gates) or not (made.objects.created or made.pods.created):
        return RunVerdict.NO_DATA
    return RunVerdict.PASSED if made.gates else RunVerdict.MEASURED


def failed_gates(made: Result) -> str:
    """Return the gates that did not hold, each with what was wanted and what was measured."""
    bad = [gate for gate in made.gates if not gate.passed or gate.no_data]
    return "; ".join(_told(gate) for gate in bad)[:_WORDS]


def _told(gate: GateResult) -> str:
    return f"{gate.name}: wanted {gate.want}, got {gate.got}{gate.why and f' ({gate.why})'}"


def summarize(made: Result) -> ResultSummary:
    """Return what a daemon shows of a Result."""
    return ResultSummary(
        made.fleet,
        made.wave,
        made.run,
        verdict(made).value,
        failed_gates(made),
        {gate.name: gate.passed for gate in made.gates},
        {
            (each.name, each.of, each.clock.value, quantile): seconds
            for each in made.latencies
            for quantile in _QUANTILES
            if (seconds := getattr(each, quantile)) is not None
        },
        made.state == "Cancelled",
    )


def condition(
    waves: Iterable[Wave], pages: Mapping[str, WaveLedger], known: Mapping[tuple[str, str], ResultSummary], fleet: str
) -> Manifest | None:
    """Return whether the last judged Run of each Wave with gates passed, as a condition; None without gates."""
    gated = sorted(wave.name for wave in waves if wave.expect is not None and wave.expect.model_fields_set)
    if not gated:
        return None
    last = {name: entry for name in gated if (entry := _judged(pages.get(name))) is not None}
    by: dict[RunVerdict, list[str]] = {}
    for name, entry in last.items():
        about = known.get((fleet, name))
        said = about.why if about is not None and about.run == entry.name else ""
        by.setdefault(entry.verdict, []).append(f"{name}/{entry.name}{said and f': {said}'}")
    waiting = [name for name in gated if name not in last]
    if RunVerdict.FAILED in by:
        return _condition("False", "GatesFailed", f"failed: {'; '.join(by[RunVerdict.FAILED])}")
    if RunVerdict.NO_DATA in by:
        return _condition("Unknown", "NoData", f"nothing was measured: {'; '.join(by[RunVerdict.NO_DATA])}")
    if waiting:
        return _condition("Unknown", "NotJudged", f"no Run has been judged yet of {', '.join(waiting)}")
    return _condition("True", "GatesPassed", f"passed: {', '.join(by[RunVerdict.PASSED])}")


def _judged(page: WaveLedger | None) -> RunRecord | None:
    return next((run for run in reversed(page.runs if page else ()) if run.verdict in _JUDGED), None)


def _condition(status: str, reason: str, message: str) -> Manifest:
    return {"type": CONDITION, "status": status, "reason": reason, "message": message[:_WORDS]}
