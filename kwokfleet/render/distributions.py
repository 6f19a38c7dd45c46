"""Probability distributions of delays and variables, for Lifecycles, Waves and learning.

They are in render, the lowest package that draws values. learn fits the same classes to real pods.

`sample` maps a uniform number to a value. The other functions describe durations: a value below 0
counts as 0. `area` is the integral of `cdf`: timestamps are rounded to a grid, and the distribution of
rounded values follows exactly from that integral (`fitting.Sample`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from statistics import NormalDist
from typing import ClassVar

from kwokfleet.api import units
from kwokfleet.api.delay import Delay
from kwokfleet.api.wave import Variable

_STANDARD = NormalDist()
_MIN_DIGITS, _MAX_DIGITS = 2, 4
"""More than four digits are more exact than any sample."""
LEAST_S = 0.001
_SCALES = {"mean", "stddev", "median"}
"""Durations that must not be 0: a Lifecycle takes at least one millisecond."""
LEAST_SIGMA, MOST_SIGMA = 0.001, 10.0
"""The range of sigma in a Lifecycle."""
_ROOT_2, _ROOT_2PI = math.sqrt(2), math.sqrt(2 * math.pi)


@dataclass(frozen=True, slots=True)
class Distribution(ABC):
    """A distribution of numbers; durations are in seconds."""

    name: ClassVar[str]
    """Name in reports, and in a Lifecycle."""
    freedom: ClassVar[int]
    """Number of fitted parameters. A bound counts twice: it lies at the outermost value of the sample, which improves
    the fit twice as much."""

    @abstractmethod
    def sample(self, uniform: float) -> float:
        """Return the value for a number between 0 and 1, both excluded. Not limited to 0 and more."""

    @abstractmethod
    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""

    @abstractmethod
    def area(self, x: float) -> float:
        """Return the integral of `cdf` up to *x*."""

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return self.sample(share)

    def written(self) -> str | Mapping[str, Mapping[str, object]]:
        """Return the delay of a Lifecycle."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        durations = {name: duration_text(value) for name, value in values.items() if name in _SCALES}
        return {self.name: values | durations}


@dataclass(frozen=True, slots=True)
class ConstantDistribution(Distribution):
    """A single value."""

    value: float
    name = "constant"
    freedom = 1

    def sample(self, uniform: float) -> float:  # noqa: ARG002  # always the same
        """Return the value."""
        return self.value

    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""
        return float(x >= self.value)

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return max(0.0, x - self.value)

    def written(self) -> str:
        """Return a duration."""
        return duration_text(self.value)


@dataclass(frozen=True, slots=True)
class UniformDistribution(Distribution):
    """Any value between two bounds, all equally likely."""

    low: float
    high: float
    name = "uniform"
    freedom = 4

    def sample(self, uniform: float) -> float:
        """Return the value for a number between 0 and 1."""
        return self.low + (self.high - self.low) * uniform

    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""
        if self.high <= self.low:
            return float(x >= self.low)
        return min(1.0, max(0.0, (x - self.low) / (self.high - self.low)))

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        if x <= self.low:
            return 0.0
        if x >= self.high:
            return x - (self.low + self.high) / 2
        return (x - self.low) ** 2 / (2 * (self.high - self.low))

    def written(self) -> str:
        """Return a range."""
        low, high = duration_text(self.low), duration_text(self.high)
        return low if low == high else f"{low}..{high}"


@dataclass(frozen=True, slots=True)
class ExponentialDistribution(Distribution):
    """Memoryless waiting times."""

    mean: float
    name = "exponential"
    freedom = 1

    def sample(self, uniform: float) -> float:
        """Return the value for a number between 0 and 1; small numbers give large values.

        Not `quantile(1 - uniform)`: the subtraction rounds, and seeds would give other values.
        """
        return -self.mean * math.log(uniform)

    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""
        return -math.expm1(-x / self.mean) if x > 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return x + self.mean * math.expm1(-x / self.mean) if x > 0 else 0.0

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return -self.mean * math.log1p(-share)


@dataclass(frozen=True, slots=True)
class NormalDistribution(Distribution):
    """A normal distribution."""

    mean: float
    stddev: float
    name = "normal"
    freedom = 2

    def sample(self, uniform: float) -> float:
        """Return the value for a number between 0 and 1; it may be negative."""
        return self.mean + self.stddev * _STANDARD.inv_cdf(uniform)

    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""
        return _phi((x - self.mean) / self.stddev) if x >= 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return self._unbounded_area(x) - self._unbounded_area(0.0) if x > 0 else 0.0

    def _unbounded_area(self, x: float) -> float:
        z = (x - self.mean) / self.stddev
        return (x - self.mean) * _phi(z) + self.stddev * math.exp(-z * z / 2) / _ROOT_2PI

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return max(0.0, self.sample(share))


@dataclass(frozen=True, slots=True)
class LogNormalDistribution(Distribution):
    """A log-normal distribution: typical of the run times of real jobs."""

    median: float
    sigma: float
    name = "lognormal"
    freedom = 2

    def sample(self, uniform: float) -> float:
        """Return the value for a number between 0 and 1."""
        return self.median * math.exp(self.sigma * _STANDARD.inv_cdf(uniform))

    def _z(self, x: float) -> float:
        return (math.log(x) - math.log(self.median)) / self.sigma  # x / median may underflow

    def cdf(self, x: float) -> float:
        """Return the share of values up to *x*."""
        return _phi(self._z(x)) if x > 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        if x <= 0:
            return 0.0
        z = self._z(x)
        below = _phi(z - self.sigma)  # share of the mean that values up to x contribute
        return x * _phi(z) - (self.median * math.exp(self.sigma**2 / 2) * below if below else 0.0)


# from the Fleet API


_CLASSES = (UniformDistribution, ExponentialDistribution, NormalDistribution, LogNormalDistribution)


def from_model(model: Delay | Variable) -> Distribution | None:
    """Return the distribution of a delay, in seconds, or of a Wave's variable; None if it has none."""
    for kind in _CLASSES:
        if parameters := getattr(model, kind.name, None):  # its fields are in the order of the class
            values = (value for _, value in parameters)
            return kind(*(value.total_seconds() if isinstance(value, timedelta) else value for value in values))
    return None


# rounding


def rounded(distribution: Distribution, places: int) -> Distribution:
    """Return a distribution whose parameters have so many decimal places, but at least two digits."""
    values = {field.name: _round(getattr(distribution, field.name), places) for field in fields(distribution)}
    scales = {name: max(LEAST_S, value) for name, value in values.items() if name in _SCALES}
    return replace(distribution, **values | scales)


def _round(value: float, places: int) -> float:
    if value <= 0:
        return 0.0
    digits = places + 1 + math.floor(math.log10(value))
    return float(f"{value:.{min(_MAX_DIGITS, max(_MIN_DIGITS, digits)) - 1}e}")


def duration_text(value: float) -> str:
    """Return a duration as a Fleet file writes it, in whole milliseconds."""
    most = units.MAX_DURATION.total_seconds()
    return units.format_duration(timedelta(seconds=round(min(max(0.0, value), most), 3)))


def _phi(z: float) -> float:
    return math.erfc(-z / _ROOT_2) / 2
