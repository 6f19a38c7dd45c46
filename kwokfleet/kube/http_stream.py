"""Watch responses of the API server."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import urllib3

from kwokfleet import errors
from kwokfleet.kube import http_connection
from kwokfleet.kube.requests import Response

_MAX_SIZE_LINE = 1024


class HttpStream:
    """A response that is read while it arrives."""

    def __init__(self, host: str, response: urllib3.BaseHTTPResponse) -> None:
        self._host, self._response = host, response
        self._stopped = False
        self.status = response.status

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of the body until either side closes the connection."""
        try:
            # Bytes read after stop() are not plain text: shutting down a TLS socket removes its decryption.
            for chunk in _chunks(self._response):
                if self._stopped:
                    return
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # ValueError: closed by stop()
            if self._stopped:
                return
            raise errors.UnreachableError(
                f"the connection to {self._host} broke: {http_connection.error_cause(error)}"
            ) from error

    def read(self) -> Response:
        """Return the whole response, for an error status."""
        with suppress(urllib3.exceptions.HTTPError, OSError):
            return Response(self.status, self._response.data, self._response.headers)
        return Response(self.status)

    def stop(self) -> None:
        """End chunks(), from another thread."""
        self._stopped = True
        with suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._response.close()


def _chunks(response: Any) -> Iterator[bytes]:  # noqa: ANN401  # the connection below a response has no public type
    """Yield the chunks of a response as the server sent them.

    Each event of a watch is one chunk. urllib3 and http.client need 120 µs of CPU per chunk, reading from the
    connection needs 40.
    """
    if not getattr(response, "chunked", False):
        yield from iter(partial(response.read1, http_connection.CHUNK_BYTES), b"")
        return
    connection = response._fp.fp  # noqa: SLF001  # the socket's buffered file; urllib3 has no public name for it
    while (line := connection.readline(_MAX_SIZE_LINE)) and (size := int(line.partition(b";")[0], 16)):
        chunk = connection.read(size)
        if len(chunk) < size:
            raise urllib3.exceptions.IncompleteRead(len(chunk), size - len(chunk))
        yield chunk
        connection.readline(_MAX_SIZE_LINE)
    if not line:
        raise urllib3.exceptions.ProtocolError("the server closed the connection before the last chunk")
