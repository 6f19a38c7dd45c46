"""How long something that failed is left alone: each Fleet by itself, so that a bad one delays no other."""

from dataclasses import dataclass

FIRST_S, LONGEST_S = 1.0, 300.0
_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class BackoffState:
    """A pause after some failures in a row."""

    failures: int
    until: float
    """On the clock that never steps."""
    why: str = ""

    def is_over(self, now: float) -> bool:
        """Return whether it may be tried again."""
        return now >= self.until


def after(before: BackoffState | None, now: float, why: str) -> BackoffState:
    """Return the pause after one more failure: twice as long as the one before."""
    failures = (before.failures if before else 0) + 1
    pause = min(FIRST_S * float(1 << min(failures - 1, _MOST_DOUBLINGS)), LONGEST_S)
    return BackoffState(failures, now + pause, why)
