"""uvicorn in a thread: bound before it starts, stopped within a deadline, logging through structlog.

uvicorn waits forever for the head of a request and for a client to read its response. Both have a deadline
here, because the number of connections is limited.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kwokfleet import errors

log = structlog.get_logger()

MAX_CONNECTIONS = 256
MAX_HEAD_BYTES = 64 * 1024
"""Limit of an incomplete head; the middleware has a lower one for complete heads."""
_START_S = 10.0
_BACKLOG = 128
_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionDeadlines:
    """Time limits of a connection."""

    head_s: float = 10.0
    """For the head of a request."""
    stall_s: float = 20.0
    """Without reading any of the response."""
    stop_s: int = 3
    """For open responses when the server stops."""


class UvicornThread:
    """Serves an ASGI application until it is stopped."""

    def __init__(self, app: Any, host: str, port: int, deadlines: ConnectionDeadlines) -> None:  # noqa: ANN401  # any ASGI app
        self._socket = _bind(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """Address with the real port."""
        self._stop_s = deadlines.stop_s
        config = _Config(
            app, http=_Protocol, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False,
            proxy_headers=False, server_header=False, limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES, timeout_graceful_shutdown=deadlines.stop_s,
        )  # fmt: skip
        config.deadlines = deadlines
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def url(self) -> str:
        """URL of the server."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Start; return when requests are served."""
        _forward_uvicorn_logs()
        self._thread.start()
        if not self._server.up.wait(_START_S) or not self._thread.is_alive():
            raise errors.HostError("the HTTP server did not start", hint="see the log")
        log.info("http_listening", url=self.url)

    def stop(self) -> None:
        """Stop accepting, let responses end, abort those that do not."""
        self._server.end()
        if self._thread.ident is None:
            self._socket.close()
            return
        self._thread.join(self._stop_s * 2 + 1)
        if self._thread.is_alive():
            log.warning("http_not_stopped")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._server.up.set()
            self._socket.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


class _Server(uvicorn.Server):
    """uvicorn server that signals its start and sleeps until it is stopped; the original polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.up.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK_S)

    def end(self) -> None:
        """Stop, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._ending.set)


class _Config(uvicorn.Config):
    """Configuration with the deadlines of connections."""

    deadlines = ConnectionDeadlines()


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; the address is resolved here, not in the thread."""
    hint = "choose another address with --listen; port 0 selects a free port"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:  # no such address, port or name
        raise errors.HostError(f"cannot listen on {host}:{port}: {error}", hint=hint) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise errors.HostError(f"cannot listen on {host}:{port}: {error.strerror}", hint=hint) from error
    return listener


class _Protocol(H11Protocol):
    """uvicorn's protocol with deadlines for heads and stalled responses."""

    config: _Config
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the parent
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._stall):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        if self._head:
            self._head.cancel()
        self._head = self.loop.call_later(self.config.deadlines.head_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        # Also true of a body that continues after its response. Open responses have their own deadlines.
        if getattr(self.cycle, "response_complete", True):
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.config.deadlines.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall:
            self._stall.cancel()


class _Forward(logging.Handler):
    """Forwards uvicorn's logs; only exceptions of our code are errors, all else is caused by clients."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        emit = log.error if kind and kind != "CancelledError" else log.debug
        emit("uvicorn_log", message=record.getMessage().strip(), error=kind)


def _forward_uvicorn_logs() -> None:
    logger = logging.getLogger("uvicorn")
    logger.propagate = False
    if not any(isinstance(handler, _Forward) for handler in logger.handlers):
        logger.addHandler(_Forward())
