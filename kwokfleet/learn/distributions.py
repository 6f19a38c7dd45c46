"""The distributions that a step of a Lifecycle can have, as functions: what fitting compares with what was seen.

Each knows, beside its distribution function, the integral of it. A time that was written down in
whole units was once any time around it, and what is seen of a distribution through such a grid
follows from that integral exactly (`fitting.Sample`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from statistics import NormalDist
from typing import Protocol

from kwokfleet.api import units

_STANDARD = NormalDist()
_FEWEST_DIGITS, _DIGITS = 2, 4
"""Four say more than any sample knows."""
LEAST_S = 0.001
_SCALES = {"mean", "stddev", "median"}
"""Numbers that must not be zero: a Lifecycle takes no less than a millisecond."""
LEAST_SIGMA, MOST_SIGMA = 0.001, 10.0
"""What a Lifecycle takes."""
_ROOT_2, _ROOT_2PI = math.sqrt(2), math.sqrt(2 * math.pi)


class Distribution(Protocol):
    """A distribution of seconds."""

    @property
    def name(self) -> str:
        """How people call it."""

    @property
    def freedom(self) -> int:
        """How many numbers were chosen to make it fit; a bound counts twice.

        A bound lies at the last value that was seen, which gains it twice as much by having been chosen
        as a number gains that values lie around.
        """

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""

    def area(self, x: float) -> float:
        """Return the integral of `cdf` up to *x*: by how much a value falls short of *x*, on average."""

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""

    def written(self) -> str | Mapping[str, Mapping[str, object]]:
        """Return it as a Lifecycle says it."""


@dataclass(frozen=True, slots=True)
class ConstantDistribution:
    """Always the same."""

    value: float
    name = "constant"
    freedom = 1

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""
        return float(x >= self.value)

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return max(0.0, x - self.value)

    def quantile(self, share: float) -> float:  # noqa: ARG002  # the same for each
        """Return the value."""
        return self.value

    def written(self) -> str:
        """Return a duration."""
        return duration_text(self.value)


@dataclass(frozen=True, slots=True)
class UniformDistribution:
    """Anything between two bounds."""

    low: float
    high: float
    name = "uniform"
    freedom = 4

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""
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

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return self.low + share * (self.high - self.low)

    def written(self) -> str:
        """Return a range."""
        low, high = duration_text(self.low), duration_text(self.high)
        return low if low == high else f"{low}..{high}"


@dataclass(frozen=True, slots=True)
class ExponentialDistribution:
    """Without memory."""

    mean: float
    name = "exponential"
    freedom = 1

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""
        return -math.expm1(-x / self.mean) if x > 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return x + self.mean * math.expm1(-x / self.mean) if x > 0 else 0.0

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return -self.mean * math.log1p(-share)

    def written(self) -> dict[str, dict[str, object]]:
        """Return the distribution."""
        return {"exponential": {"mean": duration_text(self.mean)}}


@dataclass(frozen=True, slots=True)
class NormalDistribution:
    """A bell; what would lie below zero is zero, as a Lifecycle plays it."""

    mean: float
    stddev: float
    name = "normal"
    freedom = 2

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""
        return _phi((x - self.mean) / self.stddev) if x >= 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        return self._unbounded(x) - self._unbounded(0.0) if x > 0 else 0.0

    def _unbounded(self, x: float) -> float:
        z = (x - self.mean) / self.stddev
        return (x - self.mean) * _phi(z) + self.stddev * math.exp(-z * z / 2) / _ROOT_2PI

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return max(0.0, self.mean + self.stddev * _STANDARD.inv_cdf(share))

    def written(self) -> dict[str, dict[str, object]]:
        """Return the distribution."""
        return {"normal": {"mean": duration_text(self.mean), "stddev": duration_text(self.stddev)}}


@dataclass(frozen=True, slots=True)
class LogNormalDistribution:
    """A bell of logarithms: how long real jobs run."""

    median: float
    sigma: float
    name = "lognormal"
    freedom = 2

    def _z(self, x: float) -> float:
        return (math.log(x) - math.log(self.median)) / self.sigma  # a quotient may be too small for a number

    def cdf(self, x: float) -> float:
        """Return which share of the values is at most *x*."""
        return _phi(self._z(x)) if x > 0 else 0.0

    def area(self, x: float) -> float:
        """Return the integral of `cdf`."""
        if x <= 0:
            return 0.0
        z = self._z(x)
        below = _phi(z - self.sigma)  # the share of the mean that values up to x make up
        return x * _phi(z) - (self.median * math.exp(self.sigma**2 / 2) * below if below else 0.0)

    def quantile(self, share: float) -> float:
        """Return the value that a share of the values does not exceed."""
        return self.median * math.exp(self.sigma * _STANDARD.inv_cdf(share))

    def written(self) -> dict[str, dict[str, object]]:
        """Return the distribution."""
        return {"lognormal": {"median": duration_text(self.median), "sigma": self.sigma}}


def rounded(shape: Distribution, places: int) -> Distribution:
    """Return a distribution with numbers of so many decimal places, or of two digits where that is more."""
    made = {each.name: _tidy(getattr(shape, each.name), places) for each in fields(shape)}  # type: ignore[arg-type]  # all are
    least = {name: max(LEAST_S, value) for name, value in made.items() if name in _SCALES}
    return replace(shape, **made | least)  # type: ignore[type-var]  # as above


def _tidy(value: float, places: int) -> float:
    if value <= 0:
        return 0.0
    digits = places + 1 + math.floor(math.log10(value))
    return float(f"{value:.{min(_DIGITS, max(_FEWEST_DIGITS, digits)) - 1}e}")


def duration_text(value: float) -> str:
    """Return a duration as a file has it, in whole milliseconds."""
    most = units.MAX_DURATION.total_seconds()
    return units.format_duration(timedelta(seconds=round(min(max(0.0, value), most), 3)))


def _phi(z: float) -> float:
    return math.erfc(-z / _ROOT_2) / 2
