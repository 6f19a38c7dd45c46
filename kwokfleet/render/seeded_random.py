"""Repeatable random numbers: one for each purpose and index, the same on every machine.

Each number is a hash of its purpose (seed, fleet, wave, run, variable) and index, not the next one of a
stream. A new variable or object changes no other number, and object 7,000 costs as much as object 0.
"""

import hashlib
from collections.abc import Sequence

from kwokfleet.render.distributions import Distribution


class SeededRandom:
    """Random numbers for one purpose, by index."""

    __slots__ = ("_hash",)

    def __init__(self, *purpose: object) -> None:
        text = "\0".join(str(part) for part in purpose)
        self._hash = hashlib.blake2b(text.encode(), digest_size=8)

    def uniform(self, index: int) -> float:
        """Return a number between 0 and 1, both excluded."""
        hashed = self._hash.copy()
        hashed.update(b"%d" % index)
        return ((int.from_bytes(hashed.digest(), "big") >> 11) + 0.5) * 2.0**-53

    def draw(self, index: int, distribution: Distribution) -> float:
        """Return a value of a distribution."""
        return distribution.sample(self.uniform(index))

    def choice(self, index: int, weights: Sequence[float]) -> int:
        """Return a position, chosen by weight."""
        remaining = self.uniform(index) * sum(weights)
        for position, weight in enumerate(weights):
            remaining -= weight
            if remaining < 0:
                return position
        return max(position for position, weight in enumerate(weights) if weight)
