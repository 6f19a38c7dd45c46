"""Gates: what a Wave expects of each Run, held against what was measured.

The watch's clock judges if it missed nothing, because it is exact; else the clock that missed less
does, and the gate says so. What was not measured has not been held: no data is no pass.
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
_LIMITS = ("p50", "p90", "p95", "p99", "max")


def evaluate(expect: Expect | None, made: Result) -> tuple[GateResult, ...]:
    """Return a Gate for each limit that *expect* names, in the order of its fields."""
    return tuple(_gates(expect, made)) if expect is not None else ()


def _gates(expect: Expect, made: Result) -> Iterator[GateResult]:
    of = _PODS if made.template_kind in ("", POD) else made.template_kind
    yield from _latency_gates("podStartup", expect.pod_startup, _best(made, "podStartup", _PODS))
    yield from _latency_gates("scheduling", expect.scheduling, _best(made, "scheduling", _PODS))
    yield from _latency_gates("completion", expect.completion, _best(made, "completion", of))
    if expect.deadline is not None:
        yield _deadline(expect.deadline, made)
    if expect.failures is not None:
        yield _failures(expect.failures, made)
    if expect.throughput is not None:
        yield _throughput(expect.throughput, made)


def impossible_gates(expect: Expect | None, *, ends: bool, kind: str = POD) -> list[str]:
    """Return why gates can never hold, as far as the file alone tells; one sentence for each.

    *ends*: whether the Wave's objects complete by themselves. Kinds with replicas need not: they are
    complete when all of these are ready.
    """
    if expect is None:
        return []
    found = [f"{name}: nothing takes no time at all" for name, want in _times(expect) if not want]
    if expect.completion is not None and not ends and kind not in milestones.REPLICATED:
        found.append(
            f"completion: its objects ({kind}) never complete; "
            "expect podStartup instead, or give them a lifecycle that completes"
        )
    return found


def _times(expect: Expect) -> Iterator[tuple[str, timedelta]]:
    """Yield every limit that is a time."""
    for name, limits in (
        ("podStartup", expect.pod_startup),
        ("scheduling", expect.scheduling),
        ("completion", expect.completion),
    ):
        yield from ((f"{name}.{limit}", want) for limit, want in _wanted(limits))
    if expect.deadline is not None:
        yield "deadline", expect.deadline


def _wanted(limits: Percentiles | None) -> Iterator[tuple[str, timedelta]]:
    for limit in _LIMITS:
        want = getattr(limits, limit, None)
        if want is not None:
            yield limit, want


# ----------------------------------------------------------------------------------------
# one kind of limit each


def _best(made: Result, name: str, of: str) -> Latency | None:
    """Return a latency by the clock that missed least; the watch's only if it missed nothing, or less."""
    watch, api = (made.latency(name, of, clock) for clock in (Clock.WATCH, Clock.API))
    if watch is None or api is None:
        return watch or api
    if not watch.missing and (watch.count or not api.count):
        return watch
    return watch if watch.missing < api.missing or (watch.count and not api.count) else api


def _latency_gates(name: str, limits: Percentiles | None, found: Latency | None) -> Iterator[GateResult]:
    for limit, want in _wanted(limits):
        got = getattr(found, limit, None)
        if found is None or got is None:
            yield _no_data(f"{name}.{limit}", units.format_duration(want), found)
            continue
        passed = got <= want.total_seconds()
        yield GateResult(
            name=f"{name}.{limit}",
            want=units.format_duration(want),
            got=_shown(got, want, passed=passed),
            passed=passed,
            clock=found.clock,
            why=_unmeasured(found),
        )


def _no_data(name: str, want: str, found: Latency | None = None) -> GateResult:
    missing = found.missing if found is not None else 0
    why = f"it happened to {missing}, and nobody measured it" if missing else "it happened to none"
    return GateResult(name=name, want=want, got=NO_DATA, passed=False, no_data=True, why=why)


def _unmeasured(found: Latency) -> str:
    """Return what is to be known of how it was measured."""
    clock = "by the API's timestamps: whole seconds" if found.clock is Clock.API else ""
    missing = f"of {found.missing} it is not known" if found.missing else ""
    return "; ".join(part for part in (clock, missing) if part)


def _shown(got: float, want: timedelta, *, passed: bool) -> str:
    """Return a time as people read it, but never such that a limit that was missed looks kept."""
    exact = timedelta(seconds=got)
    short = timedelta(milliseconds=round(got * 1000))
    return units.format_duration(exact if not passed and short <= want else short)


def _deadline(want: timedelta, made: Result) -> GateResult:
    if made.end is None:
        return GateResult(
            name="deadline",
            want=units.format_duration(want),
            got="not over yet",
            passed=False,
            why="objects are still waited for",
        )
    took = made.end - made.start
    passed = took <= want
    got = _shown(took.total_seconds(), want, passed=passed)
    return GateResult(name="deadline", want=units.format_duration(want), got=got, passed=passed)


def _failures(want: int, made: Result) -> GateResult:
    failed, refused = made.objects.failed, made.pacing.refused
    if not made.objects.created and not made.pacing.count:
        return _no_data("failures", str(want))
    why = f"{refused} of them were refused by the API server" if refused else ""
    return GateResult(
        name="failures", want=str(want), got=str(failed + refused), passed=failed + refused <= want, why=why
    )


def _throughput(want: float, made: Result) -> GateResult:
    found = next((each for each in made.throughput if not each.scheduler), None)
    if found is None or found.max is None:
        return _no_data("throughput", _rate(want))
    return GateResult(
        name="throughput",
        want=_rate(want),
        got=_rate(found.max),
        passed=found.max >= want,
        why=f"in the best {found.window_s:g} s",
    )


def _rate(per_second: float) -> str:
    return f"{per_second:.4g}/s"
