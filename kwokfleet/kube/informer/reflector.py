"""One kind of object, listed once and watched from then on, whatever happens to the connection.

What is made of the objects is others' business: a Mirror keeps them, a Witness tells of each event.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Protocol

import orjson
import structlog

from kwokfleet import errors
from kwokfleet.kube import requests
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind, Request, Response

log = structlog.get_logger()

SILENCE_S = 100.0
"""A watch says something every minute, if only that nothing has happened."""
WATCH_S = 290
"""How long the API server keeps a watch open; it is taken up again where it ended."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
_END_OF_LIST = "k8s.io/initial-events-end"
_CANNOT_STREAM = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.METHOD_NOT_ALLOWED}


class WatchStream(Protocol):
    """An answer that goes on."""

    status: int

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes."""

    def read(self) -> Response:
        """Return the whole answer."""

    def stop(self) -> None:
        """Wake up who waits for more."""

    def close(self) -> None:
        """Give up the connection."""


class WatchApi(Protocol):
    """What a mirror asks."""

    @property
    def host(self) -> str:
        """Whom it asks."""

    def send(self, request: Request) -> Response:
        """Send a request."""

    def stream(self, request: Request, silence_s: float) -> WatchStream:
        """Send a request whose answer goes on."""


class _GoneError(Exception):
    """The version that was asked for is too old: list again."""


class _RefusedError(Exception):
    """The API server said no."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Reflector(threading.Thread, ABC):
    """Lists and watches one kind. Who inherits makes something of what comes; all of it comes in this thread."""

    def __init__(self, api: WatchApi, kind: Kind, chosen: tuple[str, str], stop: threading.Event) -> None:
        super().__init__(name=f"mirror-{kind.plural}", daemon=True)
        self._api, self.kind = api, kind
        self._selector, self._fields = chosen
        self._stopping = stop
        self._stream: WatchStream | None = None
        self._streams_lists = True
        self._resume, self._rest = "", b""
        self._listing = False
        """Whether what comes belongs to a list that is not complete yet."""
        self.restarted: Callable[[str], None] = lambda _reason: None
        self.version = 0

    # what is made of it

    @abstractmethod
    def listing(self) -> None:
        """Take note that a list begins; one that had begun is void."""

    @abstractmethod
    def item(self, thing: Manifest, received: float) -> None:
        """Take in an object of the list."""

    @abstractmethod
    def listed(self) -> None:
        """Take note that the list is complete."""

    @abstractmethod
    def event(self, kind: str, thing: Manifest, received: float) -> None:
        """Take in what has happened since."""

    @abstractmethod
    def missing(self) -> None:
        """Take note that the cluster does not have this kind."""

    @abstractmethod
    def say(self, trouble: str, *, settled: bool = True) -> None:
        """Take note that all is known, or why it is not; *settled*: whether that is so for good."""

    def came(self, piece: bytes, received: float) -> None:
        """Take in a piece of the stream: at once, or later and then in order."""
        self.take(piece, received)

    def settle(self) -> None:
        """Take in what was put off: the stream has ended."""

    def batch(self) -> AbstractContextManager[object]:
        """Return what to hold while events are taken in that came together."""
        return nullcontext()

    def batched(self, received: float) -> None:
        """Take note that some were taken in, or that nothing has happened."""

    # from start to stop

    def interrupt(self) -> None:
        """Wake it up to see that it should stop."""
        stream = self._stream
        if stream is not None:
            stream.stop()

    def run(self) -> None:
        """List, watch, and begin again, until stopped."""
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while not self._stopping.is_set():
            began, retry_after_s = time.monotonic(), 0.0
            try:
                if self._resume or self._streams_lists:
                    self._follow()
                else:
                    self._list()
                backoff.reset()
                continue  # the API server ended the watch in good order
            except _GoneError:
                self._resume = ""
                self.restarted("expired")
                self.say("is being listed again", settled=False)
            except _RefusedError as error:
                self.restarted("refused")
                if self._refused(error.answer):
                    continue
                retry_after_s = error.answer.retry_after_s
            except errors.UnreachableError as error:
                if not self._stopping.is_set():
                    self.restarted("disconnected")
                    self.say(str(error), settled=False)
                    log.debug("mirror_disconnected", kind=self.kind.kind, error=str(error))
            if time.monotonic() - began > MAX_PAUSE_S:
                backoff.reset()
            self._stopping.wait(max(backoff.next_s(), retry_after_s))

    def _refused(self, answer: Response) -> bool:
        """Note why there is no answer; return whether to try another way at once."""
        self._resume = ""
        if answer.status in _CANNOT_STREAM and self._streams_lists:
            self._streams_lists = False
            return True
        if answer.status == HTTPStatus.NOT_FOUND:
            self.missing()
            self.say("")
        elif answer.status == HTTPStatus.FORBIDDEN:
            self.say(f"{self.kind.plural} may not be listed: {answer.message}")
        elif answer.status == HTTPStatus.UNAUTHORIZED:
            self.say(f"{self.kind.plural} cannot be listed: the API server does not accept the credentials")
        else:
            self.say(f"{self.kind.plural} cannot be listed: {answer.status} {answer.message}", settled=False)
        return False

    # what is there

    def _list(self) -> None:
        """List page by page, for an API server that does not stream lists."""
        self.listing()
        token = ""
        while True:
            answer = self._api.send(requests.list_page(self.kind, self._selector, token, fields=self._fields))
            if answer.status == HTTPStatus.GONE:
                raise _GoneError
            if answer.status != HTTPStatus.OK:
                raise _RefusedError(answer)
            received, page = time.time(), answer.json()
            for each in page.get("items") or ():
                self.item(each, received)
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                self._whole(str(metadata["resourceVersion"]))
                return

    def _whole(self, version: str) -> None:
        """Go on from a complete list."""
        with self.batch():
            self.version, self._resume = max(self.version, int(version)), version
            self.listed()
        self.say("")

    def _follow(self) -> None:
        """Watch until the connection ends; without a version to go on from, list first in the same stream."""
        self._listing, self._rest = not self._resume, b""
        if self._listing:
            self.listing()
        request = requests.watch(self.kind, self._selector, self._resume, WATCH_S, fields=self._fields)
        stream = self._api.stream(request, SILENCE_S)
        self._stream = stream
        try:
            if self._stopping.is_set():
                return
            if stream.status == HTTPStatus.GONE:
                raise _GoneError
            if stream.status != HTTPStatus.OK:
                raise _RefusedError(stream.read())
            if not self._listing:
                self.say("")
            for piece in stream.chunks():
                self.came(piece, time.time())
        finally:
            self._stream = None
            stream.close()
            self.settle()
        if self._listing:
            raise errors.UnreachableError(f"the list of {self.kind.plural} broke off")

    def take(self, piece: bytes, received: float) -> None:
        """Make something of a piece of the stream; an event may go on in the next one."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        self._listing = self._lines(lines, received, listing=self._listing)

    def _lines(self, lines: Sequence[bytes], received: float, *, listing: bool) -> bool:
        """Take in some events; return whether the list goes on."""
        with self.batch():
            for line in lines:
                event = _event(line)
                kind, thing = event["type"], event["object"]
                if kind == "ERROR":
                    raise (
                        _GoneError
                        if thing.get("code") == HTTPStatus.GONE
                        else _RefusedError(Response(int(thing.get("code") or 0), orjson.dumps(thing)))
                    )
                metadata = thing["metadata"]
                if kind == "BOOKMARK":
                    if listing and _END_OF_LIST in (metadata.get("annotations") or {}):
                        self._whole(metadata["resourceVersion"])
                        listing = False
                elif listing:
                    self.item(thing, received)
                    continue
                else:
                    self.event(kind, thing, received)
                if not listing:
                    self._resume = metadata["resourceVersion"]
                    self.version = max(self.version, int(self._resume))
        self.batched(received)
        return listing


def _event(line: bytes) -> Manifest:
    try:
        event: Manifest = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise errors.UnreachableError("a watch sent what is not an event") from error
    return event
