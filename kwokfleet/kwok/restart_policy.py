"""Restart policy of kwok processes: the pause before the next start."""

from dataclasses import dataclass

from kwokfleet.kube import backoff

FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 30.0
REJECTED_PAUSE_S = 30.0
"""Pause after kwok rejected its configuration."""
FREE_RESTARTS = 2
"""Restarts in a row without a pause."""
STABLE_AFTER_S = 60.0
"""A process that ran longer than this starts with a new count."""


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """Counts restarts, in total and in a row."""

    restarts: int = 0
    in_a_row: int = 0

    def after(self, ran_s: float) -> "RestartRecord":
        """Return the record after one more exit."""
        return RestartRecord(self.restarts + 1, 1 if ran_s > STABLE_AFTER_S else self.in_a_row + 1)

    @property
    def pause_s(self) -> float:
        """The pause before the next start."""
        return backoff.pause_s(self.in_a_row - FREE_RESTARTS, FIRST_PAUSE_S, MAX_PAUSE_S)
