"""Fits the distributions of a Lifecycle to durations, and measures the fit.

Times are rounded to a grid: API timestamps are whole seconds, watch events some hundredths. A duration is the
difference of two rounded times, so d seconds appear as one of two neighbouring numbers. The distribution of
rounded durations is known exactly: with A the integral of the distribution function and w the width of the grid, n is
observed with probability (A(n+w) - 2 A(n) + A(n-w)) / w. Fitting uses this probability, so no value counts as more
exact than it is, and a constant is recognized.

Rarely a pod takes much longer than all others, for an unrelated reason. So one value in a thousand may lie anywhere.
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
"""With fewer samples, distributions cannot be distinguished."""
OUTLIER_SHARE = 0.001
POOR_DISTANCE = 0.1
"""A Kolmogorov-Smirnov distance that is visible in a plot."""
_SIGNIFICANT = 1.36
"""Divided by the square root of the sample size: the distance at the 5 % significance level."""
_MOST_VALUES = 5_000
_CELLS = 100
"""A grid finer than this fraction of the interquartile range adds no information."""
_EQUAL = 0.1
"""AIC difference below which two distributions are equally good."""
_TINY = 1e-6
"""Tolerance for times on the grid."""
_STEPS = 200
_CLOSE = 1e-4
_FENCE = 3.0
"""Interquartile ranges beyond the quartiles; values farther out are ignored for the start values."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Durations, in units of a grid."""

    counts: Mapping[int, int]
    """Count of each duration."""
    width: float
    """Unit in seconds."""

    @property
    def size(self) -> int:
        """Number of durations."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """Return the duration that a share does not exceed; equal ones are spread over their unit."""
        left = share * self.size
        for number in sorted(self.counts):
            if left <= self.counts[number]:
                return _spread(number, left / self.counts[number], self.width)
            left -= self.counts[number]
        return _spread(max(self.counts), 1.0, self.width)

    def spread(self) -> list[float]:
        """Return all durations in order; equal ones are spread evenly over their unit."""
        return [
            _spread(number, (index + 0.5) / count, self.width)
            for number, count in sorted(self.counts.items())
            for index in range(count)
        ]


def _spread(number: int, share: float, width: float) -> float:
    low = max(0.0, (number - 0.5) * width)
    return low + share * ((number + 0.5) * width - low)


def make_sample(pairs: Iterable[tuple[float, float]], width: float) -> Sample:
    """Return the durations between pairs of times, rounded to a grid; negative ones become 0."""
    numbers = (math.floor(end / width + _TINY) - math.floor(start / width + _TINY) for start, end in pairs)
    return Sample(Counter(max(0, number) for number in numbers), width)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted distribution and its quality."""

    shape: Distribution
    sample: Sample
    distance: float
    """Kolmogorov-Smirnov distance: the largest difference of observed and expected cumulative share."""
    alternatives: Mapping[str, float]
    """AIC difference of each other distribution; empty with too few samples."""

    def quantile(self, share: float) -> float:
        """Return the expected value of `sample.quantile`, rounded to the same grid."""
        width = self.sample.width
        near = math.floor(self.shape.quantile(share) / width)  # this number or a neighbour is observed
        candidates = (number for number in (near - 1, near) if _share(self.shape, number, width) >= share - _TINY)
        number = max(0, next(candidates, near + 1))
        before, upto = _share(self.shape, number - 1, width), _share(self.shape, number, width)
        return _spread(number, (share - before) / (upto - before) if upto > before else 1.0, width)

    @property
    def is_poor(self) -> bool:
        """Whether no distribution of a Lifecycle fits."""
        return self.distance > max(POOR_DISTANCE, _SIGNIFICANT / math.sqrt(self.sample.size))

    @property
    def is_guess(self) -> bool:
        """Whether there are too few samples."""
        return self.sample.size < MIN_SAMPLES


def fit(sample: Sample) -> Fit:
    """Return the best distribution for a sample."""
    if not sample.counts:
        raise ValueError("the sample is empty")
    if sample.size < MIN_SAMPLES:
        return _fitted(_guess(sample), sample, {})
    coarse = _coarser(sample)
    shapes = [find(coarse) for find in _FINDERS]
    scores = {shape: 2 * shape.freedom - 2 * _likelihood(shape, coarse) for shape in shapes}  # AIC
    least = min(scores.values())
    best = next(shape for shape, score in scores.items() if score < least + _EQUAL)  # of equals the simplest
    alternatives = {shape.name: score - least for shape, score in scores.items() if shape is not best}
    return _fitted(best, sample, alternatives)


