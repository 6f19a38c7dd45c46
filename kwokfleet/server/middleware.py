"""Middleware around all routes: Host header check, concurrency limit, security headers, logging.

Only method, path and status of a request are logged, and exceptions without their values: a value may be a
header with the token.
"""

import time
import traceback
from collections.abc import Callable
from http import HTTPStatus

import structlog
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kwokfleet.server import access

log = structlog.get_logger()

MAX_CONCURRENT = 64
PROBES = ("/healthz", "/readyz")
"""Exempt from the concurrency limit: a failed probe restarts a daemon that is only busy."""
MAX_HEAD_BYTES = 16 * 1024
UNKNOWN_ROUTE = "other"
_LOGGED_PATH = 200
"""Characters of a path that are logged."""
_SECURITY_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

Served = Callable[[str, str, int], None]
"""Receives the route pattern, the method and the status of each response."""


class Middleware:
    """ASGI application that wraps another one."""

    def __init__(self, app: ASGIApp, *, loopback: bool, served: Served, max_concurrent: int = MAX_CONCURRENT) -> None:
        self._app, self._loopback, self._served, self._max_concurrent = app, loopback, served, max_concurrent
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send)
        started = time.monotonic()
        try:
            await self._answer(scope, exchange)
        finally:
            method, status, took_s = scope["method"], exchange.status, round(time.monotonic() - started, 4)
            self._served(getattr(scope.get("route"), "path", UNKNOWN_ROUTE), method, status)
            log.debug("http_answered", method=method, path=scope["path"][:_LOGGED_PATH], status=status, took_s=took_s)

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        if self._loopback and not access.is_loopback_name(exchange.header(b"host")):
            hint = "use localhost or 127.0.0.1: this server listens on loopback only"
            await exchange.refuse(HTTPStatus.FORBIDDEN, "the Host header does not name this machine", hint)
            return
        if exchange.head_bytes > MAX_HEAD_BYTES:
            what = f"the headers are longer than {MAX_HEAD_BYTES} bytes"
            await exchange.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, what, "send fewer")
            return
        if self._active >= self._max_concurrent and scope["path"] not in PROBES:
            await exchange.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", "try again in a second")
            return
        self._active += 1
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001  # other requests must be served
            trace = "".join(traceback.format_tb(error.__traceback__))
            log.error("http_failed", path=scope["path"][:_LOGGED_PATH], error=type(error).__name__, trace=trace)  # noqa: TRY400  # the values of an exception may be secret
            if not exchange.status:
                await exchange.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in kwokfleet", "see the daemon's log")
        finally:
            self._active -= 1


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._scope, self._receive, self._send = scope, receive, send
        self._unread = b"transfer-encoding" in self._headers or self.header(b"content-length") not in ("", "0")
        self.head_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
        self.status = 0

    def header(self, name: bytes) -> str:
        """Return a header, empty if there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    async def receive(self) -> Message:
        """Receive the next part of the body."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response; the first one with the security headers."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            headers += [header for header in _SECURITY_HEADERS if header[0] not in names]
            if self._unread:
                headers.append((b"connection", b"close"))  # without waiting for the rest of the body
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, status: HTTPStatus, what: str, hint: str) -> None:
        """Send an error instead of the application's response."""
        headers = {"retry-after": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
        response = JSONResponse({"error": what, "hint": hint}, status, headers)
        await response(self._scope, self.receive, self.send)
