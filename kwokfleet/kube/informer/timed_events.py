"""Every event of some objects, with the time at which it was received: what latencies are measured by.

A piece of the stream is given its time when it arrives. What is in it is read at once or, for who gathers, when
somebody asks for it, much at a time: an event read alone, whenever it comes, takes twice as long as one among others.
"""

import threading
import time
from collections import deque
from typing import Protocol

from kwokfleet.kube.informer import reflector
from kwokfleet.kube.informer.reflector import WatchApi
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind

CLOSING_S = 2.0
LISTED = "LISTED"
"""The event of an object that was there when we began to look."""


class EventHandler(Protocol):
    """Who is told; times are seconds since 1970.

    By whoever asks for what has come, and by a stream's own thread while a list is read and when the stream ends.
    """

    def event(self, kind: Kind, what: str, thing: Manifest, received: float) -> None:
        """Take an event: ADDED, MODIFIED, DELETED, or LISTED."""

    def listing(self, kind: Kind) -> None:
        """Take note that a list begins."""

    def listed(self, kind: Kind, at: float) -> None:
        """Take note that the list is complete: what was not in it is not there."""

    def lost(self, kind: Kind, at: float, why: str) -> None:
        """Take note that nobody sees what happens from now on."""

    def back(self, kind: Kind, at: float) -> None:
        """Take note that it is seen again."""


class EventWatcher(reflector.Reflector):
    """Follows a kind, and tells of everything that happens to its objects."""

    def __init__(self, api: WatchApi, kind: Kind, selector: str, hears: EventHandler, *, gathers: bool = False) -> None:
        super().__init__(api, kind, (selector, ""), threading.Event())
        self._gathers = gathers
        """Whether it keeps what comes until it is asked for it."""
        self.name = f"witness-{kind.plural}"
        self._hears = hears
        self._gathered: deque[tuple[bytes, float]] = deque()
        self._reading = threading.Lock()
        self._trouble: Exception | None = None
        """What was met while somebody else read."""
        self._last = time.time()
        """When something was last received."""
        self._blind: bool | None = None
        self.settled = threading.Event()
        """Set once all is known, or was refused: nobody need wait for it."""

    def close(self) -> None:
        """Stop, and close the connection."""
        self._stopping.set()
        self.interrupt()
        self.join(CLOSING_S)

    def came(self, piece: bytes, received: float) -> None:
        """Keep a piece until it is asked for; what belongs to a list is read at once."""
        self._gathered.append((piece, received))
        if self._listing or not self._gathers:
            self.settle()

    def settle(self) -> None:
        """Read what has come."""
        with self._reading:
            self._read()

    def tell(self) -> None:
        """Tell of what has come since; for whoever reckons with it."""
        if not self._reading.acquire(blocking=False):  # it is being read, and whoever does so may wait for us
            return
        try:
            self._read()
        except Exception as error:  # noqa: BLE001  # for the thread of the stream, which knows what to do
            self._gathered.clear()
            self._trouble = error
            self.interrupt()
        finally:
            self._reading.release()

    def _read(self) -> None:
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        while self._gathered:
            self.take(*self._gathered.popleft())

    def listing(self) -> None:
        """Tell that a list begins."""
        self._hears.listing(self.kind)

    def item(self, thing: Manifest, received: float) -> None:
        """Tell of an object of the list."""
        self._last = received
        named = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **thing}  # a page leaves that out
        self._hears.event(self.kind, LISTED, named, received)

    def listed(self) -> None:
        """Tell that the list is complete."""
        self._hears.listed(self.kind, self._last)

    def event(self, kind: str, thing: Manifest, received: float) -> None:
        """Tell of an event."""
        self._hears.event(self.kind, kind, thing, received)

    def batched(self, received: float) -> None:
        """Remember the last sign of life."""
        self._last = received

    def missing(self) -> None:
        """Tell that there is nothing: without its definition a kind has no objects."""
        self._hears.listing(self.kind)
        self._hears.listed(self.kind, time.time())

    def say(self, trouble: str, *, settled: bool = True) -> None:
        """Tell of a connection that is lost, or is back; what is told twice is told once."""
        now = time.time()
        if trouble and self._blind is not True:
            silent = now - self._last >= reflector.SILENCE_S
            self._hears.lost(self.kind, self._last if silent else now, trouble)
        elif not trouble and self._blind is not False:
            self._hears.back(self.kind, now)
        self._blind = bool(trouble)
        if settled:
            self.settled.set()