def _fitted(shape: Distribution, sample: Sample, alternatives: Mapping[str, float]) -> Fit:
    """Return a fit with rounded parameters, as they are written."""
    places = math.ceil(math.log10(math.sqrt(sample.size) / sample.width))
    tidy = distributions.rounded(shape, places)
    return Fit(tidy, sample, distance(tidy, sample), alternatives)


def distance(shape: Distribution, sample: Sample) -> float:
    """Return the Kolmogorov-Smirnov distance between a sample and a distribution, both on the grid."""
    size, below, greatest = sample.size, 0, 0.0
    for number in sorted(sample.counts):
        greatest = max(greatest, abs(below / size - _share(shape, number - 1, sample.width)))
        below += sample.counts[number]
        greatest = max(greatest, abs(below / size - _share(shape, number, sample.width)))
    return greatest


def histogram(fitted: Fit, bins: int) -> tuple[list[float], list[float]]:
    """Return the observed and expected share of values in each bin; the last one starts at the 99th percentile."""
    sample, shape, width = fitted.sample, fitted.shape, fitted.sample.width
    low = sample.quantile(0.0)
    high = max(low + width, sample.quantile(0.99))
    edges = [low + (high - low) * index / bins for index in range(1, bins)]
    values = sample.spread()
    below = [bisect.bisect_right(values, edge) / len(values) for edge in edges]
    expected = [(shape.area(edge + width / 2) - shape.area(edge - width / 2)) / width for edge in edges]
    return _parts(below), _parts(expected)


def _parts(shares: Sequence[float]) -> list[float]:
    return [end - start for start, end in itertools.pairwise((0.0, *shares, 1.0))]


def _share(shape: Distribution, number: int, width: float) -> float:
    """Return the probability to observe at most *number*."""
    return (shape.area((number + 1) * width) - shape.area(number * width)) / width


def _chance(shape: Distribution, number: int, width: float) -> float:
    """Return the probability to observe *number*."""
    around = shape.area((number + 1) * width) + shape.area((number - 1) * width)
    return max(0.0, around - 2 * shape.area(number * width)) / width


def _guess(sample: Sample) -> Distribution:
    low, high = min(sample.counts), max(sample.counts)
    if high - low <= 1:  # a constant duration, rounded up or down
        return distributions.ConstantDistribution(_mean(sample.counts) * sample.width)
    return distributions.UniformDistribution(low * sample.width, high * sample.width)


def _mean(counts: Mapping[int, int]) -> float:
    return sum(number * count for number, count in counts.items()) / sum(counts.values())


def _coarser(sample: Sample) -> Sample:
    """Return a smaller sample for fitting: fewer values, and a grid that is not too fine."""
    values = sample.spread()
    if len(values) > _MOST_VALUES:
        values = [values[round(index * (len(values) - 1) / (_MOST_VALUES - 1))] for index in range(_MOST_VALUES)]
    first, _, third = statistics.quantiles(values, n=4)
    factor = int((third - first) / _CELLS / sample.width)
    if factor <= 1 and len(values) == sample.size:
        return sample
    width = sample.width * max(1, factor)
    return Sample(Counter(round(value / width) for value in values), width)


# ----------------------------------------------------------------------------------------
# fitting each distribution


def _likelihood(shape: Distribution, sample: Sample) -> float:
    """Return the log-likelihood of a sample."""
    anywhere = OUTLIER_SHARE / (max(sample.counts) - min(sample.counts) + 1)
    return sum(
        count * math.log((1 - OUTLIER_SHARE) * _chance(shape, number, sample.width) + anywhere)
        for number, count in sample.counts.items()
    )


Point = tuple[float, ...]


def _best(
    sample: Sample, build: Callable[[Point], Distribution], start: Callable[[Mapping[int, int]], Point], steps: Point
) -> Distribution:
    """Return the most likely distribution; *start* estimates its parameters from counts."""

    def cost(point: Point) -> float:
        return -_likelihood(build(point), sample)

    starts = [start(counts) for counts in (sample.counts, _inner(sample))]
    return build(minimize(cost, min(starts, key=cost), steps))


def _constant(sample: Sample) -> Distribution:
    def build(point: Point) -> Distribution:
        return distributions.ConstantDistribution(max(0.0, point[0]))

    return _best(sample, build, lambda counts: (_mean(counts) * sample.width,), (sample.width / 8,))


