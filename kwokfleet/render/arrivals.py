"""Arrivals: the due times of the objects of a Run, relative to its start."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from kwokfleet.api import wave as wave_api
from kwokfleet.render.distributions import ExponentialDistribution
from kwokfleet.render.seeded_random import SeededRandom


def arrival_offsets(wave: wave_api.Wave, random: SeededRandom, trace: Sequence[float] = ()) -> Iterator[timedelta]:
    """Yield the due time of each object, relative to the start of the Run."""
    endless = wave.arrivals is not None and (wave.duration is not None or wave.arrivals.trace is not None)
    limit = wave.count if wave.count is not None else (None if endless else 1)
    end = wave.duration.total_seconds() if wave.duration else math.inf
    for index, seconds in enumerate(_seconds(wave.arrivals, random, trace)):
        if (limit is not None and index >= limit) or seconds >= end:
            return
        yield timedelta(microseconds=round(seconds * 1e6))


def object_count(wave: wave_api.Wave, random: SeededRandom, trace: Sequence[float] = ()) -> int:
    """Return the number of objects of a Run; fast for a count, a trace or a constant rate."""
    if wave.duration is None:
        recorded = wave.arrivals is not None and wave.arrivals.trace is not None
        most = len(trace) if recorded else max(1, wave.count or 1)
        return min(most, wave.count or most)
    if wave.arrivals is not None and wave.arrivals.rate is not None:
        end = wave.duration.total_seconds()
        count = max(0, int(end * wave.arrivals.rate) - 1)
        while count / wave.arrivals.rate < end:  # the same arithmetic as the arrivals, to the last digit
            count += 1
        return min(count, wave.count or count)
    return sum(1 for _ in arrival_offsets(wave, random, trace))


def expected_arrivals(arrivals: wave_api.Arrivals, seconds: float) -> float:
    """Return the expected number of arrivals within a time; not for traces."""
    rate = arrivals.rate or arrivals.poisson
    if rate is not None:
        return rate * seconds
    if arrivals.burst is not None:
        return arrivals.burst.size * math.ceil(seconds / arrivals.burst.every.total_seconds())
    total = 0.0
    for segment in _segments(arrivals):
        part = min(seconds, segment.seconds)
        total += (segment.first + segment.slope * part / 2) * part
        seconds -= part
    return total


def _seconds(arrivals: wave_api.Arrivals | None, random: SeededRandom, trace: Sequence[float]) -> Iterable[float]:
    if arrivals is None:
        return itertools.repeat(0.0)
    if arrivals.rate is not None:
        return _constant(arrivals.rate)
    if arrivals.poisson is not None:
        return _poisson(arrivals.poisson, random)
    if arrivals.burst is not None:
        size, distance = arrivals.burst.size, arrivals.burst.every.total_seconds()
        return (index // size * distance for index in itertools.count())
    if arrivals.trace is not None:
        speed = arrivals.trace.speed
        return (at / speed for at in trace)
    return _changing_rate(arrivals, _poisson(1.0, random) if arrivals.random else _constant(1.0))


def _constant(rate: float) -> Iterator[float]:
    return (index / rate for index in itertools.count())


def _poisson(rate: float, random: SeededRandom) -> Iterator[float]:
    gap = ExponentialDistribution(1 / rate)
    return itertools.accumulate(random.draw(index, gap) for index in itertools.count())


@dataclass(frozen=True, slots=True)
class _RateSegment:
    """A time segment with a linear rate."""

    seconds: float
    first: float
    last: float

    @property
    def objects(self) -> float:
        return (self.first + self.last) / 2 * self.seconds

    @property
    def slope(self) -> float:
        return (self.last - self.first) / self.seconds if math.isfinite(self.seconds) else 0.0

    def at(self, objects: float) -> float:
        """Return the time at which this many objects have arrived."""
        if abs(self.slope) < 1e-12:  # noqa: PLR2004  # practically constant
            return objects / self.first
        return (math.sqrt(max(0.0, self.first**2 + 2 * self.slope * objects)) - self.first) / self.slope


def _segments(arrivals: wave_api.Arrivals) -> list[_RateSegment]:
    """Return a changing rate in segments; the last one is endless."""
    segments: list[_RateSegment] = []
    if arrivals.ramp is not None:
        ramp = arrivals.ramp
        segments = [_RateSegment(ramp.over.total_seconds(), ramp.from_, ramp.to)]
    elif arrivals.steps is not None:
        segments = [_RateSegment(step.for_.total_seconds(), step.rate, step.rate) for step in arrivals.steps]
    return [*segments, _RateSegment(math.inf, segments[-1].last, segments[-1].last)] if segments else []


def _changing_rate(arrivals: wave_api.Arrivals, marks: Iterator[float]) -> Iterator[float]:
    """Yield the arrivals of a changing rate: an object arrives when the rate's integral reaches its mark.

    Equidistant marks give regular arrivals, marks of a Poisson process random ones.
    """
    begun, before, mark = 0.0, 0.0, next(marks)
    for segment in _segments(arrivals):
        while mark < before + segment.objects:
            yield begun + segment.at(mark - before)
            mark = next(marks)
        begun, before = begun + segment.seconds, before + segment.objects
