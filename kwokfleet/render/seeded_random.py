"""Chance that can be repeated: a number for each name and index, the same on every machine.

Each draw hashes what it is for (seed, fleet, wave, run, variable, index) instead of drawing from a
stream, so adding a variable or an object changes no other draw, and object 7,000 costs as much as
object 0.
"""

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

_STANDARD = NormalDist()


class SeededRandom:
    """Draws for one purpose, by index."""

    __slots__ = ("_hash",)

    def __init__(self, *purpose: object) -> None:
        text = "\0".join(str(part) for part in purpose)
        self._hash = hashlib.blake2b(text.encode(), digest_size=8)

    def uniform(self, index: int) -> float:
        """Return a number between 0 and 1, neither included."""
        hashed = self._hash.copy()
        hashed.update(b"%d" % index)
        return ((int.from_bytes(hashed.digest(), "big") >> 11) + 0.5) * 2.0**-53

    def exponential(self, index: int, mean: float) -> float:
        """Return an exponentially distributed number."""
        return -mean * math.log(self.uniform(index))

    def normal(self, index: int, mean: float, stddev: float) -> float:
        """Return a normally distributed number."""
        return mean + stddev * _STANDARD.inv_cdf(self.uniform(index))

    def lognormal(self, index: int, median: float, sigma: float) -> float:
        """Return a log-normally distributed number."""
        return median * math.exp(sigma * _STANDARD.inv_cdf(self.uniform(index)))

    def choice(self, index: int, weights: Sequence[float]) -> int:
        """Return which of several, by their weights."""
        left = self.uniform(index) * sum(weights)
        for position, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return position
        return max(position for position, weight in enumerate(weights) if weight)
