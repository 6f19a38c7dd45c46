"""Comparison of two Runs: differences, and which of them are regressions."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.measure.result import CLUSTERLOADER2, Clock, Counts, Latency, Pacing, Result, Throughput

_RESOLUTION_S = {Clock.API: 1.0}
"""API timestamps have whole seconds: equal latencies may differ by one."""
_JUDGED_STATISTICS = ("p50", "p90", "p95", "p99")
_OTHER_STATISTICS = ("min", "mean", "max")
"""Not judged: a single pod decides minimum and maximum."""


class Unit(StrEnum):
    """Unit of a number."""

    SECONDS = "s"
    PER_SECOND = "/s"
    COUNT = ""


class DeltaVerdict(StrEnum):
    """Verdict on a difference."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """Within the limits."""
    NOT_JUDGED = "not judged"
    NO_DATA = "no data"
    """One Run or both have no data."""


@dataclass(frozen=True, slots=True)
class RegressionLimits:
    """Limits above which a difference is a regression."""

    regression: float = 0.1
    """Share of the value before."""
    floor_s: float = 0.05
    """Durations that differ by at most this are the same."""


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
        """Difference, None without data."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def ratio(self) -> float | None:
        """Difference as a share of the value before; None if that was 0."""
        return None if self.change is None or not self.before else self.change / self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two Runs."""

    before: Result
    after: Result
    deltas: tuple[Delta, ...]
    notes: tuple[str, ...]
    """Why the numbers may not be comparable."""

    @property
    def regressions(self) -> tuple[Delta, ...]:
        """The regressions."""
        return tuple(delta for delta in self.deltas if delta.verdict is DeltaVerdict.WORSE)


def compare(before: Result, after: Result, limits: RegressionLimits | None = None) -> Comparison:
    """Return a Delta for each number of one or both Runs."""
    limits = limits or RegressionLimits()
    deltas = (
        *_latencies(before, after, limits),
        *_throughputs(before, after, limits),
        *_counts("objects", before.objects, after.objects, limits),
        *(_counts("pods", before.pods, after.pods, limits) if after.template_kind != "Pod" else ()),
        *_pacing(before.pacing, after.pacing),
    )
    return Comparison(before, after, tuple(deltas), tuple(_notes(before, after)))


def _latencies(before: Result, after: Result, limits: RegressionLimits) -> Iterator[Delta]:
    sides = [{(item.of, item.name, item.clock): item for item in side.latencies} for side in (before, after)]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        clock = key[2]
        floor = max(limits.floor_s, _RESOLUTION_S.get(clock, 0.0))
        for statistic in (*_JUDGED_STATISTICS, *_OTHER_STATISTICS):
            old, new = (_value(side.get(key), statistic) for side in sides)
            verdict = _judge(old, new, limits.regression, floor, less_is_better=True)
            # ClusterLoader2's clocks are other definitions of latencies that are judged already.
            is_judged = statistic in _JUDGED_STATISTICS and clock not in CLUSTERLOADER2
            if not is_judged and verdict is not DeltaVerdict.NO_DATA:
                verdict = DeltaVerdict.NOT_JUDGED
            yield Delta(*key[:2], statistic, clock, Unit.SECONDS, old, new, verdict)


def _throughputs(before: Result, after: Result, limits: RegressionLimits) -> Iterator[Delta]:
    sides = [{throughput.scheduler: throughput for throughput in side.throughput} for side in (before, after)]
    for scheduler in dict.fromkeys((*sides[0], *sides[1])):
        for statistic in ("p50", "max", "mean"):
            old, new = (_value(side.get(scheduler), statistic) for side in sides)
            verdict = _judge(old, new, limits.regression, 0.0, less_is_better=False)
            of = f"scheduler={scheduler}" if scheduler else "pods"
            yield Delta(of, "throughput", statistic, None, Unit.PER_SECOND, old, new, verdict)


def _counts(of: str, before: Counts, after: Counts, limits: RegressionLimits) -> Iterator[Delta]:
    """Yield counts. They are judged as shares of the total, so that Runs of different sizes compare."""
    for name in Counts.model_fields:
        old, new = float(getattr(before, name)), float(getattr(after, name))
        if name in ("total", "deleted"):  # inputs, not outcomes
            verdict = DeltaVerdict.NOT_JUDGED
        elif not before.total or not after.total:
            verdict = DeltaVerdict.NO_DATA
        else:
            shares = (old / before.total, new / after.total)
            verdict = _judge(*shares, limits.regression, 0.0, less_is_better=name == "failed")
        yield Delta(of, "count", name, None, Unit.COUNT, old, new, verdict)


def _pacing(before: Pacing, after: Pacing) -> Iterator[Delta]:
    """Yield the lateness of submissions. It is a property of kwokfleet, so it is not judged."""
    for statistic in ("p50", "p99", "max"):
        old, new = _value(before, statistic), _value(after, statistic)
        verdict = DeltaVerdict.NO_DATA if old is None or new is None else DeltaVerdict.NOT_JUDGED
        yield Delta("objects", "lateness", statistic, None, Unit.SECONDS, old, new, verdict)


def _judge(old: float | None, new: float | None, share: float, floor: float, *, less_is_better: bool) -> DeltaVerdict:
    if old is None or new is None:
        return DeltaVerdict.NO_DATA
    worse = round(new - old if less_is_better else old - new, 9)
    if abs(worse) <= max(floor, round(share * abs(old), 9)):
        return DeltaVerdict.SAME
    return DeltaVerdict.WORSE if worse > 0 else DeltaVerdict.BETTER


def _value(part: Latency | Throughput | Pacing | None, statistic: str) -> float | None:
    value: float | None = getattr(part, statistic) if part else None
    return value


def _notes(before: Result, after: Result) -> Iterator[str]:
    if before.objects.total != after.objects.total:
        yield f"the Runs differ in size: {before.objects.total:,} and {after.objects.total:,} objects"
    if before.template_kind != after.template_kind:
        yield f"the Runs submit different kinds: {before.template_kind} and {after.template_kind}"
    for side in (before, after):
        if side.state != "Done":
            yield f"{side.name} is not complete: {side.state}"
        if side.gaps:
            yield f"{side.name} has gaps: its latencies by the watch clock are incomplete"
