"""Debouncing: react to a burst of events once, after a quiet period, but not later than a maximum delay.

An editor saves in several steps and git writes many files, so the first event comes too early. Events may
never end, so the delay has a maximum. Times are arguments, of any monotonic clock.
"""

from dataclasses import dataclass

QUIET_S = 0.1
MAX_S = 1.0


@dataclass(slots=True)
class Debouncer:
    """Combines a burst of events."""

    quiet_s: float = QUIET_S
    """Delay after the last event."""
    max_s: float = MAX_S
    """Maximum delay after the first event."""
    _first: float | None = None
    _last: float = 0.0

    def event(self, now: float) -> None:
        """Record an event."""
        if self._first is None:
            self._first = now
        self._last = now

    @property
    def due(self) -> float | None:
        """Time to react, if no further event comes; None without an event."""
        return None if self._first is None else min(self._last + self.quiet_s, self._first + self.max_s)

    def fires(self, now: float) -> bool:
        """Return whether the time to react has come; if so, reset."""
        if self.due is None or now < self.due:
            return False
        self._first = None
        return True
