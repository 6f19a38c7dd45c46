"""Watch events with their arrival time, for latency measurements.

A chunk of the stream gets its time when it arrives. Its events are parsed at once or, if buffered, later and many
at a time: parsing each event on arrival costs twice the CPU.
"""

import threading
import time
from collections import deque
from typing import Protocol

from kwokfleet.kube.informer import reflector
from kwokfleet.kube.informer.reflector import WatchApi
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind

LISTED = "LISTED"
"""Event type of an object in the initial list."""


class EventHandler(Protocol):
    """Handles watch events. Times are seconds since 1970.

    Called by the thread that calls `deliver`, and by the watch thread during a list and at the end of a stream.
    """

    def event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Handle an event: ADDED, MODIFIED, DELETED or LISTED."""

    def list_started(self, kind: Kind) -> None:
        """Handle the start of a list."""

    def list_completed(self, kind: Kind, at: float) -> None:
        """Handle the end of a list: objects that are not in it do not exist."""

    def watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        """Handle the loss of a watch: events are missed from now on."""

    def watch_restored(self, kind: Kind, at: float) -> None:
        """Handle the end of a loss."""


class EventWatcher(reflector.Reflector):
    """Watches a kind and passes on all events."""

    def __init__(
        self, api: WatchApi, kind: Kind, selector: str, handler: EventHandler, *, buffered: bool = False
    ) -> None:
        super().__init__(api, kind, (selector, ""), threading.Event())
        self._buffered = buffered
        """Whether chunks are kept until `deliver` is called."""
        self.name = f"event-watcher-{kind.plural}"
        self._handler = handler
        self._buffer: deque[tuple[bytes, float]] = deque()
        self._parsing = threading.Lock()
        self._deliver_error: Exception | None = None
        """An error of `deliver`, raised again in the watch thread."""
        self._last_received = time.time()
        self._lost: bool | None = None
        self.settled = threading.Event()
        """Set once the objects are listed or rejected."""

    def on_chunk(self, chunk: bytes, received: float) -> None:
        """Buffer a chunk; parse the chunks of a list at once."""
        self._buffer.append((chunk, received))
        if self._listing or not self._buffered:
            self.flush()

    def flush(self) -> None:
        """Parse all buffered chunks."""
        with self._parsing:
            self._parse_buffer()

    def deliver(self) -> None:
        """Pass all buffered events to the handler."""
        if not self._parsing.acquire(blocking=False):  # the watch thread parses, and its handler may wait for us
            return
        try:
            self._parse_buffer()
        except Exception as error:  # noqa: BLE001  # raised again in the watch thread, which reconnects
            self._buffer.clear()
            self._deliver_error = error
            self.interrupt()
        finally:
            self._parsing.release()

    def _parse_buffer(self) -> None:
        if self._deliver_error is not None:
            error, self._deliver_error = self._deliver_error, None
            raise error
        while self._buffer:
            self.parse_chunk(*self._buffer.popleft())

    def on_list_start(self) -> None:
        """Pass on the start of a list."""
        self._handler.list_started(self.kind)

    def on_list_item(self, manifest: Manifest, received: float) -> None:
        """Pass on an object of the list; items of a page have no kind."""
        self._last_received = received
        complete = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **manifest}
        self._handler.event(self.kind, LISTED, complete, received)

    def on_list_end(self) -> None:
        """Pass on the end of the list."""
        self._handler.list_completed(self.kind, self._last_received)

    def on_event(self, event_type: str, manifest: Manifest, received: float) -> None:
        """Pass on an event."""
        self._handler.event(self.kind, event_type, manifest, received)

    def on_batch_end(self, received: float) -> None:
        """Record the time of the last chunk."""
        self._last_received = received

    def on_kind_missing(self) -> None:
        """Pass on an empty list, at this time."""
        self._last_received = time.time()
        super().on_kind_missing()

    def on_state(self, problem: str, *, settled: bool = True) -> None:
        """Pass on a lost or restored watch, once per change."""
        now = time.time()
        if problem and self._lost is not True:
            silent = now - self._last_received >= reflector.SILENCE_S
            self._handler.watch_lost(self.kind, self._last_received if silent else now, problem)
        elif not problem and self._lost is not False:
            self._handler.watch_restored(self.kind, now)
        self._lost = bool(problem)
        if settled:
            self.settled.set()
