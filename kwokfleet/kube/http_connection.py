"""HTTP/1.1 over persistent connections, with little CPU.

urllib3 opens the connections: TLS, certificates, names. A request by urllib3 and http.client needs 0.42 ms of CPU,
most of it for features that an API server does not use (compression, redirects, MIME). This module needs 0.14 ms.
See docs/decisions/0001.
"""

import ssl
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.wait import wait_for_read

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
MAX_HEADERS = 200
_NO_BODY = (204, 304)
_TLS_SETTINGS = (
    "cert_file", "key_file", "key_password", "cert_reqs", "ca_certs", "ca_cert_dir", "assert_hostname",
    "assert_fingerprint", "ssl_version", "ssl_minimum_version", "ssl_maximum_version",
)  # fmt: skip

RawResponse = tuple[int, bytes, dict[str, str]]
"""Status, body and headers; header names are in Title-Case."""


class BrokenConnectionError(OSError):
    """The server closed the connection, or does not speak HTTP."""


class ConnectionPool:
    """Persistent connections to one server. Thread-safe."""

    def __init__(self, pool: HTTPConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[_Connection] = deque()
        self._closed = False
        weakref.finalize(self, _close_all, self._idle)  # like urllib3's pools: close() is optional

    def exchange(
        self, message: bytes, connect_s: float, response_s: float, before_send: Callable[[], None] | None
    ) -> RawResponse:
        """Send a request and return the response; *before_send* is called before each part, and raises to prevent it.

        Locks, handshakes and other threads may delay a write after the decision to write. A process that was
        suspended there must not write with outdated knowledge.
        """
        connection = self._take_open()
        if connection is not None and message.startswith(b"GET "):
            with suppress(BrokenConnectionError, ConnectionError, ssl.SSLEOFError):  # just closed by the server: retry
                return self._exchange(connection, message, response_s, before_send)
            connection = None
        return self._exchange(connection or _Connection(self._pool, connect_s), message, response_s, before_send)

    def _exchange(
        self, connection: "_Connection", message: bytes, response_s: float, before_send: Callable[[], None] | None
    ) -> RawResponse:
        try:
            connection.socket.settimeout(response_s)
            for start in range(0, len(message), CHUNK_BYTES):
                if before_send is not None:
                    before_send()
                connection.socket.sendall(message[start : start + CHUNK_BYTES])
            status, headers = _read_head(connection.file)
            body = _read_body(connection.file, status, headers)
        except ValueError as error:  # an invalid number
            connection.close()
            raise BrokenConnectionError("the server does not speak HTTP") from error
        except BaseException:
            connection.close()
            raise
        if headers.get("Connection", "").lower() == "close" or not _has_end(status, headers):
            connection.close()
        else:
            self._idle.append(connection)
            if self._closed:
                self.close()
        return status, body, headers

    def _take_open(self) -> "_Connection | None":
        """Take an idle connection that is open; a readable one was closed by the server."""
        with suppress(IndexError):
            while wait_for_read((connection := self._idle.pop()).socket, timeout=0):
                connection.close()
            return connection
        return None

    def close(self) -> None:
        """Close all idle connections; connections in use are closed after their response."""
        self._closed = True
        _close_all(self._idle)


def _close_all(connections: "deque[_Connection]") -> None:
    with suppress(IndexError):
        while True:
            connections.pop().close()


class _Connection:
    """One connection."""

    def __init__(self, pool: HTTPConnectionPool, connect_s: float) -> None:
        self._connection = _new_connection(pool, connect_s)
        try:
            self._connection.connect()
        except BaseException:
            self._connection.close()
            raise
        self.socket = self._connection.sock
        self.file: BinaryIO = self.socket.makefile("rb", CHUNK_BYTES)

    def close(self) -> None:
        self.file.close()
        self._connection.close()


def _new_connection(pool: HTTPConnectionPool, connect_s: float) -> Any:  # noqa: ANN401  # urllib3's type has no socket
    """Return a connection with the configuration of a pool; it is not connected yet."""
    tls = {name: getattr(pool, name) for name in _TLS_SETTINGS} if isinstance(pool, HTTPSConnectionPool) else {}
    return pool.ConnectionCls(pool.host, pool.port, timeout=connect_s, **tls, **pool.conn_kw)


def _read_head(file: BinaryIO) -> tuple[int, dict[str, str]]:
    """Read status and headers; informational responses (1xx) are skipped."""
    while True:
        status_line = file.readline(MAX_LINE_BYTES)
        if not status_line:
            raise BrokenConnectionError("the server closed the connection without a response")
        if not (status_line.startswith(b"HTTP/1.") and status_line[9:12].isdigit()):
            raise BrokenConnectionError(f"the server does not speak HTTP: {status_line[:40]!r}")
        headers: dict[str, str] = {}
        for _ in range(MAX_HEADERS):
            line = file.readline(MAX_LINE_BYTES)
            if line in (b"\r\n", b"\n"):
                break
            name, colon, value = line.partition(b":")
            if not colon:
                raise BrokenConnectionError("the response is incomplete: the headers do not end")
            headers[name.decode("latin-1").title()] = value.strip().decode("latin-1")
        else:
            raise BrokenConnectionError(f"the response has more than {MAX_HEADERS} headers")
        if (status := int(status_line[9:12])) >= 200:  # noqa: PLR2004  # 1xx is informational
            return status, headers


def _has_end(status: int, headers: dict[str, str]) -> bool:
    """Return whether a response marks its end, so that the connection can be used again."""
    return status in _NO_BODY or "Content-Length" in headers or "Transfer-Encoding" in headers


def _read_body(file: BinaryIO, status: int, headers: dict[str, str]) -> bytes:
    if status in _NO_BODY:
        return b""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        return b"".join(iter(lambda: _read_chunk(file), b""))
    if "Content-Length" in headers:
        return _read_exactly(file, int(headers["Content-Length"]))
    return file.read()


def _read_chunk(file: BinaryIO) -> bytes:
    """Read one chunk; the last one is empty."""
    size = int(file.readline(MAX_LINE_BYTES).partition(b";")[0] or b"0", 16)
    return _read_exactly(file, size + 2)[:-2]


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise BrokenConnectionError(f"the response is incomplete: {size - len(data)} bytes are missing")
    return data


def error_cause(error: BaseException) -> str:
    """Return the cause of an error of urllib3, in a few words."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error.__cause__ or error
    text = " ".join(str(inner).split())
    return text.rpartition(": ")[2] if "[Errno" in text else f"{type(error).__name__}: {text}"[:200]
