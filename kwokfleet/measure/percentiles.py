"""Percentiles by ClusterLoader2's formula, and distribution curves.

A percentile of no values is None, never 0.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from kwokfleet.measure.result import Clock, Latency

CDF_POINTS = 200
_DIGITS = 6
"""Receive times have microseconds; further digits are rounding errors."""


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that *percent* of all values do not exceed: `sorted[ceil(n * p / 100) - 1]`."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean."""
    return round(sum(values) / len(values), _DIGITS) if values else None


def cdf(ordered: Sequence[float], points: int = CDF_POINTS) -> tuple[tuple[float, float], ...]:
    """Return up to *points* values, each with the fraction of all values that do not exceed it."""
    count = len(ordered)
    quantiles = (ordered[-(-count * point // points) - 1] for point in range(1, points + 1))
    chosen = dict.fromkeys(quantiles if count > points else ordered)
    return tuple((value, round(bisect_right(ordered, value) / count, _DIGITS)) for value in islice(chosen, points))


def latency(name: str, of: str, clock: Clock, values: list[float], missing: int) -> Latency:
    """Return a Latency. Negative values, from different clocks, count as 0."""
    ordered = sorted(round(value, _DIGITS) if value > 0 else 0.0 for value in values)
    return Latency(
        name=name,
        of=of,
        clock=clock,
        count=len(ordered),
        missing=missing,
        min=ordered[0] if ordered else None,
        mean=mean(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1] if ordered else None,
        cdf=cdf(ordered),
    )
