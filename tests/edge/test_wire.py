"""Answers as they come over the wire: whole, in pieces, broken off, or no answers at all."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import pytest
import urllib3

from kwokfleet.kube import http_connection
from tests.harness import waiting

ASKED = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Says to each who connects what it was told to, one answer for each request."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._connections = connections
        self.met = 0
        self.left = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed before all have come whom it waits for
            for answers in self._connections:
                with self._socket.accept()[0] as other:
                    self.met += 1
                    for each in answers:
                        if not other.recv(1 << 16):
                            break
                        other.sendall(each)
                self.left += 1

    def close(self) -> None:
        """End it."""
        self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits for who comes is not woken by close
        self._socket.close()
        self._thread.join(5)


@contextmanager
def opened(*connections: Sequence[bytes]) -> Iterator[tuple[http_connection.ConnectionPool, Server]]:
    """Open a way to a server that answers so."""
    with closing(Server(*connections)) as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port)
        with closing(http_connection.ConnectionPool(pool)) as made, closing(pool):
            yield made, server


def asked(made: http_connection.ConnectionPool) -> tuple[int, bytes]:
    """Return what a request is answered with."""
    status, body, _ = made.exchange(ASKED, 5, 5, None)
    return status, body


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", b"hello"),
        (OK + b"\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
    ],
    ids=["of known length", "in pieces", "until it closes", "after another", "empty"],
)
def test_an_answer_is_read_whole(answer: bytes, body: bytes) -> None:
    """However the server marks its end."""
    with opened([answer]) as (made, _):
        assert asked(made) == (200, body)


def test_an_answer_without_a_body_is_one() -> None:
    """Whatever its headers say."""
    with opened([b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"]) as (made, _):
        assert asked(made) == (204, b"")


def test_headers_are_known_by_one_spelling() -> None:
    """As the server may write them in any."""
    answer = b"HTTP/1.1 429 Too Many Requests\r\nretry-AFTER:  7 \r\nContent-Length: 0\r\n\r\n"
    with opened([answer]) as (made, _):
        assert made.exchange(ASKED, 5, 5, None)[2]["Retry-After"] == "7"


def test_a_connection_is_used_again_unless_the_server_closes_it() -> None:
    """By word or by deed; then there is another one, and nobody notices."""
    said = OK + b"Content-Length: 2\r\n\r\nok"
    last = OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nok"
    with opened([said, last], [said], [said]) as (made, server):
        assert [asked(made) for _ in range(3)] == [(200, b"ok")] * 3
        assert server.met == 2
        waiting.until(lambda: server.left == 2)
        assert asked(made) == (200, b"ok"), "the server closed the second connection"
        assert server.met == 3


def test_a_question_on_a_connection_that_closes_just_then_is_asked_again() -> None:
    """Servers and what stands before them close what is idle; a question may be asked twice."""
    said = OK + b"Content-Length: 2\r\n\r\nok"
    with opened([said, b""], [said]) as (made, server):
        assert [asked(made), asked(made)] == [(200, b"ok")] * 2
        assert server.met == 2


def test_a_write_on_a_connection_that_closes_just_then_is_not_sent_twice() -> None:
    """It may have been done: who sent it has to look."""
    said = OK + b"Content-Length: 2\r\n\r\nok"
    with opened([said, b""], [said]) as (made, server):
        asked(made)
        with pytest.raises(http_connection.BrokenConnectionError):
            made.exchange(ASKED.replace(b"GET", b"POST"), 5, 5, None)
        assert server.met == 1


@pytest.mark.parametrize(
    ("answer", "why"),
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
def test_what_is_no_whole_answer_is_said(answer: bytes, why: str) -> None:
    """Half an answer is never taken for one."""
    with opened([answer]) as (made, _), pytest.raises(http_connection.BrokenConnectionError, match=why):
        asked(made)


def test_who_may_not_send_any_more_does_not() -> None:
    """Asked at the last moment, when the connection is there."""

    def refuse() -> None:
        raise PermissionError("no longer")

    with opened([OK]) as (made, server):
        with pytest.raises(PermissionError):
            made.exchange(ASKED, 5, 5, refuse)
        waiting.until(lambda: server.met == 1)


def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    """The time for an answer runs from the request on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", silent.getsockname()[1])
        with closing(http_connection.ConnectionPool(pool)) as made, pytest.raises(TimeoutError):
            made.exchange(ASKED, 5, 0.05, None)
