"""Two Runs beside each other: what differs in numbers, and what of it is worse than chance would make it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.measure.result import Clock, Counts, Latency, Pacing, Result, Throughput

_RESOLUTION_S = {Clock.API: 1.0}
"""Whole seconds: two such latencies may differ by one while nothing has changed."""
_AGAIN = (Clock.CL2_2024, Clock.CL2_2026)
"""Other definitions of what is judged already; counting it twice would say nothing more."""
_JUDGED = ("p50", "p90", "p95", "p99")
"""One pod decides the largest and the smallest, so they are shown and not judged."""
_SHOWN = ("min", "mean", "max")


class Unit(StrEnum):
    """What a number counts."""

    SECONDS = "s"
    PER_SECOND = "/s"
    THINGS = ""


class DeltaVerdict(StrEnum):
    """What became of a number."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """Within what is allowed, or within the noise."""
    SHOWN = "not judged"
    NO_DATA = "no data"
    """On one side or both."""


@dataclass(frozen=True, slots=True)
class RegressionLimits:
    """From where on a difference counts."""

    regression: float = 0.1
    """As a share of what it was before."""
    floor_s: float = 0.05
    """Durations that differ by no more are the same."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One number, before and after."""

    of: str
    name: str
    statistic: str
    clock: Clock | None
    unit: Unit
    before: float | None
    after: float | None
    verdict: DeltaVerdict

    @property
    def change(self) -> float | None:
        """How much more it is."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def ratio(self) -> float | None:
        """How much more it is, as a share of before; None if that was 0."""
        return None if self.change is None or not self.before else self.change / self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two Runs, number by number."""

    before: Result
    after: Result
    deltas: tuple[Delta, ...]
    notes: tuple[str, ...]
    """Why the numbers may not be comparable."""

    @property
    def worse(self) -> tuple[Delta, ...]:
        """The regressions."""
        return tuple(each for each in self.deltas if each.verdict is DeltaVerdict.WORSE)


def compare(before: Result, after: Result, limits: RegressionLimits | None = None) -> Comparison:
    """Return every number that both or one of two Runs have."""
    allowed = limits or RegressionLimits()
    deltas = (
        *_latencies(before, after, allowed),
        *_throughputs(before, after, allowed),
        *_counts("objects", before.objects, after.objects, allowed),
        *(_counts("pods", before.pods, after.pods, allowed) if after.template_kind != "Pod" else ()),
        *_pacing(before.pacing, after.pacing),
    )
    return Comparison(before, after, tuple(deltas), tuple(_notes(before, after)))


def _latencies(before: Result, after: Result, limits: RegressionLimits) -> Iterator[Delta]:
    sides = [{(each.of, each.name, each.clock): each for each in side.latencies} for side in (before, after)]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        old, new = (side.get(key) for side in sides)
        for statistic in (*_JUDGED, *_SHOWN):
            yield _latency(key, statistic, _of(old, statistic), _of(new, statistic), limits)


def _latency(
    key: tuple[str, str, Clock], statistic: str, old: float | None, new: float | None, limits: RegressionLimits
) -> Delta:
    of, name, clock = key
    floor = max(limits.floor_s, _RESOLUTION_S.get(clock, 0.0))
    verdict = _judged(old, new, limits.regression, floor, less_is_better=True)
    if (statistic in _SHOWN or clock in _AGAIN) and verdict is not DeltaVerdict.NO_DATA:
        verdict = DeltaVerdict.SHOWN
    return Delta(of, name, statistic, clock, Unit.SECONDS, old, new, verdict)


def _throughputs(before: Result, after: Result, limits: RegressionLimits) -> Iterator[Delta]:
    sides = [{each.scheduler: each for each in side.throughput} for side in (before, after)]
    for scheduler in dict.fromkeys((*sides[0], *sides[1])):
        for statistic in ("p50", "max", "mean"):
            old, new = (_of(side.get(scheduler), statistic) for side in sides)
            verdict = _judged(old, new, limits.regression, 0.0, less_is_better=False)
            of = f"scheduler={scheduler}" if scheduler else "pods"
            yield Delta(of, "throughput", statistic, None, Unit.PER_SECOND, old, new, verdict)


def _counts(of: str, before: Counts, after: Counts, limits: RegressionLimits) -> Iterator[Delta]:
    """Yield counts; they are judged as shares of what was wanted, so that Runs of different sizes compare."""
    for name in ("total", "created", "scheduled", "running", "completed", "failed", "deleted"):
        old, new = float(getattr(before, name)), float(getattr(after, name))
        if name in ("total", "deleted"):  # an order, not an outcome
            verdict = DeltaVerdict.SHOWN
        elif not before.total or not after.total:
            verdict = DeltaVerdict.NO_DATA
        else:
            verdict = _judged(
                old / before.total, new / after.total, limits.regression, 0.0, less_is_better=name == "failed"
            )
        yield Delta(of, "count", name, None, Unit.THINGS, old, new, verdict)


def _pacing(before: Pacing, after: Pacing) -> Iterator[Delta]:
    """Yield how exactly we submitted: no property of the cluster, but a reason to mistrust the rest."""
    for statistic in ("p50", "p99", "max"):
        old, new = _of(before, statistic), _of(after, statistic)
        verdict = DeltaVerdict.NO_DATA if old is None or new is None else DeltaVerdict.SHOWN
        yield Delta("objects", "lateness", statistic, None, Unit.SECONDS, old, new, verdict)


def _judged(old: float | None, new: float | None, share: float, floor: float, *, less_is_better: bool) -> DeltaVerdict:
    if old is None or new is None:
        return DeltaVerdict.NO_DATA
    worse = round(new - old if less_is_better else old - new, 9)
    if abs(worse) <= max(floor, round(share * abs(old), 9)):
        return DeltaVerdict.SAME
    return DeltaVerdict.WORSE if worse > 0 else DeltaVerdict.BETTER


def _of(part: Latency | Throughput | Pacing | None, statistic: str) -> float | None:
    found: float | None = getattr(part, statistic) if part else None
    return found


def _notes(before: Result, after: Result) -> Iterator[str]:
    if before.objects.total != after.objects.total:
        yield f"the Runs differ in size: {before.objects.total:,} and {after.objects.total:,} objects"
    if before.template_kind != after.template_kind:
        yield f"the Runs submit different kinds: {before.template_kind} and {after.template_kind}"
    for side in (before, after):
        if side.state != "Done":
            yield f"{side.name} is not complete: {side.state}"
        if side.gaps:
            yield f"{side.name} was not watched all the time: what happened unseen is missing from its watch latencies"
