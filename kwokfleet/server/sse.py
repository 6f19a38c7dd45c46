"""The event log as server-sent events, for a bounded number of clients.

There is no queue per client: each receives the events that the daemon keeps after its position. A client that
does not read is disconnected; one that reconnects too late gets a message that it missed events.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kwokfleet.daemon.snapshot import Event
from kwokfleet.server import access, thread_pool

POLL_S = 0.5
"""Wait of a thread for events; a stop takes no longer."""
RETRY_MS = 2000
"""Reconnection delay of browsers."""
MAX_CLIENTS = 16
HEARTBEAT_S = 15.0
"""Interval of keep-alive comments: proxies close silent connections."""

Events = Callable[[int, float], list[Event]]


class Streams:
    """All clients that follow the event log."""

    def __init__(self, events: Events, *, limit: int = MAX_CLIENTS, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._events, self._limit, self.heartbeat_s = events, limit, heartbeat_s
        self._pool = thread_pool.ThreadPool("events", limit)
        self.clients = 0
        self.ending = False

    def open_stream(self, after: int, known: bool, start_id: str) -> Response | None:  # noqa: FBT001  # as access.position
        """Return a stream from a position on, None if there are too many clients."""
        if self.clients >= self._limit or self.ending:
            return None
        self.clients += 1
        return _Stream(self, after, known, start_id)

    async def after(self, number: int) -> list[Event]:
        """Return the next events; empty after a timeout."""
        return await self._pool.run(self._events, number, POLL_S)

    def end(self) -> None:
        """End all streams; call it before the server stops."""
        self.ending = True

    def close(self) -> None:
        """Close the threads; call it after the server has stopped."""
        self._pool.close()


class _Stream(Response):
    """Stream of one client, until it disconnects or the server stops."""

    def __init__(self, streams: Streams, after: int, known: bool, start_id: str) -> None:  # noqa: FBT001  # as Streams.open_stream
        super().__init__(headers={"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._streams, self._after, self._known, self._start_id = streams, after, known, start_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI signature
        """Send until the client disconnects or the server stops."""
        tasks = [asyncio.ensure_future(self._send_events(send)), asyncio.ensure_future(_disconnected(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.clients -= 1
            for task in tasks:
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _write(send, b"retry: %d\n\n" % RETRY_MS)
        if not self._known:
            await _write(send, access.missed_message("the daemon was restarted: event numbers start again"))
        written_at = time.monotonic()
        while not self._streams.ending:
            chunk = self._encode(await self._streams.after(self._after))
            if not chunk and time.monotonic() - written_at >= self._streams.heartbeat_s:
                chunk = b": keep-alive\n\n"
            if chunk:
                written_at = time.monotonic()
                await _write(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _encode(self, events: list[Event]) -> bytes:
        """Return events in wire format, and advance the position."""
        if not events:
            return b""
        lost = events[0].number - self._after - 1
        self._after = events[-1].number
        gap = access.missed_message(f"{lost} events are no longer kept") if lost > 0 else b""
        return gap + b"".join(access.event_message(event, self._start_id) for event in events)


async def _write(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
