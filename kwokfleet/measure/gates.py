"""Gates: limits that a Wave sets for each Run, evaluated on its Result.

The watch clock is used if nothing is missing, because it is exact; else the clock with fewer missing values, which
the gate then names. A gate without data does not pass.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from kwokfleet.api import units
from kwokfleet.api.wave import Expect, Percentiles
from kwokfleet.measure import milestones
from kwokfleet.measure.result import Clock, GateResult, Latency, Result

NO_DATA = "no data"
POD = "Pod"
_PODS = "pods"
_STATISTICS = ("p50", "p90", "p95", "p99", "max")


def evaluate(expect: Expect | None, result: Result) -> tuple[GateResult, ...]:
    """Return a GateResult for each limit in *expect*, in the order of its fields."""
    return tuple(_gates(expect, result)) if expect is not None else ()


def _gates(expect: Expect, result: Result) -> Iterator[GateResult]:
    kind = _PODS if result.template_kind in ("", POD) else result.template_kind
    for name, limits in _latency_limits(expect):
        latency = _best_latency(result, name, kind if name == "completion" else _PODS)
        yield from _latency_gates(name, limits, latency)
    if expect.deadline is not None:
        yield _deadline(expect.deadline, result)
    if expect.failures is not None:
        yield _failures(expect.failures, result)
    if expect.throughput is not None:
        yield _throughput(expect.throughput, result)


def impossible_gates(expect: Expect | None, *, ends: bool, kind: str = POD) -> list[str]:
    """Return a sentence for each gate that can never pass, as far as the file shows.

    *ends*: whether the Wave's objects complete by themselves. Kinds with replicas are complete when all are ready.
    """
    if expect is None:
        return []
    latencies = ((name, limit, want) for name, limits in _latency_limits(expect) for limit, want in _limits(limits))
    problems = [f"{name}.{limit}: must be above 0" for name, limit, want in latencies if not want]
    problems += ["deadline: must be above 0"] if expect.deadline == timedelta(0) else []
    if expect.completion is not None and not ends and kind not in milestones.REPLICATED:
        problems.append(
            f"completion: objects of kind {kind} never complete; use podStartup instead, or a lifecycle that completes"
        )
    return problems


def _latency_limits(expect: Expect) -> Sequence[tuple[str, Percentiles | None]]:
    return ("podStartup", expect.pod_startup), ("scheduling", expect.scheduling), ("completion", expect.completion)


def _limits(limits: Percentiles | None) -> Iterator[tuple[str, timedelta]]:
    for statistic in _STATISTICS:
        limit = getattr(limits, statistic, None)
        if limit is not None:
            yield statistic, limit


# ----------------------------------------------------------------------------------------
# kinds of limits


def _best_latency(result: Result, name: str, of: str) -> Latency | None:
    """Return a latency by the clock with fewer missing values; by the watch clock if nothing is missing."""
    watch, api = (result.latency(name, of, clock) for clock in (Clock.WATCH, Clock.API))
    if watch is None or api is None:
        return watch or api
    if not watch.missing and (watch.count or not api.count):
        return watch
    return watch if watch.missing < api.missing or (watch.count and not api.count) else api


def _latency_gates(name: str, limits: Percentiles | None, latency: Latency | None) -> Iterator[GateResult]:
    for limit, want in _limits(limits):
        got = getattr(latency, limit, None)
        if latency is None or got is None:
            yield _no_data(f"{name}.{limit}", units.format_duration(want), latency)
            continue
        gate = _duration_gate(f"{name}.{limit}", want, got)
        yield gate.model_copy(update={"clock": latency.clock, "why": _note(latency)})


def _no_data(name: str, want: str, latency: Latency | None = None) -> GateResult:
    missing = latency.missing if latency is not None else 0
    why = f"samples not measured: {missing}" if missing else "no samples"
    return GateResult(name=name, want=want, got=NO_DATA, passed=False, no_data=True, why=why)


def _note(latency: Latency) -> str:
    """Return a note on the accuracy of a latency."""
    clock = "API timestamps: whole seconds" if latency.clock is Clock.API else ""
    missing = f"samples not measured: {latency.missing}" if latency.missing else ""
    return "; ".join(part for part in (clock, missing) if part)


def _duration_gate(name: str, want: timedelta, got: float) -> GateResult:
    """Compare a duration in seconds with its limit. A failed one is never rounded to the limit."""
    passed = got <= want.total_seconds()
    short = timedelta(milliseconds=round(got * 1000))
    exact = timedelta(seconds=got) if not passed and short <= want else short
    return GateResult(name=name, want=units.format_duration(want), got=units.format_duration(exact), passed=passed)


def _deadline(want: timedelta, result: Result) -> GateResult:
    if result.end is not None:
        return _duration_gate("deadline", want, (result.end - result.start).total_seconds())
    limit, why = units.format_duration(want), "some objects have not ended"
    return GateResult(name="deadline", want=limit, got="not over yet", passed=False, why=why)


def _failures(want: int, result: Result) -> GateResult:
    rejected = result.pacing.refused
    if not result.objects.created and not result.pacing.count:
        return _no_data("failures", str(want))
    count = result.objects.failed + rejected
    why = f"the API server rejected {rejected} of them" if rejected else ""
    return GateResult(name="failures", want=str(want), got=str(count), passed=count <= want, why=why)


def _throughput(want: float, result: Result) -> GateResult:
    overall = next((item for item in result.throughput if not item.scheduler), None)
    if overall is None or overall.max is None:
        return _no_data("throughput", _rate(want))
    got, why = _rate(overall.max), f"best window of {overall.window_s:g} s"
    return GateResult(name="throughput", want=_rate(want), got=got, passed=overall.max >= want, why=why)


def _rate(per_second: float) -> str:
    return f"{per_second:.4g}/s"
