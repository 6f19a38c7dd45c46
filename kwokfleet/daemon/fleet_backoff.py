"""Backoff after failures, per Fleet, so that a failing Fleet delays no other."""

from dataclasses import dataclass

from kwokfleet.kube import backoff

FIRST_S, LONGEST_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class BackoffState:
    """Backoff after a number of consecutive failures."""

    failures: int
    until: float
    """On the monotonic clock."""
    why: str = ""

    def is_over(self, now: float) -> bool:
        """Return whether a retry is due."""
        return now >= self.until


def after(before: BackoffState | None, now: float, why: str) -> BackoffState:
    """Return the backoff after one more failure: twice as long as before."""
    failures = (before.failures if before else 0) + 1
    return BackoffState(failures, now + backoff.pause_s(failures, FIRST_S, LONGEST_S), why)
