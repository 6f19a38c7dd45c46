"""Fitting of distributions to durations, with error bounds from theory."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.learn import fitting
from kwokfleet.render.distributions import (
    ConstantDistribution,
    Distribution,
    ExponentialDistribution,
    LogNormalDistribution,
    NormalDistribution,
    UniformDistribution,
)
from kwokfleet.render.seeded_random import SeededRandom
from tests.unit.render.test_distributions import DISTRIBUTIONS

SIZE = 1000
MAX_DEVIATIONS = 5.0
"""In standard deviations; exceeded by chance once in two million cases."""
WIDTHS = st.sampled_from([1.0, 0.05])
SEEDS = st.integers(0, 2**32)
few_examples = settings(max_examples=25, deadline=None)


def draw_sample(
    value: Callable[[SeededRandom, int], float], seed: int, width: float, size: int = SIZE
) -> fitting.Sample:
    """Return a sample of durations on a grid of *width*, with random start times."""
    random, begins = SeededRandom(seed, "value"), SeededRandom(seed, "begin")
    starts = [1e6 + 1000 * begins.uniform(index) for index in range(size)]
    return fitting.make_sample(((start, start + value(random, index)) for index, start in enumerate(starts)), width)


def distribution_sample(shape: Distribution, seed: int, width: float, size: int = SIZE) -> fitting.Sample:
    """Return a sample of a distribution."""
    return draw_sample(lambda random, index: shape.quantile(random.uniform(index)), seed, width, size)


def rounding_error(value: float) -> float:
    """Return the largest rounding error of a Lifecycle's value: it has two digits."""
    return max(0.05 * value, 0.0005)


# known distributions


@few_examples
@given(SEEDS, WIDTHS, st.floats(1, 100))
def test_an_exponential_distribution_is_recognised(seed: int, width: float, mean: float) -> None:
    """The error of the mean is at most that of the average; its variance includes the grid."""
    fit = fitting.fit(draw_sample(lambda random, index: random.draw(index, ExponentialDistribution(mean)), seed, width))
    if mean >= 2 * width:  # shorter durations are mostly 0 or 1, which every distribution fits
        assert isinstance(fit.shape, ExponentialDistribution)
        assert (
            abs(fit.shape.mean - mean)
            <= MAX_DEVIATIONS * math.sqrt((mean**2 + width**2 / 4) / SIZE) + rounding_error(mean) / 10
        )
    assert not fit.is_poor


@few_examples
@given(SEEDS, WIDTHS, st.floats(5, 100), st.floats(0.25, 0.3))
def test_a_normal_distribution_is_recognised(seed: int, width: float, mean: float, part: float) -> None:
    """The errors are at most those of the average and of the average square."""
    stddev = part * mean
    fit = fitting.fit(
        draw_sample(lambda random, index: max(0, random.draw(index, NormalDistribution(mean, stddev))), seed, width)
    )
    assert isinstance(fit.shape, NormalDistribution)
    variance = stddev**2 + width**2 / 4
    assert abs(fit.shape.mean - mean) <= MAX_DEVIATIONS * math.sqrt(variance / SIZE) + rounding_error(mean) / 10
    assert abs(fit.shape.stddev - stddev) <= MAX_DEVIATIONS * math.sqrt(2 / SIZE) * variance / (
        2 * stddev
    ) + rounding_error(stddev)
    assert not fit.is_poor


@few_examples
@given(SEEDS, WIDTHS, st.floats(10, 100), st.floats(0.5, 1.2))
def test_a_lognormal_distribution_is_recognised(seed: int, width: float, median: float, sigma: float) -> None:
    """The errors are those of a normal distribution of logarithms; the grid adds variance."""
    fit = fitting.fit(
        draw_sample(lambda random, index: random.draw(index, LogNormalDistribution(median, sigma)), seed, width)
    )
    assert isinstance(fit.shape, LogNormalDistribution)
    blur = math.exp(2 * sigma**2) * (width / median) ** 2 / 4  # upper bound, from the mean of 1/value²
    deviation = math.sqrt((sigma**2 + blur) / SIZE)
    assert abs(math.log(fit.shape.median / median)) <= MAX_DEVIATIONS * deviation + 0.005
    assert abs(fit.shape.sigma - sigma) <= MAX_DEVIATIONS * deviation / math.sqrt(2) * (1 + blur / sigma**2) + 0.05
    assert not fit.is_poor


