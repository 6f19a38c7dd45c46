"""Gates: limits that a Wave sets for each Run, evaluated on its Result.

The watch clock is used if nothing is missing, because it is exact; else the clock with fewer missing values, which
the gate then names. A gate without data does not pass.
"""

from collections.abc import Iterator
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
    of = _PODS if result.template_kind in ("", POD) else result.template_kind
    yield from _latency_gates("podStartup", expect.pod_startup, _best_latency(result, "podStartup", _PODS))
    yield from _latency_gates("scheduling", expect.scheduling, _best_latency(result, "scheduling", _PODS))
    yield from _latency_gates("completion", expect.completion, _best_latency(result, "completion", of))
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
    problems = [f"{name}: must be above 0" for name, want in _times(expect) if not want]
    if expect.completion is not None and not ends and kind not in milestones.REPLICATED:
        problems.append(
            f"completion: objects of kind {kind} never complete; use podStartup instead, or a lifecycle that completes"
        )
    return problems


def _times(expect: Expect) -> Iterator[tuple[str, timedelta]]:
    """Yield every limit that is a duration."""
    for name, limits in (
        ("podStartup", expect.pod_startup),
        ("scheduling", expect.scheduling),
        ("completion", expect.completion),
    ):
        yield from ((f"{name}.{limit}", want) for limit, want in _limits(limits))
    if expect.deadline is not None:
        yield "deadline", expect.deadline


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
        passed = got <= want.total_seconds()
        yield GateResult(
            name=f"{name}.{limit}",
            want=units.format_duration(want),
            got=_format(got, want, passed=passed),
            passed=passed,
            clock=latency.clock,
            why=_note(latency),
        )


def _no_data(name: str, want: str, latency: Latency | None = None) -> GateResult:
    missing = latency.missing if latency is not None else 0
    why = f"samples not measured: {missing}" if missing else "no samples"
    return GateResult(name=name, want=want, got=NO_DATA, passed=False, no_data=True, why=why)


def _note(latency: Latency) -> str:
    """Return a note on the accuracy of a latency."""
    clock = "API timestamps: whole seconds" if latency.clock is Clock.API else ""
    missing = f"samples not measured: {latency.missing}" if latency.missing else ""
    return "; ".join(part for part in (clock, missing) if part)


def _format(got: float, want: timedelta, *, passed: bool) -> str:
    """Format a duration. A failed one is never rounded to its limit."""
    exact = timedelta(seconds=got)
    short = timedelta(milliseconds=round(got * 1000))
    return units.format_duration(exact if not passed and short <= want else short)


def _deadline(want: timedelta, result: Result) -> GateResult:
    if result.end is None:
        return GateResult(
            name="deadline",
            want=units.format_duration(want),
            got="not over yet",
            passed=False,
            why="some objects have not ended",
        )
    duration = result.end - result.start
    passed = duration <= want
    got = _format(duration.total_seconds(), want, passed=passed)
    return GateResult(name="deadline", want=units.format_duration(want), got=got, passed=passed)


def _failures(want: int, result: Result) -> GateResult:
    failed, rejected = result.objects.failed, result.pacing.refused
    if not result.objects.created and not result.pacing.count:
        return _no_data("failures", str(want))
    count = failed + rejected
    why = f"the API server rejected {rejected} of them" if rejected else ""
    return GateResult(name="failures", want=str(want), got=str(count), passed=count <= want, why=why)


def _throughput(want: float, result: Result) -> GateResult:
    overall = next((item for item in result.throughput if not item.scheduler), None)
    if overall is None or overall.max is None:
        return _no_data("throughput", _rate(want))
    return GateResult(
        name="throughput",
        want=_rate(want),
        got=_rate(overall.max),
        passed=overall.max >= want,
        why=f"best window of {overall.window_s:g} s",
    )


def _rate(per_second: float) -> str:
    return f"{per_second:.4g}/s"
