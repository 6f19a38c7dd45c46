"""Distributions of durations and numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.render import distributions
from kwokfleet.render.distributions import (
    ConstantDistribution,
    Distribution,
    ExponentialDistribution,
    LogNormalDistribution,
    NormalDistribution,
    UniformDistribution,
)

DISTRIBUTIONS: st.SearchStrategy[Distribution] = st.one_of(
    st.builds(ConstantDistribution, st.floats(0, 100)),
    st.builds(lambda low, more: UniformDistribution(low, low + more), st.floats(0, 100), st.floats(0.01, 100)),
    st.builds(ExponentialDistribution, st.floats(0.01, 100)),
    st.builds(NormalDistribution, st.floats(0, 100), st.floats(0.01, 50)),
    st.builds(LogNormalDistribution, st.floats(0.01, 100), st.floats(0.05, 2)),
)


@settings(deadline=None)
@given(DISTRIBUTIONS, st.floats(0, 300))
def test_area_is_the_integral_of_cdf(distribution: Distribution, end: float) -> None:
    """Compared with a sum of small parts; each jump adds an error of half a part."""
    parts = 400
    width = end / parts
    summed = sum(distribution.cdf(width * (index + 0.5)) for index in range(parts)) * width
    assert distribution.area(end) == pytest.approx(summed, abs=width + 1e-9)
    assert distribution.area(-end) == 0


@settings(deadline=None)
@given(DISTRIBUTIONS, st.floats(0.001, 0.999))
def test_quantile_is_the_inverse_of_cdf(distribution: Distribution, share: float) -> None:
    """The share of values up to a quantile is its share."""
    value = distribution.quantile(share)
    assert distribution.cdf(value * (1 + 1e-6) + 1e-9) >= share - 1e-6
    assert value == 0 or distribution.cdf(value * (1 - 1e-6) - 1e-9) <= share + 1e-6


def test_rounded_parameters_have_significant_digits_only() -> None:
    """A hundred values of whole seconds are exact to a tenth."""
    assert distributions.rounded(ConstantDistribution(5.3456), 1).written() == "5.3s"
    assert distributions.rounded(LogNormalDistribution(123.456, 0.98765), 1).written() == {
        "lognormal": {"median": "123.5s", "sigma": 0.99}
    }
    assert distributions.rounded(ExponentialDistribution(1e-9), 1).written() == {"exponential": {"mean": "1ms"}}
    assert distributions.rounded(UniformDistribution(0.0123, 86_431.0), 0).written() == "12ms..86430s"


@settings(deadline=None)
@given(st.floats(0.001, 0.999))
def test_sample_has_the_distribution(share: float) -> None:
    """A uniform number gives the quantile; an exponential distribution takes it from the other end."""
    for distribution in (UniformDistribution(2, 5), LogNormalDistribution(3, 0.7), NormalDistribution(100, 2)):
        assert distribution.sample(share) == distribution.quantile(share)
    assert ExponentialDistribution(4).sample(1 - share) == pytest.approx(ExponentialDistribution(4).quantile(share))


def test_sample_of_a_normal_distribution_may_be_negative() -> None:
    """A Wave's variable may be; a delay is limited by its caller."""
    assert NormalDistribution(0, 5).sample(0.1) < 0
    assert NormalDistribution(0, 5).quantile(0.1) == 0