def _uniform(sample: Sample) -> Distribution:
    def build(point: Point) -> Distribution:
        middle, half = point[0], abs(point[1])
        low = max(0.0, middle - half)
        return distributions.UniformDistribution(low, max(low, middle + half))

    def start(counts: Mapping[int, int]) -> Point:
        low, high = min(counts) * sample.width, max(counts) * sample.width
        return (low + high) / 2, max((high - low) / 2, sample.width / 8)

    return _best(sample, build, start, (sample.width / 4, sample.width / 4))


def _exponential(sample: Sample) -> Distribution:
    def build(point: Point) -> Distribution:
        return distributions.ExponentialDistribution(_exp(point[0]))

    return _best(sample, build, lambda counts: (_log(_mean(counts) * sample.width, sample.width),), (0.1,))


def _normal(sample: Sample) -> Distribution:
    def build(point: Point) -> Distribution:
        return distributions.NormalDistribution(max(0.0, point[0]), _exp(point[1]))

    def start(counts: Mapping[int, int]) -> Point:
        mean = _mean(counts)
        variance = sum(count * (number - mean) ** 2 for number, count in counts.items()) / sum(counts.values())
        spread = math.sqrt(max(0.04, variance - 1 / 6)) * sample.width  # 1/6: the variance of rounding
        return mean * sample.width, _log(spread, sample.width)

    return _best(sample, build, start, (_exp(start(sample.counts)[1]) / 4, 0.2))


def _lognormal(sample: Sample) -> Distribution:
    def build(point: Point) -> Distribution:
        sigma = min(distributions.MOST_SIGMA, max(distributions.LEAST_SIGMA, _exp(point[1])))
        return distributions.LogNormalDistribution(_exp(point[0]), sigma)

    def start(counts: Mapping[int, int]) -> Point:
        logs = [math.log(value) for value in Sample(counts, sample.width).spread()]
        return statistics.fmean(logs), _log(statistics.pstdev(logs), 0.1)

    return _best(sample, build, start, (0.1, 0.2))


_FINDERS = (_constant, _exponential, _uniform, _normal, _lognormal)


def _exp(value: float) -> float:
    """Return exp of a value, limited against overflow."""
    return math.exp(min(30.0, max(-15.0, value)))


def _log(value: float, least: float) -> float:
    return math.log(max(value, least / 8))


def _inner(sample: Sample) -> Mapping[int, int]:
    """Return the counts without outliers."""
    values = sorted(Counter(sample.counts).elements())
    first, _, third = statistics.quantiles(values, n=4)
    reach = _FENCE * max(1.0, third - first)
    return {number: count for number, count in sample.counts.items() if first - reach <= number <= third + reach}


def minimize(cost: Callable[[Point], float], start: Point, steps: Point) -> Point:
    """Return a local minimum of *cost* near *start* (Nelder-Mead)."""
    corners = [start, *((*start[:index], start[index] + step, *start[index + 1 :]) for index, step in enumerate(steps))]
    simplex = sorted((cost(corner), corner) for corner in corners)
    for _ in range(_STEPS):
        if simplex[-1][0] - simplex[0][0] < _CLOSE and _is_small(simplex, steps):
            break
        centre = tuple(statistics.fmean(axis) for axis in zip(*(corner for _, corner in simplex[:-1]), strict=True))
        simplex[-1:] = [_replacement(cost, centre, simplex)]
        if simplex[-1][0] > simplex[-2][0]:  # no improvement: shrink towards the best corner
            best = simplex[0][1]
            simplex[1:] = [(cost(near), near) for near in (_between(best, corner, 0.5) for _, corner in simplex[1:])]
        simplex.sort()
    return simplex[0][1]


def _replacement(
    cost: Callable[[Point], float], centre: Point, simplex: Sequence[tuple[float, Point]]
) -> tuple[float, Point]:
    """Return the replacement of the worst corner: reflected, expanded or contracted."""
    worst = simplex[-1]
    reflected = _valued(cost, _between(centre, worst[1], -1.0))
    if reflected[0] < simplex[0][0]:
        return min(reflected, _valued(cost, _between(centre, worst[1], -2.0)))
    if reflected[0] < simplex[-2][0]:
        return reflected
    return min(worst, _valued(cost, _between(centre, min(worst, reflected)[1], 0.5)))


def _valued(cost: Callable[[Point], float], point: Point) -> tuple[float, Point]:
    return cost(point), point


def _between(one: Point, other: Point, part: float) -> Point:
    return tuple(a + part * (b - a) for a, b in zip(one, other, strict=True))


def _is_small(simplex: Sequence[tuple[float, Point]], steps: Point) -> bool:
    best = simplex[0][1]
    return all(
        abs(corner[index] - best[index]) < step / 100 for _, corner in simplex[1:] for index, step in enumerate(steps)
    )
