"""Changes as server-sent events: a bounded number of clients, each of which says where it was.

A client has no queue here: it is sent what the daemon remembers after the last event it got. One that
takes nothing is cut off by the server; one that comes back too late is told that it missed something.
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
"""How long a thread waits for events at a time; a stop waits no longer for it."""
RETRY_MS = 2000
"""After how long a browser that lost its stream comes back."""
MOST_CLIENTS = 16
HEARTBEAT_S = 15.0
"""Between two signs of life: proxies end what is silent."""

Events = Callable[[int, float], list[Event]]


class Streams:
    """All clients that follow the events."""

    def __init__(self, events: Events, *, most: int = MOST_CLIENTS, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._events, self._most, self.heartbeat_s = events, most, heartbeat_s
        self._pool = thread_pool.Pool("events", most)
        self.clients = 0
        self.ending = False

    def opened(self, after: int, known: bool, life: str) -> Response | None:  # noqa: FBT001  # as http_rules.position
        """Return a stream from there on, None if there are too many."""
        if self.clients >= self._most or self.ending:
            return None
        self.clients += 1
        return _Stream(self, after, known, life)

    async def after(self, number: int) -> list[Event]:
        """Return the next events, none after a while."""
        return await self._pool.run(self._events, number, POLL_S)

    def end(self) -> None:
        """End all streams; call it before the server stops."""
        self.ending = True

    def close(self) -> None:
        """Let go of the threads; call it after the server has stopped."""
        self._pool.close()


class _Stream(Response):
    """What one client is sent, until it goes or all are to end."""

    def __init__(self, streams: Streams, after: int, known: bool, life: str) -> None:  # noqa: FBT001  # as its maker
        super().__init__(headers={"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._streams, self._after, self._known, self._life = streams, after, known, life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # as ASGI has it
        """Talk until one of both has enough."""
        tasks = [asyncio.ensure_future(self._talk(send)), asyncio.ensure_future(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.clients -= 1
            for task in tasks:
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]

    async def _talk(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _say(send, b"retry: %d\n\n" % RETRY_MS)
        if not self._known:
            await _say(send, access.missed("the daemon has started anew, and numbers begin again"))
        heard = time.monotonic()
        while not self._streams.ending:
            told = self._told(await self._streams.after(self._after))
            if not told and time.monotonic() - heard >= self._streams.heartbeat_s:
                told = b": here\n\n"
            if told:
                heard = time.monotonic()
                await _say(send, told)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _told(self, events: list[Event]) -> bytes:
        """Return events as they are sent, and remember how far that is."""
        if not events:
            return b""
        lost = events[0].number - self._after - 1
        self._after = events[-1].number
        gap = access.missed(f"{lost} events are no longer remembered") if lost > 0 else b""
        return gap + b"".join(access.sent(each, self._life) for each in events)


async def _say(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
