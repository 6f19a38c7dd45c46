"""Reflector: lists one kind, watches it, and reconnects after errors.

Subclasses handle the objects: a Store keeps them, an EventWatcher passes on each event.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Protocol

import orjson
import structlog

from kwokfleet import errors
from kwokfleet.kube import requests
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.http_stream import HttpStream
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind, Request, Response

log = structlog.get_logger()

SILENCE_S = 100.0
"""The API server sends a bookmark every minute; after this silence the connection is broken."""
WATCH_S = 290
"""Duration of one watch request; the next one continues from its last version."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
STOP_TIMEOUT_S = 2.0
"""A thread that waits for the first byte of a response cannot be interrupted."""
RestartListener = Callable[[str], None]
"""Gets the reason of a watch restart."""
_END_OF_LIST = "k8s.io/initial-events-end"
_CANNOT_STREAM = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.METHOD_NOT_ALLOWED}


class WatchApi(requests.RequestSender, Protocol):
    """API client that can watch."""

    def stream(self, request: Request, silence_s: float) -> HttpStream:
        """Open a watch."""


class _GoneError(Exception):
    """The requested version is too old: list again."""


class _RejectedError(Exception):
    """The API server rejected the list or watch."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.message)
        self.response = response


class Reflector(threading.Thread, ABC):
    """Lists and watches one kind. All `on_` methods are called in this thread."""

    def __init__(self, api: WatchApi, kind: Kind, selectors: tuple[str, str], stop: threading.Event) -> None:
        super().__init__(name=f"reflector-{kind.plural}", daemon=True)
        self._api, self.kind, self._stopping = api, kind, stop
        self._selector, self._fields = selectors
        self._stream: HttpStream | None = None
        self._streams_lists = True
        self._resume_version, self._partial_line = "", b""
        self._listing = False
        """Whether the events belong to a list that is not complete yet."""
        self.on_restart: RestartListener = lambda _reason: None
        self.version = 0

    @abstractmethod
    def on_list_start(self) -> None:
        """Handle the start of a list; an incomplete one is void."""

    @abstractmethod
    def on_list_item(self, manifest: Manifest, received: float) -> None:
        """Handle an object of the list."""

    @abstractmethod
    def on_list_end(self) -> None:
        """Handle the end of the list."""

    @abstractmethod
    def on_event(self, event_type: str, manifest: Manifest, received: float) -> None:
        """Handle a watch event after the list."""

    def on_kind_missing(self) -> None:
        """Handle that the cluster does not have the kind: an empty list."""
        self.on_list_start()
        self.on_list_end()

    @abstractmethod
    def on_state(self, problem: str, *, settled: bool = True) -> None:
        """Handle that the objects are known (no problem) or unknown; *settled*: no retry will change that soon."""

    def on_chunk(self, chunk: bytes, received: float) -> None:
        """Handle a chunk of the stream: now, or later but in order."""
        self.parse_chunk(chunk, received)

    def flush(self) -> None:
        """Handle all deferred chunks: the stream has ended."""

    def batch_lock(self) -> AbstractContextManager[object]:
        """Return the lock that is held while the events of one chunk are handled."""
        return nullcontext()

    def on_batch_end(self, received: float) -> None:
        """Handle the end of a chunk's events; there may have been none."""

    def interrupt(self) -> None:
        """Wake up the thread, so that it sees the stop event."""
        stream = self._stream
        if stream is not None:
            stream.stop()

    def close(self) -> None:
        """Stop the watch and close the connection."""
        self._stopping.set()
        self.interrupt()
        self.join(STOP_TIMEOUT_S)

    def run(self) -> None:
        """List and watch until stopped."""
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while not self._stopping.is_set():
            began, retry_after_s = time.monotonic(), 0.0
            try:
                if self._resume_version or self._streams_lists:
                    self._watch()
                else:
                    self._list()
                backoff.reset()
                continue  # the watch ended normally
            except _GoneError:
                self._resume_version = ""
                self.on_restart("expired")
                self.on_state("is being listed again", settled=False)
            except _RejectedError as error:
                self.on_restart("refused")
                if self._handle_rejection(error.response):
                    continue
                retry_after_s = error.response.retry_after_s
            except errors.UnreachableError as error:
                if not self._stopping.is_set():
                    self.on_restart("disconnected")
                    self.on_state(str(error), settled=False)
                    log.debug("watch_disconnected", kind=self.kind.kind, error=str(error))
            if time.monotonic() - began > MAX_PAUSE_S:
                backoff.reset()
            self._stopping.wait(max(backoff.next_s(), retry_after_s))

    def _handle_rejection(self, response: Response) -> bool:
        """Record why there is no list; return whether to try a paged list at once."""
        self._resume_version = ""
        if response.status in _CANNOT_STREAM and self._streams_lists:
            self._streams_lists = False
            return True
        if response.status == HTTPStatus.NOT_FOUND:
            self.on_kind_missing()
            self.on_state("")
        elif response.status == HTTPStatus.FORBIDDEN:
            self.on_state(f"{self.kind.plural} may not be listed: {response.message}")
        elif response.status == HTTPStatus.UNAUTHORIZED:
            self.on_state(f"{self.kind.plural} cannot be listed: the API server does not accept the credentials")
        else:
            self.on_state(f"{self.kind.plural} cannot be listed: {response.status} {response.message}", settled=False)
        return False

    def _list(self) -> None:
        """List page by page, for an API server without streaming lists."""
        self.on_list_start()
        token = ""
        while True:
            response = self._api.send(requests.list_page(self.kind, self._selector, token, fields=self._fields))
            if response.status == HTTPStatus.GONE:
                raise _GoneError
            if response.status != HTTPStatus.OK:
                raise _RejectedError(response)
            received, page = time.time(), response.json()
            for item in page.get("items") or ():
                self.on_list_item(item, received)
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                self._complete_list(str(metadata["resourceVersion"]))
                return

    def _complete_list(self, version: str) -> None:
        with self.batch_lock():
            self.version, self._resume_version = max(self.version, int(version)), version
            self.on_list_end()
        self.on_state("")

    def _watch(self) -> None:
        """Watch until the connection ends; without a version to continue from, the stream starts with a list."""
        self._listing, self._partial_line = not self._resume_version, b""
        if self._listing:
            self.on_list_start()
        request = requests.watch(self.kind, self._selector, self._resume_version, WATCH_S, fields=self._fields)
        stream = self._api.stream(request, SILENCE_S)
        self._stream = stream
        try:
            if self._stopping.is_set():
                return
            if stream.status == HTTPStatus.GONE:
                raise _GoneError
            if stream.status != HTTPStatus.OK:
                raise _RejectedError(stream.read())
            if not self._listing:
                self.on_state("")
            for chunk in stream.chunks():
                self.on_chunk(chunk, time.time())
        finally:
            self._stream = None
            stream.close()
            self.flush()
        if self._listing:
            raise errors.UnreachableError(f"the list of {self.kind.plural} is incomplete")

    def parse_chunk(self, chunk: bytes, received: float) -> None:
        """Handle the events of a chunk; the last one may continue in the next chunk."""
        lines = (self._partial_line + chunk).split(b"\n")
        self._partial_line = lines.pop()
        with self.batch_lock():
            for line in lines:
                try:
                    event = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise errors.UnreachableError("a watch event is not valid JSON") from error
                self._handle_event(event["type"], event["object"], received)
        self.on_batch_end(received)

    def _handle_event(self, event_type: str, manifest: Manifest, received: float) -> None:
        if event_type == "ERROR":
            if manifest.get("code") == HTTPStatus.GONE:
                raise _GoneError
            raise _RejectedError(Response(int(manifest.get("code") or 0), orjson.dumps(manifest)))
        metadata = manifest["metadata"]
        if event_type == "BOOKMARK":
            if self._listing and _END_OF_LIST in (metadata.get("annotations") or {}):
                self._complete_list(metadata["resourceVersion"])
                self._listing = False
        elif self._listing:
            self.on_list_item(manifest, received)
        else:
            self.on_event(event_type, manifest, received)
        if not self._listing:
            self._resume_version = metadata["resourceVersion"]
            self.version = max(self.version, int(self._resume_version))
