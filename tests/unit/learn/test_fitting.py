"""Distributions found in durations: those they were drawn from, with bounds that follow from theory."""

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
SURE = 5.0
"""Standard deviations: chance alone goes beyond once in two million times."""
WIDTHS = st.sampled_from([1.0, 0.05])
SEEDS = st.integers(0, 2**32)
few = settings(max_examples=25, deadline=None)


def drawn(value: Callable[[SeededRandom, int], float], seed: int, width: float, size: int = SIZE) -> fitting.Sample:
    """Return durations as a grid shows them: each begins somewhere in a second."""
    random, begins = SeededRandom(seed, "value"), SeededRandom(seed, "begin")
    starts = [1e6 + 1000 * begins.uniform(index) for index in range(size)]
    return fitting.make_sample(((start, start + value(random, index)) for index, start in enumerate(starts)), width)


def of_shape(shape: Distribution, seed: int, width: float, size: int = SIZE) -> fitting.Sample:
    """Return durations from a distribution."""
    return drawn(lambda random, index: shape.quantile(random.uniform(index)), seed, width, size)


def rounding(value: float) -> float:
    """Return by how much the digits of a Lifecycle may miss a value: two digits, or a tenth of the grid's knowledge."""
    return max(0.05 * value, 0.0005)


# what is drawn is found


@few
@given(SEEDS, WIDTHS, st.floats(1, 100))
def test_an_exponential_distribution_is_recognised(seed: int, width: float, mean: float) -> None:
    """Its mean is no worse known than by the average, whose variance is the distribution's and the grid's."""
    found = fitting.fit(drawn(lambda random, index: random.draw(index, ExponentialDistribution(mean)), seed, width))
    if mean >= 2 * width:  # else most is seen as 0 or 1, of which every distribution can tell
        assert isinstance(found.shape, ExponentialDistribution)
        assert abs(found.shape.mean - mean) <= SURE * math.sqrt((mean**2 + width**2 / 4) / SIZE) + rounding(mean) / 10
    assert not found.is_poor


@few
@given(SEEDS, WIDTHS, st.floats(5, 100), st.floats(0.25, 0.3))
def test_a_normal_distribution_is_recognised(seed: int, width: float, mean: float, part: float) -> None:
    """Its middle is no worse known than by the average, its spread than by the average square."""
    stddev = part * mean
    found = fitting.fit(
        drawn(lambda random, index: max(0, random.draw(index, NormalDistribution(mean, stddev))), seed, width)
    )
    assert isinstance(found.shape, NormalDistribution)
    seen = stddev**2 + width**2 / 4
    assert abs(found.shape.mean - mean) <= SURE * math.sqrt(seen / SIZE) + rounding(mean) / 10
    assert abs(found.shape.stddev - stddev) <= SURE * math.sqrt(2 / SIZE) * seen / (2 * stddev) + rounding(stddev)
    assert not found.is_poor


@few
@given(SEEDS, WIDTHS, st.floats(10, 100), st.floats(0.5, 1.2))
def test_a_lognormal_distribution_is_recognised(seed: int, width: float, median: float, sigma: float) -> None:
    """Its parameters are those of a normal distribution of logarithms, which the grid blurs by its part of a value."""
    found = fitting.fit(
        drawn(lambda random, index: random.draw(index, LogNormalDistribution(median, sigma)), seed, width)
    )
    assert isinstance(found.shape, LogNormalDistribution)
    blur = math.exp(2 * sigma**2) * (width / median) ** 2 / 4  # the mean of 1/value² is at most this by 1/median²
    deviation = math.sqrt((sigma**2 + blur) / SIZE)
    assert abs(math.log(found.shape.median / median)) <= SURE * deviation + 0.005
    assert abs(found.shape.sigma - sigma) <= SURE * deviation / math.sqrt(2) * (1 + blur / sigma**2) + 0.05
    assert not found.is_poor


