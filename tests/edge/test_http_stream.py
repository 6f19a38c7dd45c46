"""Watch responses: the chunks of the server, one by one."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import urllib3

from kwokfleet import errors
from kwokfleet.kube.http_stream import HttpStream
from tests.edge.test_http_connection import Server

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def open_stream(response: bytes) -> Iterator[HttpStream]:
    """Open a stream of a prepared response."""
    with closing(Server([response])) as server, closing(urllib3.HTTPConnectionPool("127.0.0.1", server.port)) as pool:
        stream = HttpStream("server", pool.urlopen("GET", "/", retries=False, preload_content=False))
        with closing(stream):
            yield stream


def test_chunks_are_passed_on_as_the_server_sent_them() -> None:
    """The chunks are read from below urllib3's response: this fails if a new urllib3 hides its file."""
    with open_stream(CHUNKED + b"3\r\none\r\n5;x=y\r\nother\r\n0\r\n\r\n") as stream:
        assert stream.status == 200
        assert list(stream.chunks()) == [b"one", b"other"]


def test_a_response_without_chunks_is_read_to_its_end() -> None:
    """A proxy may send the length instead."""
    with open_stream(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") as stream:
        assert b"".join(stream.chunks()) == b"hello"


@pytest.mark.parametrize("end", [b"", b"9\r\nhalf"], ids=["no last chunk", "half a chunk"])
def test_an_incomplete_response_is_unreachable(end: bytes) -> None:
    """The complete chunks come first."""
    with open_stream(CHUNKED + b"3\r\none\r\n" + end) as stream:
        chunks = stream.chunks()
        assert next(chunks) == b"one"
        with pytest.raises(errors.UnreachableError, match="the connection to server broke"):
            next(chunks)


def test_no_chunk_is_passed_on_after_stop() -> None:
    """The iteration ends without an error."""
    with open_stream(CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n") as stream:
        chunks = stream.chunks()
        assert next(chunks) == b"one"
        stream.stop()
        assert list(chunks) == []
