"""Every event of some objects, with the time at which it was received: what latencies are measured by.

Nothing is kept here. Who is told must be quick: whatever comes next is received later.
"""

import threading
import time
from typing import Protocol

from kwokfleet.core.objects import Manifest
from kwokfleet.core.requests import Kind
from kwokfleet.edge.mirror import follower
from kwokfleet.edge.mirror.follower import Api

CLOSING_S = 2.0
LISTED = "LISTED"
"""The event of an object that was there when we began to look."""


class Hears(Protocol):
    """Who is told, by a thread for each kind. Times are seconds since 1970."""

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


class Witness(follower.Follower):
    """Follows a kind, and tells of everything that happens to its objects."""

    def __init__(self, api: Api, kind: Kind, selector: str, hears: Hears) -> None:
        super().__init__(api, kind, (selector, ""), threading.Event())
        self.name = f"witness-{kind.plural}"
        self._hears = hears
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
            silent = now - self._last >= follower.SILENCE_S
            self._hears.lost(self.kind, self._last if silent else now, trouble)
        elif not trouble and self._blind is not False:
            self._hears.back(self.kind, now)
        self._blind = bool(trouble)
        if settled:
            self.settled.set()
