"""Answers that do not end by themselves."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import urllib3

from kwokfleet import errors
from kwokfleet.kube import http_connection
from kwokfleet.kube.requests import Response

MOST_SIZE_LINE = 1024


class HttpStream:
    """An answer that does not end by itself: a watch."""

    def __init__(self, host: str, response: urllib3.BaseHTTPResponse) -> None:
        self._host, self._response = host, response
        self._stopped = False
        self.status = response.status

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes, as it comes, until either side closes."""
        try:
            # What is read after stop() is not the answer: shutting a TLS socket down takes its decryption away.
            for chunk in _pieces(self._response):
                if self._stopped:
                    return
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # ValueError: closed by us
            if self._stopped:
                return
            raise errors.UnreachableError(
                f"the connection to {self._host} broke: {http_connection.error_cause(error)}"
            ) from error

    def read(self) -> Response:
        """Return the whole answer; for one that is an error."""
        with suppress(urllib3.exceptions.HTTPError, OSError):
            return Response(self.status, self._response.data, self._response.headers)
        return Response(self.status)

    def stop(self) -> None:
        """Wake up who waits in chunks(), from another thread."""
        self._stopped = True
        with suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def close(self) -> None:
        """Give up the connection."""
        with suppress(OSError):
            self._response.close()


def _pieces(response: Any) -> Iterator[bytes]:  # noqa: ANN401  # what lies below a response has no type of its own
    """Yield what a response brings, piece by piece, as the other side has sent it.

    Events of a watch come one by one, each as a piece. urllib3 and http.client take 120 µs of CPU for each,
    most of it for what a watch never is (compressed, cached, seekable); read from the connection, it is 40.
    """
    if not getattr(response, "chunked", False):
        yield from iter(partial(response.read1, http_connection.CHUNK), b"")
        return
    connection = response._fp.fp  # noqa: SLF001  # the buffered file of the socket: urllib3 has no name for it
    while (line := connection.readline(MOST_SIZE_LINE)) and (size := int(line.partition(b";")[0], 16)):
        piece = connection.read(size)
        if len(piece) < size:
            raise urllib3.exceptions.IncompleteRead(len(piece), size - len(piece))
        yield piece
        connection.readline(MOST_SIZE_LINE)
    if not line:
        raise urllib3.exceptions.ProtocolError("it was closed without an end")
