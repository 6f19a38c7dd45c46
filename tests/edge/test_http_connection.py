"""HTTP responses: complete, chunked, incomplete, or not HTTP at all."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import pytest
import urllib3

from kwokfleet.kube import http_connection
from tests.harness import waiting

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Sends prepared responses: one list per connection, one response per request."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._connections = connections
        self.met = 0
        self.left = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed before all connections were accepted
            for responses in self._connections:
                with self._socket.accept()[0] as other:
                    self.met += 1
                    for response in responses:
                        if not other.recv(1 << 16):
                            break
                        other.sendall(response)
                self.left += 1

    def close(self) -> None:
        """Stop the server."""
        self._socket.shutdown(socket.SHUT_RDWR)  # close does not wake a thread in accept
        self._socket.close()
        self._thread.join(5)


@contextmanager
def open_pool(*connections: Sequence[bytes]) -> Iterator[tuple[http_connection.ConnectionPool, Server]]:
    """Open a pool to a server with prepared responses."""
    with closing(Server(*connections)) as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port)
        with closing(http_connection.ConnectionPool(pool)) as http_pool, closing(pool):
            yield http_pool, server


def get(http_pool: http_connection.ConnectionPool) -> tuple[int, bytes]:
    """Return status and body of the response to a GET."""
    status, body, _ = http_pool.exchange(GET, 5, 5, None)
    return status, body


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", b"hello"),
        (OK + b"\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
    ],
    ids=["of known length", "in pieces", "until it closes", "after another", "empty"],
)
def test_a_response_is_read_to_its_end(response: bytes, body: bytes) -> None:
    """However the server marks the end."""
    with open_pool([response]) as (http_pool, _):
        assert get(http_pool) == (200, body)


def test_a_204_has_no_body() -> None:
    """Whatever its headers say."""
    with open_pool([b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"]) as (http_pool, _):
        assert get(http_pool) == (204, b"")


def test_header_names_are_normalised() -> None:
    """The server may use any case."""
    response = b"HTTP/1.1 429 Too Many Requests\r\nretry-AFTER:  7 \r\nContent-Length: 0\r\n\r\n"
    with open_pool([response]) as (http_pool, _):
        assert http_pool.exchange(GET, 5, 5, None)[2]["Retry-After"] == "7"


def test_a_connection_is_reused_unless_the_server_closes_it() -> None:
    """After a close by the server, announced or not, a new connection is opened."""
    ok_response = OK + b"Content-Length: 2\r\n\r\nok"
    last = OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nok"
    with open_pool([ok_response, last], [ok_response], [ok_response]) as (http_pool, server):
        assert [get(http_pool) for _ in range(3)] == [(200, b"ok")] * 3
        assert server.met == 2
        waiting.until(lambda: server.left == 2)
        assert get(http_pool) == (200, b"ok"), "the server closed the second connection"
        assert server.met == 3


def test_a_get_on_a_closing_connection_is_sent_again() -> None:
    """Servers and load balancers close idle connections."""
    ok_response = OK + b"Content-Length: 2\r\n\r\nok"
    with open_pool([ok_response, b""], [ok_response]) as (http_pool, server):
        assert [get(http_pool), get(http_pool)] == [(200, b"ok")] * 2
        assert server.met == 2


def test_a_write_on_a_closing_connection_is_not_sent_again() -> None:
    """It may have been executed: the caller has to check."""
    ok_response = OK + b"Content-Length: 2\r\n\r\nok"
    with open_pool([ok_response, b""], [ok_response]) as (http_pool, server):
        get(http_pool)
        with pytest.raises(http_connection.BrokenConnectionError):
            http_pool.exchange(GET.replace(b"GET", b"POST"), 5, 5, None)
        assert server.met == 1


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (b"", "without a response"),
        (OK, "the headers do not end"),
        (OK + b"Content-Length: 9\r\n\r\nhello", "4 bytes are missing"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "are missing"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n", "does not speak HTTP"),
        (OK + b"Content-Length: five\r\n\r\nhello", "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (OK + b"A: b\r\n" * 300, "more than 200 headers"),
    ],
    ids=["nothing", "no end of headers", "too short", "no last piece", "no size", "no length", "ssh", "many headers"],
)
def test_an_incomplete_response_is_an_error(response: bytes, why: str) -> None:
    """The message gives the reason."""
    with open_pool([response]) as (http_pool, _), pytest.raises(http_connection.BrokenConnectionError, match=why):
        get(http_pool)


def test_before_send_can_prevent_the_request() -> None:
    """It is called after the connection is open."""

    def refuse() -> None:
        raise PermissionError("no longer")

    with open_pool([OK]) as (http_pool, server):
        with pytest.raises(PermissionError):
            http_pool.exchange(GET, 5, 5, refuse)
        waiting.until(lambda: server.met == 1)


def test_a_silent_server_is_a_timeout() -> None:
    """The time counts from the request."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", silent.getsockname()[1])
        with closing(http_connection.ConnectionPool(pool)) as http_pool, pytest.raises(TimeoutError):
            http_pool.exchange(GET, 5, 0.05, None)
