"""Exponential backoff: the pause doubles after each failure in a row, up to a maximum."""

from dataclasses import dataclass

MAX_RETRY_AFTER_S = 30.0
_MAX_DOUBLINGS = 32


def pause_s(failures: int, first_s: float, max_s: float) -> float:
    """Return the pause after a number of failures in a row; no failure, no pause."""
    return min(first_s * float(1 << min(failures - 1, _MAX_DOUBLINGS)), max_s) if failures > 0 else 0.0


def retry_after_s(header: str) -> float:
    """Return the pause that a Retry-After header asks for, up to a maximum; 0 for a date or no header."""
    return min(float(header), MAX_RETRY_AFTER_S) if header.isascii() and header.isdigit() else 0.0


@dataclass(slots=True)
class Backoff:
    """Counts failures in a row."""

    first_s: float
    max_s: float
    failures: int = 0

    def next_s(self) -> float:
        """Count a failure and return the pause after it."""
        self.failures += 1
        return pause_s(self.failures, self.first_s, self.max_s)

    def reset(self) -> None:
        """Start again with the first pause."""
        self.failures = 0
