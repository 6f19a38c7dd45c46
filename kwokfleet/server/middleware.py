"""What stands before every request, whatever it asks for: its name, how many at once, and what no answer may lack.

Nothing of a request but its method, path and answer is logged, and no exception with the values it
met: those would be headers, and a header may hold the token.
"""

import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

import orjson
import structlog

from kwokfleet.server import access

log = structlog.get_logger()

MOST_AT_ONCE = 64
PROBES = ("/healthz", "/readyz")
"""Never sent away because others are many: who asks here would end a daemon that is only busy."""
MAX_HEAD_BYTES = 16 * 1024
UNKNOWN_ROUTE = "other"
_LOGGED_PATH = 200
"""Characters of a path that are logged: it may be anything."""
_ALWAYS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Served = Callable[[str, str, int], None]
"""Is told the route's pattern, the method and the status of each answer."""


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: App, *, loopback: bool, served: Served, most_at_once: int = MOST_AT_ONCE) -> None:
        self._app, self._loopback, self._served, self._most = app, loopback, served, most_at_once
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send)
        began = time.monotonic()
        try:
            await self._answer(scope, exchange)
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            self._served(route, scope["method"], exchange.status)
            log.debug(
                "http_answered",
                method=scope["method"],
                path=scope["path"][:_LOGGED_PATH],
                status=exchange.status,
                took_s=round(time.monotonic() - began, 4),
            )

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        if self._loopback and not access.is_loopback_name(exchange.header(b"host")):
            hint = "ask for localhost or 127.0.0.1: this server is bound to loopback and answers to no other name"
            await exchange.refuse(HTTPStatus.FORBIDDEN, "the Host header does not name this machine", hint)
            return
        if exchange.head_bytes > MAX_HEAD_BYTES:
            what = f"the headers are longer than {MAX_HEAD_BYTES} bytes"
            await exchange.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, what, "send fewer")
            return
        if self._inside >= self._most and scope["path"] not in PROBES:
            await exchange.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", "try again in a second")
            return
        self._inside += 1
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001  # whatever it is, the others must be served
            said = "".join(traceback.format_tb(error.__traceback__))
            log.error("http_failed", path=scope["path"][:_LOGGED_PATH], error=type(error).__name__, trace=said)  # noqa: TRY400  # an exception's values may be secret
            if not exchange.status:
                await exchange.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in kwokfleet", "see the daemon's log")
        finally:
            self._inside -= 1


class _Exchange:
    """One request and its answer: what has been read of the one, what has been sent of the other."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive, self._send = receive, send
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
        """Send a part of the answer, the first one with what no answer may lack."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            given += [each for each in _ALWAYS if each[0] not in names]
            if self._unread:
                given.append((b"connection", b"close"))  # else the rest of the body would have to be waited for
            message = {**message, "headers": given}
        await self._send(message)

    async def refuse(self, status: HTTPStatus, what: str, hint: str) -> None:
        """Answer in the app's stead."""
        body = orjson.dumps({"error": what, "hint": hint})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        await self.send({"type": "http.response.start", "status": int(status), "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