@few
@given(SEEDS, WIDTHS, st.floats(0, 100), st.floats(10, 100))
def test_a_range_is_recognised(seed: int, width: float, low: float, length: float) -> None:
    """A bound lies no farther from the last value than once in a million times one does, and than the grid is wide."""
    high = low + length
    found = fitting.fit(drawn(lambda random, index: low + length * random.uniform(index), seed, width))
    assert isinstance(found.shape, UniformDistribution)
    near = width + length * math.log(1e6) / SIZE
    assert abs(found.shape.low - low) <= near + rounding(low) / 10
    assert abs(found.shape.high - high) <= near + rounding(high) / 10
    assert not found.is_poor


@few
@given(SEEDS, WIDTHS, st.floats(0, 100))
def test_a_constant_is_recognised(seed: int, width: float, value: float) -> None:
    """However its seconds fall: it is seen as one of two numbers, and their average is unbiased."""
    found = fitting.fit(drawn(lambda _die, _index: value, seed, width))
    assert isinstance(found.shape, ConstantDistribution)
    assert abs(found.shape.value - value) <= SURE * width / 2 / math.sqrt(SIZE) + rounding(value) / 10
    assert not found.is_poor


@few
@given(DISTRIBUTIONS, SEEDS, WIDTHS, st.integers(fitting.MIN_SAMPLES, 300))
def test_whatever_is_chosen_says_what_was_seen(shape: Distribution, seed: int, width: float, size: int) -> None:
    """With few values the family may be another, but the distance stays what chance makes of the true one."""
    sample = of_shape(shape, seed, width, size)
    found = fitting.fit(sample)
    chance = math.sqrt(math.log(2e6) / (2 * size))  # Dvoretzky, Kiefer, Wolfowitz: once in a million
    assert fitting.distance(shape, sample) <= chance
    assert found.distance <= 2 * chance
    assert all(worse >= 0 for worse in found.alternatives.values())


# what cannot be told


@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        ({5: 1}, ConstantDistribution(5)),
        ({5: 2, 6: 2}, ConstantDistribution(5.5)),
        ({0: 7}, ConstantDistribution(0)),
        ({2: 3, 9: 1}, UniformDistribution(2, 9)),
    ],
)
def test_a_few_values_make_a_constant_or_a_range(counts: dict[int, int], shape: Distribution) -> None:
    """And it is said that they are few."""
    found = fitting.fit(fitting.Sample(counts, 1.0))
    assert found.shape == shape
    assert found.is_guess
    assert not found.alternatives


def test_no_value_is_no_fit() -> None:
    """Nothing is made of nothing."""
    with pytest.raises(ValueError, match="the sample is empty"):
        fitting.fit(fitting.Sample({}, 1.0))


def test_what_varies_below_a_second_looks_constant_in_whole_seconds() -> None:
    """Nothing sharper than the grid is claimed: the middle is right, and no peak at a whole second appears."""
    found = fitting.fit(of_shape(UniformDistribution(10, 11), 1, 1.0))
    assert isinstance(found.shape, ConstantDistribution)
    assert found.shape.value == pytest.approx(10.5, abs=SURE * 0.5 / math.sqrt(SIZE))
    assert isinstance(fitting.fit(of_shape(UniformDistribution(10, 11), 1, 0.05)).shape, UniformDistribution)


def test_two_humps_fit_nothing_and_that_is_said() -> None:
    """The best is chosen anyway."""
    found = fitting.fit(
        drawn(lambda random, index: random.draw(index, NormalDistribution(60 if index % 2 else 2, 0.3)), 1, 1.0)
    )
    assert found.is_poor
    assert found.shape.quantile(0.5) > 0


def test_a_stray_does_not_spoil_the_rest() -> None:
    """One pod whose image had to be pulled does not make a range of ten seconds one of ten minutes."""
    drawn_ones = of_shape(UniformDistribution(10, 20), 1, 1.0, 300)
    found = fitting.fit(fitting.Sample({**drawn_ones.counts, 600: 1}, 1.0))
    assert isinstance(found.shape, UniformDistribution)
    assert found.shape.high < 22
    assert not found.is_poor


