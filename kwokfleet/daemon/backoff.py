"""How long something that failed is left alone: each Fleet by itself, so that a bad one delays no other."""

from dataclasses import dataclass

from kwokfleet.kube import backoff

FIRST_S, LONGEST_S = 1.0, 300.0


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
    return BackoffState(failures, now + backoff.pause_s(failures, FIRST_S, LONGEST_S), why)
