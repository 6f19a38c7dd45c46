"""Requests and answers over connections that stay open, with as little CPU as Python needs for it.

urllib3 opens the connections: TLS, certificates, names. Sending a request and reading its answer by it and http.client
takes 0.42 ms of CPU, most of it for what an API server's answers never are (compressed, redirected, mail); here it is
0.14. On one machine the API server needs that time, and a fleet is thousands of requests.
"""

import ssl
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.wait import wait_for_read

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 16
MAX_HEADERS = 200
_NO_BODY = (204, 304)

RawResponse = tuple[int, bytes, dict[str, str]]
"""Status, body and headers, whose names are written like This-One."""


class BrokenConnectionError(OSError):
    """The other side has closed the connection, or does not speak HTTP."""


class ConnectionPool:
    """Connections to one server; any number of threads may use it at once."""

    def __init__(self, pool: HTTPConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[_Line] = deque()
        self._closed = False
        weakref.finalize(self, _close, self._idle)  # as urllib3's pools do: nobody has to end what nobody uses

    def exchange(
        self, message: bytes, connect_s: float, answer_s: float, ask: Callable[[], None] | None
    ) -> RawResponse:
        """Send a request and return the answer; *ask* is called before each piece, and raises if it may not be sent.

        Between a decision to write and the write lie locks, handshakes and other threads' turns. A process that
        is stopped there and goes on later must not write by what it knew before.
        """
        line = self._reused()
        if line is not None and message.startswith(b"GET "):
            with suppress(
                BrokenConnectionError, ConnectionError, ssl.SSLEOFError
            ):  # closed by the server as we began: ask again
                return self._exchange(line, message, answer_s, ask)
            line = None
        return self._exchange(line or _Line(self._pool, connect_s), message, answer_s, ask)

    def _exchange(self, line: "_Line", message: bytes, answer_s: float, ask: Callable[[], None] | None) -> RawResponse:
        try:
            line.socket.settimeout(answer_s)
            for start in range(0, len(message), CHUNK):
                if ask is not None:
                    ask()
                line.socket.sendall(message[start : start + CHUNK])
            status, headers = _head(line.file)
            body = _body(line.file, status, headers)
        except ValueError as error:  # a number that is none
            line.close()
            raise BrokenConnectionError("it does not speak HTTP") from error
        except BaseException:
            line.close()
            raise
        if headers.get("Connection", "").lower() == "close" or not _is_bounded(status, headers):
            line.close()
        else:
            self._idle.append(line)
            if self._closed:
                self.close()
        return status, body, headers

    def _reused(self) -> "_Line | None":
        """Return a connection that is still open; what has been said on it unasked is its end."""
        while (line := self._taken()) is not None and wait_for_read(line.socket, timeout=0):
            line.close()
        return line

    def _taken(self) -> "_Line | None":
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close all connections, those in use when they are not any more."""
        self._closed = True
        _close(self._idle)


def _close(lines: "deque[_Line]") -> None:
    with suppress(IndexError):
        while True:
            lines.pop().close()


_TLS_SETTINGS = (
    "cert_file", "key_file", "key_password", "cert_reqs", "ca_certs", "ca_cert_dir", "assert_hostname",
    "assert_fingerprint", "ssl_version", "ssl_minimum_version", "ssl_maximum_version",
)  # fmt: skip


def _new_connection(pool: HTTPConnectionPool, connect_s: float) -> Any:  # noqa: ANN401  # urllib3's type has no socket
    """Return a connection with the configuration of a pool; it is not connected yet."""
    tls = {name: getattr(pool, name) for name in _TLS_SETTINGS} if isinstance(pool, HTTPSConnectionPool) else {}
    return pool.ConnectionCls(pool.host, pool.port, timeout=connect_s, **tls, **pool.conn_kw)


class _Line:
    """One connection."""

    def __init__(self, pool: HTTPConnectionPool, connect_s: float) -> None:
        self._connection = _new_connection(pool, connect_s)
        try:
            self._connection.connect()
        except BaseException:
            self._connection.close()
            raise
        self.socket = self._connection.sock
        self.file: BinaryIO = self.socket.makefile("rb", CHUNK)

    def close(self) -> None:
        self.file.close()
        self._connection.close()


def _head(file: BinaryIO) -> tuple[int, dict[str, str]]:
    """Read the beginning of an answer; what announces another one is passed over."""
    while True:
        first = file.readline(MAX_LINE_BYTES)
        if not first:
            raise BrokenConnectionError("it was closed without an answer")
        if not (first.startswith(b"HTTP/1.") and first[9:12].isdigit()):
            raise BrokenConnectionError(f"it does not speak HTTP: {first[:40]!r}")
        headers: dict[str, str] = {}
        for _ in range(MAX_HEADERS):
            line = file.readline(MAX_LINE_BYTES)
            if line in (b"\r\n", b"\n"):
                break
            name, colon, value = line.partition(b":")
            if not colon:
                raise BrokenConnectionError("its answer broke off")
            headers[name.decode("latin-1").title()] = value.strip().decode("latin-1")
        else:
            raise BrokenConnectionError(f"more than {MAX_HEADERS} headers")
        if (status := int(first[9:12])) >= 200:  # noqa: PLR2004  # before it, there is more to come
            return status, headers


def _is_bounded(status: int, headers: dict[str, str]) -> bool:
    """Return whether an answer says where it ends."""
    return status in _NO_BODY or "Content-Length" in headers or "Transfer-Encoding" in headers


def _body(file: BinaryIO, status: int, headers: dict[str, str]) -> bytes:
    if status in _NO_BODY:
        return b""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        return b"".join(iter(lambda: _piece(file), b""))
    if "Content-Length" in headers:
        return _exactly(file, int(headers["Content-Length"]))
    return file.read()


def _piece(file: BinaryIO) -> bytes:
    """Read one piece of an answer; the last one is empty."""
    size = int(file.readline(MAX_LINE_BYTES).partition(b";")[0] or b"0", 16)
    piece = _exactly(file, size + 2)
    return piece[:-2]


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise BrokenConnectionError(f"its answer broke off: {size - len(found)} bytes are missing")
    return found


def error_cause(error: BaseException) -> str:
    """Return what is behind an error of the HTTP library, in a few words."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error.__cause__ or error
    text = " ".join(str(inner).split())
    return text.rpartition(": ")[2] if "[Errno" in text else f"{type(error).__name__}: {text}"[:200]
