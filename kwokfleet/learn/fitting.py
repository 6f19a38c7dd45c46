"""Which distribution durations come from, of those that a Lifecycle can say; and how well it fits.

Times are seen through a grid: API timestamps are whole seconds, and what a watch receives is late by
some hundredths. A duration is the difference of two such times, so one of d seconds is seen as one of
two neighbouring numbers, and as which depends on where in its second it began. What is seen of a
distribution is therefore known exactly: with A the integral of its distribution function and w the
width of the grid, n is seen with probability (A(n+w) - 2 A(n) + A(n-w)) / w. That is what is fitted
and judged. No value is taken for more exact than it is, and a constant is found to be one.

Now and then a pod takes twenty times as long as all others, for a reason that is no part of the
distribution. One in a thousand is therefore allowed to lie anywhere.
"""

import bisect
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kwokfleet.render import distributions
from kwokfleet.render.distributions import Distribution

MIN_SAMPLES = 8
"""Below it no distribution can be told from another."""
OUTLIER_SHARE = 0.001
POOR_DISTANCE = 0.1
"""A Kolmogorov-Smirnov distance that people would see in a plot."""
_SIGNIFICANT = 1.36
"""By the square root of the number of values: the distance that chance alone exceeds once in twenty times."""
_MOST_VALUES = 5_000
_CELLS = 100
"""A grid finer than this part of the spread of the values tells nothing more."""
_EQUAL = 0.1
"""Two distributions that differ by less are equally good (AIC)."""
_TINY = 1e-6
"""A time that stands on the grid stays there, whatever division makes of it."""
_STEPS = 200
_CLOSE = 1e-4
_FENCE = 3.0
"""Quartile distances from the quartiles, beyond which values are left out to find where to begin."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Durations, in whole units of a grid."""

    counts: Mapping[int, int]
    """How often each was seen."""
    width: float
    """The unit, in seconds."""

    @property
    def size(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """Return the duration that a share does not exceed; those that look equal are spread over their unit."""
        left = share * self.size
        for number in sorted(self.counts):
            if left <= self.counts[number]:
                return _spread(number, left / self.counts[number], self.width)
            left -= self.counts[number]
        return _spread(max(self.counts), 1.0, self.width)

    def spread(self) -> list[float]:
        """Return all durations in order; those that look equal are spread evenly over their unit."""
        return [
            _spread(number, (index + 0.5) / count, self.width)
            for number, count in sorted(self.counts.items())
            for index in range(count)
        ]


def _spread(number: int, share: float, width: float) -> float:
    low = max(0.0, (number - 0.5) * width)
    return low + share * ((number + 0.5) * width - low)


def make_sample(pairs: Iterable[tuple[float, float]], width: float) -> Sample:
    """Return the durations between times, as a grid of this width shows them; none is below zero."""
    numbers = (math.floor(end / width + _TINY) - math.floor(start / width + _TINY) for start, end in pairs)
    return Sample(Counter(max(0, number) for number in numbers), width)


@dataclass(frozen=True, slots=True)
class Fit:
    """A distribution, and how well it says what was seen."""

    shape: Distribution
    sample: Sample
    distance: float
    """Kolmogorov-Smirnov: the greatest difference between the share of values seen up to a time, and the expected."""
    rivals: Mapping[str, float]
    """By how much each other distribution is worse (AIC); empty if there were too few values to choose."""

    def quantile(self, share: float) -> float:
        """Return what `sample.quantile` would be if the distribution were the true one: seen through the same grid."""
        width = self.sample.width
        near = math.floor(self.shape.quantile(share) / width)  # what is seen is this number, or a neighbour
        found = (number for number in (near - 1, near) if _share(self.shape, number, width) >= share - _TINY)
        number = max(0, next(found, near + 1))
        before, upto = (_share(self.shape, each, width) for each in (number - 1, number))
        return _spread(number, (share - before) / (upto - before) if upto > before else 1.0, width)

    @property
    def is_poor(self) -> bool:
        """Whether the values come from none of the distributions that a Lifecycle can say."""
        return self.distance > max(POOR_DISTANCE, _SIGNIFICANT / math.sqrt(self.sample.size))

    @property
    def is_guess(self) -> bool:
        """Whether there were too few values to tell."""
        return self.sample.size < MIN_SAMPLES


def fit(seen: Sample) -> Fit:
    """Return the distribution that says best what was seen."""
    if not seen.counts:
        raise ValueError("nothing was seen")
    if seen.size < MIN_SAMPLES:
        return _fitted(_of_few(seen), seen, {})
    coarse = _coarser(seen)
    scores = {shape: _score(shape, coarse) for shape in (find(coarse) for find in _FINDERS)}
    least = min(scores.values())
    best = next(shape for shape, score in scores.items() if score < least + _EQUAL)  # of equals the simplest
    rivals = {each.name: score - least for each, score in scores.items() if each is not best}
    return _fitted(best, seen, rivals)


def _fitted(shape: Distribution, seen: Sample, rivals: Mapping[str, float]) -> Fit:
    """Return a fit, judged as it will be written down: with the digits that the grid lets one know."""
    places = math.ceil(math.log10(math.sqrt(seen.size) / seen.width))
    tidy = distributions.rounded(shape, places)
    return Fit(tidy, seen, distance(tidy, seen), rivals)


def distance(shape: Distribution, seen: Sample) -> float:
    """Return the Kolmogorov-Smirnov distance of what was seen from what would be seen of a distribution."""
    size, below, greatest = seen.size, 0, 0.0
    for number in sorted(seen.counts):
        greatest = max(greatest, abs(below / size - _share(shape, number - 1, seen.width)))
        below += seen.counts[number]
        greatest = max(greatest, abs(below / size - _share(shape, number, seen.width)))
    return greatest


def histogram(made: Fit, bins: int) -> tuple[list[float], list[float]]:
    """Return which share of the values lies in each of some equal parts of their range: seen, and expected.

    What lies beyond 99 % of the values is in the last part.
    """
    seen, shape, width = made.sample, made.shape, made.sample.width
    low = seen.quantile(0.0)
    high = max(low + width, seen.quantile(0.99))
    edges = [low + (high - low) * index / bins for index in range(1, bins)]
    values = seen.spread()
    below = [bisect.bisect_right(values, edge) / len(values) for edge in edges]
    expected = [(shape.area(edge + width / 2) - shape.area(edge - width / 2)) / width for edge in edges]
    return _parts(below), _parts(expected)


def _parts(shares: Sequence[float]) -> list[float]:
    return [end - start for start, end in itertools.pairwise((0.0, *shares, 1.0))]


def _share(shape: Distribution, number: int, width: float) -> float:
    """Return the probability that at most *number* is seen."""
    return (shape.area((number + 1) * width) - shape.area(number * width)) / width


def _chance(shape: Distribution, number: int, width: float) -> float:
    """Return the probability that *number* is seen."""
    around = shape.area((number + 1) * width) + shape.area((number - 1) * width)
    return max(0.0, around - 2 * shape.area(number * width)) / width


def _of_few(seen: Sample) -> Distribution:
    low, high = min(seen.counts), max(seen.counts)
    if high - low <= 1:  # as one and the same duration is seen, begun here or there in a second
        return distributions.ConstantDistribution(_mean(seen.counts) * seen.width)
    return distributions.UniformDistribution(low * seen.width, high * seen.width)


def _mean(counts: Mapping[int, int]) -> float:
    return sum(number * count for number, count in counts.items()) / sum(counts.values())


def _coarser(seen: Sample) -> Sample:
    """Return a sample with what a choice needs: at most some thousand values, on a grid that is not too fine."""
    values = seen.spread()
    if len(values) > _MOST_VALUES:
        values = [values[round(index * (len(values) - 1) / (_MOST_VALUES - 1))] for index in range(_MOST_VALUES)]
    first, _, third = statistics.quantiles(values, n=4)
    factor = int((third - first) / _CELLS / seen.width)
    if factor <= 1 and len(values) == seen.size:
        return seen
    width = seen.width * max(1, factor)
    return Sample(Counter(round(value / width) for value in values), width)


# ----------------------------------------------------------------------------------------
# the best of each kind


def _likelihood(shape: Distribution, seen: Sample) -> float:
    """Return the logarithm of the probability of all that was seen."""
    anywhere = OUTLIER_SHARE / (max(seen.counts) - min(seen.counts) + 1)
    return sum(
        count * math.log((1 - OUTLIER_SHARE) * _chance(shape, number, seen.width) + anywhere)
        for number, count in seen.counts.items()
    )


def _score(shape: Distribution, seen: Sample) -> float:
    """Return Akaike's criterion: with more numbers to choose, a better fit means less."""
    return 2 * shape.freedom - 2 * _likelihood(shape, seen)


Point = tuple[float, ...]


def _best(seen: Sample, made: Callable[[Point], Distribution], starts: Sequence[Point], steps: Point) -> Distribution:
    def cost(point: Point) -> float:
        return -_likelihood(made(point), seen)

    return made(minimize(cost, min(starts, key=cost), steps))


def _constant(seen: Sample) -> Distribution:
    starts = [(_mean(counts) * seen.width,) for counts in (seen.counts, _inner(seen))]
    return _best(seen, lambda point: distributions.ConstantDistribution(max(0.0, point[0])), starts, (seen.width / 8,))


def _uniform(seen: Sample) -> Distribution:
    def made(point: Point) -> Distribution:
        middle, half = point[0], abs(point[1])
        low = max(0.0, middle - half)
        return distributions.UniformDistribution(low, max(low, middle + half))

    starts = []
    for counts in (seen.counts, _inner(seen)):
        low, high = min(counts) * seen.width, max(counts) * seen.width
        starts.append(((low + high) / 2, max((high - low) / 2, seen.width / 8)))
    return _best(seen, made, starts, (seen.width / 4, seen.width / 4))


def _exponential(seen: Sample) -> Distribution:
    def made(point: Point) -> Distribution:
        return distributions.ExponentialDistribution(_exp(point[0]))

    starts = [(_log(_mean(counts) * seen.width, seen.width),) for counts in (seen.counts, _inner(seen))]
    return _best(seen, made, starts, (0.1,))


def _normal(seen: Sample) -> Distribution:
    def made(point: Point) -> Distribution:
        return distributions.NormalDistribution(max(0.0, point[0]), _exp(point[1]))

    starts = []
    for counts in (seen.counts, _inner(seen)):
        mean = _mean(counts)
        variance = sum(count * (number - mean) ** 2 for number, count in counts.items()) / sum(counts.values())
        spread = math.sqrt(max(0.04, variance - 1 / 6)) * seen.width  # a sixth: what the grid adds
        starts.append((mean * seen.width, _log(spread, seen.width)))
    return _best(seen, made, starts, (_exp(starts[0][1]) / 4, 0.2))


def _lognormal(seen: Sample) -> Distribution:
    def made(point: Point) -> Distribution:
        return distributions.LogNormalDistribution(
            _exp(point[0]), min(distributions.MOST_SIGMA, max(distributions.LEAST_SIGMA, _exp(point[1])))
        )

    starts = []
    for counts in (seen.counts, _inner(seen)):
        logs = [math.log(value) for value in Sample(counts, seen.width).spread()]
        starts.append((statistics.fmean(logs), _log(statistics.pstdev(logs), 0.1)))
    return _best(seen, made, starts, (0.1, 0.2))


_FINDERS = (_constant, _exponential, _uniform, _normal, _lognormal)


def _exp(value: float) -> float:
    """Return a positive number that no step can make too large or too small to go on with."""
    return math.exp(min(30.0, max(-15.0, value)))


def _log(value: float, least: float) -> float:
    return math.log(max(value, least / 8))


def _inner(seen: Sample) -> Mapping[int, int]:
    """Return what is left without values that lie far from most."""
    values = sorted(Counter(seen.counts).elements())
    first, _, third = statistics.quantiles(values, n=4)
    reach = _FENCE * max(1.0, third - first)
    return {number: count for number, count in seen.counts.items() if first - reach <= number <= third + reach}


def minimize(cost: Callable[[Point], float], start: Point, steps: Point) -> Point:
    """Return a place near *start* where *cost* is least, by the method of Nelder and Mead."""
    corners = [start, *(_moved(start, index, step) for index, step in enumerate(steps))]
    found = sorted((cost(corner), corner) for corner in corners)
    for _ in range(_STEPS):
        if found[-1][0] - found[0][0] < _CLOSE and _is_small(found, steps):
            break
        centre = tuple(statistics.fmean(axis) for axis in zip(*(corner for _, corner in found[:-1]), strict=True))
        found[-1:] = [_next(cost, centre, found)]
        if found[-1][0] > found[-2][0]:  # nothing better that way: draw all corners nearer to the best
            best = found[0][1]
            found[1:] = [(cost(near), near) for near in (_between(best, corner, 0.5) for _, corner in found[1:])]
        found.sort()
    return found[0][1]


def _next(cost: Callable[[Point], float], centre: Point, found: Sequence[tuple[float, Point]]) -> tuple[float, Point]:
    """Return what takes the place of the worst corner: its mirror image, or one farther out or nearer."""
    worst = found[-1]
    mirrored = _valued(cost, _between(centre, worst[1], -1.0))
    if mirrored[0] < found[0][0]:
        return min(mirrored, _valued(cost, _between(centre, worst[1], -2.0)))
    if mirrored[0] < found[-2][0]:
        return mirrored
    return min(worst, _valued(cost, _between(centre, min(worst, mirrored)[1], 0.5)))


def _valued(cost: Callable[[Point], float], point: Point) -> tuple[float, Point]:
    return cost(point), point


def _moved(point: Point, index: int, step: float) -> Point:
    return (*point[:index], point[index] + step, *point[index + 1 :])


def _between(one: Point, other: Point, part: float) -> Point:
    return tuple(a + part * (b - a) for a, b in zip(one, other, strict=True))


def _is_small(found: Sequence[tuple[float, Point]], steps: Point) -> bool:
    best = found[0][1]
    return all(
        abs(corner[index] - best[index]) < step / 100 for _, corner in found[1:] for index, step in enumerate(steps)
    )