@few_examples
@given(SEEDS, WIDTHS, st.floats(0, 100), st.floats(10, 100))
def test_a_range_is_recognised(seed: int, width: float, low: float, length: float) -> None:
    """The error of a bound is at most the grid's width plus a gap with a probability of one in a million."""
    high = low + length
    fit = fitting.fit(draw_sample(lambda random, index: low + length * random.uniform(index), seed, width))
    assert isinstance(fit.shape, UniformDistribution)
    near = width + length * math.log(1e6) / SIZE
    assert abs(fit.shape.low - low) <= near + rounding_error(low) / 10
    assert abs(fit.shape.high - high) <= near + rounding_error(high) / 10
    assert not fit.is_poor


@few_examples
@given(SEEDS, WIDTHS, st.floats(0, 100))
def test_a_constant_is_recognised(seed: int, width: float, value: float) -> None:
    """It is observed as one of two grid values; their average is unbiased."""
    fit = fitting.fit(draw_sample(lambda _random, _index: value, seed, width))
    assert isinstance(fit.shape, ConstantDistribution)
    assert abs(fit.shape.value - value) <= MAX_DEVIATIONS * width / 2 / math.sqrt(SIZE) + rounding_error(value) / 10
    assert not fit.is_poor


@few_examples
@given(DISTRIBUTIONS, SEEDS, WIDTHS, st.integers(fitting.MIN_SAMPLES, 300))
def test_the_chosen_distribution_is_close_to_the_sample(
    shape: Distribution, seed: int, width: float, size: int
) -> None:
    """A small sample may fit another family, but the distance stays within the random error."""
    sample = distribution_sample(shape, seed, width, size)
    fit = fitting.fit(sample)
    chance = math.sqrt(math.log(2e6) / (2 * size))  # Dvoretzky, Kiefer, Wolfowitz: once in a million
    assert fitting.distance(shape, sample) <= chance
    assert fit.distance <= 2 * chance
    assert all(worse >= 0 for worse in fit.alternatives.values())


# small and unusual samples


@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        ({5: 1}, ConstantDistribution(5)),
        ({5: 2, 6: 2}, ConstantDistribution(5.5)),
        ({0: 7}, ConstantDistribution(0)),
        ({2: 3, 9: 1}, UniformDistribution(2, 9)),
    ],
)
def test_a_small_sample_gives_a_constant_or_a_range(counts: dict[int, int], shape: Distribution) -> None:
    """The fit is marked as a guess."""
    fit = fitting.fit(fitting.Sample(counts, 1.0))
    assert fit.shape == shape
    assert fit.is_guess
    assert not fit.alternatives


def test_an_empty_sample_is_rejected() -> None:
    """It has no distribution."""
    with pytest.raises(ValueError, match="the sample is empty"):
        fitting.fit(fitting.Sample({}, 1.0))


def test_variation_below_the_grid_is_fitted_as_a_constant() -> None:
    """The fit is no more precise than the grid: the mean is right, without a peak at a whole second."""
    fit = fitting.fit(distribution_sample(UniformDistribution(10, 11), 1, 1.0))
    assert isinstance(fit.shape, ConstantDistribution)
    assert fit.shape.value == pytest.approx(10.5, abs=MAX_DEVIATIONS * 0.5 / math.sqrt(SIZE))
    assert isinstance(fitting.fit(distribution_sample(UniformDistribution(10, 11), 1, 0.05)).shape, UniformDistribution)


def test_a_bimodal_sample_gives_a_poor_fit() -> None:
    """The best distribution is chosen anyway."""
    fit = fitting.fit(
        draw_sample(lambda random, index: random.draw(index, NormalDistribution(60 if index % 2 else 2, 0.3)), 1, 1.0)
    )
    assert fit.is_poor
    assert fit.shape.quantile(0.5) > 0