def test_zeros_are_durations_like_others() -> None:
    """Half of the steps took no time at all, as far as whole seconds tell."""
    found = fitting.fit(of_shape(ExponentialDistribution(0.8), 1, 1.0))
    assert found.sample.counts[0] > SIZE / 3
    assert found.shape.quantile(0.5) == pytest.approx(0.8 * math.log(2), abs=0.15)


# distances


def naive_share(shape: Distribution, number: int, width: float) -> float:
    """Return the probability that at most *number* is seen, by trying many beginnings within the unit."""
    tries = 2000
    return sum(shape.cdf((number + 1) * width - width * (index + 0.5) / tries) for index in range(tries)) / tries


@few
@given(DISTRIBUTIONS, DISTRIBUTIONS, SEEDS, st.integers(1, 40))
def test_the_distance_is_that_of_a_naive_reckoning(
    shape: Distribution, true: Distribution, seed: int, size: int
) -> None:
    """Over every whole number, by the definition."""
    sample = of_shape(true, seed, 1.0, size)
    values = [number for number, count in sample.counts.items() for _ in range(count)]
    naive = max(
        abs(sum(value <= number for value in values) / size - naive_share(shape, number, 1.0))
        for number in {near for value in values for near in (value - 1, value)} | {0}
    )
    assert fitting.distance(shape, sample) == pytest.approx(naive, abs=2e-3)


@few
@given(SEEDS, st.integers(1, 60))
def test_on_a_fine_grid_it_is_the_classical_distance(seed: int, size: int) -> None:
    """As Kolmogorov and Smirnov have it for exact values."""
    shape = NormalDistribution(20, 3)
    exact = sorted(SeededRandom(seed).draw(index, NormalDistribution(20, 4)) for index in range(size))
    above = max((index + 1) / size - shape.cdf(value) for index, value in enumerate(exact))
    below = max(shape.cdf(value) - index / size for index, value in enumerate(exact))
    seen = fitting.make_sample(((0.0, value) for value in exact), 1e-5)
    assert fitting.distance(shape, seen) == pytest.approx(max(above, below), abs=1e-4)


@few
@given(DISTRIBUTIONS, SEEDS, WIDTHS)
def test_quantiles_are_seen_and_expected_through_the_same_grid(shape: Distribution, seed: int, width: float) -> None:
    """So that they can be compared: of the true distribution, the expected ones lie between neighbours of the seen."""
    sample = of_shape(shape, seed, width)
    made = fitting.Fit(shape, sample, 0.0, {})
    chance = math.sqrt(math.log(2e6) / (2 * SIZE))
    for share in (0.25, 0.5, 0.75):
        low, high = (sample.quantile(share + sign * chance) for sign in (-1, 1))
        assert low - 1e-6 * width <= made.quantile(share) <= high + 1e-6 * width


@settings(deadline=None)
@given(DISTRIBUTIONS, SEEDS, WIDTHS, st.integers(1, 50))
def test_a_histogram_is_whole(shape: Distribution, seed: int, width: float, size: int) -> None:
    """Each side adds up to all values, none below zero."""
    sample = of_shape(shape, seed, width, size)
    for side in fitting.histogram(fitting.Fit(shape, sample, 0.0, {}), 10):
        assert sum(side) == pytest.approx(1)
        assert min(side) >= -1e-9


def test_the_least_of_a_valley_is_found() -> None:
    """Also of one that lies across both axes."""
    found = fitting.minimize(lambda at: (at[0] - 3) ** 2 + 10 * (at[1] - at[0] ** 2) ** 2, (0.0, 0.0), (0.5, 0.5))
    assert found == pytest.approx((3, 9), abs=0.1)
