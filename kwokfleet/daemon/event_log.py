"""What a daemon has to tell: a numbered list of what has changed, and the passes it has made."""

import threading
from collections import deque
from datetime import UTC, datetime

import structlog

from kwokfleet.daemon import snapshot
from kwokfleet.daemon.snapshot import Event

log = structlog.get_logger()

MOST_EVENTS = 1000


class Journal:
    """Remembers the last events; who wants to know of the next one can wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._passes: tuple[snapshot.Pass, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the last event."""
        return self._number

    @property
    def passes(self) -> tuple[snapshot.Pass, ...]:
        """The last passes, newest last."""
        return self._passes

    def tell(self, kind: str, message: str, *, fleet: str = "", warning: bool = False, **keys: object) -> None:
        """Note that something has changed, and log it."""
        with self._changed:
            self._number += 1
            self._events.append(Event(self._number, datetime.now(UTC), kind, fleet, message, keys))
            self._changed.notify_all()
        say = log.warning if warning else log.info
        about = {"fleet": fleet} if fleet else {}
        say(kind, message=message, **about, **keys)

    def passed(self, done: snapshot.Pass) -> None:
        """Note a pass that is over."""
        self._passes = snapshot.remembered(self._passes, done)

    def after(self, number: int, timeout_s: float) -> list[Event]:
        """Return the events after a number; if there are none, wait for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number, timeout_s)
            return [each for each in self._events if each.number > number]
