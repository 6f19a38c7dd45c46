"""Event log of a daemon: the last events, numbered, and the last passes."""

import threading
from collections import deque
from datetime import UTC, datetime

import structlog

from kwokfleet.daemon import snapshot
from kwokfleet.daemon.snapshot import Event

log = structlog.get_logger()

MAX_EVENTS = 1000


class EventLog:
    """Keeps the last events, logs each one, and lets readers wait for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._number = 0
        self._passes: tuple[snapshot.Pass, ...] = ()

    @property
    def newest(self) -> int:
        """Number of the last event."""
        return self._number

    @property
    def passes(self) -> tuple[snapshot.Pass, ...]:
        """The last passes, newest last."""
        return self._passes

    def record(self, kind: str, message: str, *, fleet: str = "", warning: bool = False, **keys: object) -> None:
        """Append an event and log it."""
        with self._changed:
            self._number += 1
            self._events.append(Event(self._number, datetime.now(UTC), kind, fleet, message, keys))
            self._changed.notify_all()
        emit = log.warning if warning else log.info
        emit(kind, message=message, **({"fleet": fleet} if fleet else {}), **keys)

    def record_pass(self, finished: snapshot.Pass) -> None:
        """Record a finished pass."""
        self._passes = snapshot.append_pass(self._passes, finished)

    def after(self, number: int, timeout_s: float) -> list[Event]:
        """Return the events after *number*; wait for one if there are none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number, timeout_s)
            return [event for event in self._events if event.number > number]
