"""When to act on a storm of events: once it is quiet, and never much later than it began.

An editor saves in several steps, git writes many files: who acts on the first event sees half of
it. Who waits for silence may wait for ever. Times are arguments, of any clock that only goes on.
"""

from dataclasses import dataclass

QUIET_S = 0.1
MAX_S = 1.0


@dataclass(slots=True)
class Debouncer:
    """Turns many events into few."""

    quiet_s: float = QUIET_S
    """It acts this long after the last event,"""
    max_s: float = MAX_S
    """and at the latest this long after the first."""
    _first: float | None = None
    _last: float = 0.0

    def event(self, now: float) -> None:
        """Note that something happened."""
        if self._first is None:
            self._first = now
        self._last = now

    @property
    def due(self) -> float | None:
        """The moment to act, as far as is known now; None if nothing happened."""
        return None if self._first is None else min(self._last + self.quiet_s, self._first + self.max_s)

    def fires(self, now: float) -> bool:
        """Return whether it is time to act; if so, all events until now are done with."""
        if self.due is None or now < self.due:
            return False
        self._first = None
        return True