def test_an_outlier_does_not_widen_the_range() -> None:
    """One slow image pull does not turn a range of ten seconds into ten minutes."""
    sample = distribution_sample(UniformDistribution(10, 20), 1, 1.0, 300)
    fit = fitting.fit(fitting.Sample({**sample.counts, 600: 1}, 1.0))
    assert isinstance(fit.shape, UniformDistribution)
    assert fit.shape.high < 22
    assert not fit.is_poor


def test_zero_durations_are_part_of_the_sample() -> None:
    """In whole seconds, more than a third of the durations are zero."""
    fit = fitting.fit(distribution_sample(ExponentialDistribution(0.8), 1, 1.0))
    assert fit.sample.counts[0] > SIZE / 3
    assert fit.shape.quantile(0.5) == pytest.approx(0.8 * math.log(2), abs=0.15)


# distances


def numeric_cdf(shape: Distribution, number: int, width: float) -> float:
    """Return the probability of at most *number*, averaged over many start times within the unit."""
    tries = 2000
    return sum(shape.cdf((number + 1) * width - width * (index + 0.5) / tries) for index in range(tries)) / tries


@few_examples
@given(DISTRIBUTIONS, DISTRIBUTIONS, SEEDS, st.integers(1, 40))
def test_the_distance_equals_a_direct_computation(
    shape: Distribution, true: Distribution, seed: int, size: int
) -> None:
    """By the definition, over every whole number."""
    sample = distribution_sample(true, seed, 1.0, size)
    values = [number for number, count in sample.counts.items() for _ in range(count)]
    naive = max(
        abs(sum(value <= number for value in values) / size - numeric_cdf(shape, number, 1.0))
        for number in {near for value in values for near in (value - 1, value)} | {0}
    )
    assert fitting.distance(shape, sample) == pytest.approx(naive, abs=2e-3)


@few_examples
@given(SEEDS, st.integers(1, 60))
def test_on_a_fine_grid_the_distance_is_kolmogorov_smirnov(seed: int, size: int) -> None:
    """Kolmogorov and Smirnov define it for exact values."""
    shape = NormalDistribution(20, 3)
    exact = sorted(SeededRandom(seed).draw(index, NormalDistribution(20, 4)) for index in range(size))
    above = max((index + 1) / size - shape.cdf(value) for index, value in enumerate(exact))
    below = max(shape.cdf(value) - index / size for index, value in enumerate(exact))
    sample = fitting.make_sample(((0.0, value) for value in exact), 1e-5)
    assert fitting.distance(shape, sample) == pytest.approx(max(above, below), abs=1e-4)


@few_examples
@given(DISTRIBUTIONS, SEEDS, WIDTHS)
def test_fitted_quantiles_match_the_sample_on_the_same_grid(shape: Distribution, seed: int, width: float) -> None:
    """Quantiles of the true distribution are within the random error of the sample's."""
    sample = distribution_sample(shape, seed, width)
    fit = fitting.Fit(shape, sample, 0.0, {})
    chance = math.sqrt(math.log(2e6) / (2 * SIZE))
    for share in (0.25, 0.5, 0.75):
        low, high = (sample.quantile(share + sign * chance) for sign in (-1, 1))
        assert low - 1e-6 * width <= fit.quantile(share) <= high + 1e-6 * width


@settings(deadline=None)
@given(DISTRIBUTIONS, SEEDS, WIDTHS, st.integers(1, 50))
def test_histogram_shares_add_up_to_one(shape: Distribution, seed: int, width: float, size: int) -> None:
    """For sample and fit, and no share is negative."""
    sample = distribution_sample(shape, seed, width, size)
    for side in fitting.histogram(fitting.Fit(shape, sample, 0.0, {}), 10):
        assert sum(side) == pytest.approx(1)
        assert min(side) >= -1e-9


def test_minimize_finds_the_minimum() -> None:
    """Also in a curved valley across both axes."""
    minimum = fitting.minimize(lambda at: (at[0] - 3) ** 2 + 10 * (at[1] - at[0] ** 2) ** 2, (0.0, 0.0), (0.5, 0.5))
    assert minimum == pytest.approx((3, 9), abs=0.1)
