"""Event log of a daemon: the last events, numbered, and the last passes."""

import threading
from collections import deque
from datetime import UTC, datetime

import structlog

from kwokfleet.daemon.snapshot import Event, Pass

log = structlog.get_logger()

MAX_EVENTS, MAX_PASSES = 1000, 10


class EventLog:
    """Keeps the last events, logs each one, and lets readers wait for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.newest = 0
        """Number of the last event."""
        self.passes: tuple[Pass, ...] = ()
        """The last passes, newest last."""

    def record(self, kind: str, message: str, *, fleet: str = "", warning: bool = False, **keys: object) -> None:
        """Append an event and log it."""
        with self._changed:
            self.newest += 1
            self._events.append(Event(self.newest, datetime.now(UTC), kind, fleet, message, keys))
            self._changed.notify_all()
        emit = log.warning if warning else log.info
        emit(kind, message=message, **({"fleet": fleet} if fleet else {}), **keys)

    def record_pass(self, finished: Pass) -> None:
        """Record a finished pass."""
        self.passes = (*self.passes, finished)[-MAX_PASSES:]

    def after(self, number: int, timeout_s: float) -> list[Event]:
        """Return the events after *number*; wait for one if there are none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self.newest > number, timeout_s)
            return [event for event in self._events if event.number > number]
