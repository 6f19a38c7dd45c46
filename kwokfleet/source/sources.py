"""Where a daemon's files come from: a folder that is watched, or a git repository that is fetched."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import structlog

from kwokfleet import errors
from kwokfleet.kube.objects import Manifest
from kwokfleet.source import file_watcher, files, git_repository, loader, revision_lookup, webhooks

log = structlog.get_logger()

NO_HOOK = (HTTPStatus.NOT_FOUND, "these files do not come from git: there is nothing to push to")


QUIET_PAUSE_S = 0.01


class Feed(Protocol):
    """Gives files, and says when there may be others."""

    revision: str
    """Of what was last loaded, as people are shown it."""
    trouble: str
    """Why newer files cannot be had; empty if they can."""

    def begin(self, changed: Callable[[], None]) -> None:
        """Call *changed* from now on whenever something may be different."""

    def load(self) -> loader.Loaded:
        """Return what the files say now."""

    def told(self) -> Manifest:
        """Return what the cluster is told of it."""

    def pushed(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Take a git host's word that there is something new; return a status of HTTP, and a sentence."""

    def close(self) -> None:
        """Stop looking."""


def told_of(path: Path, digest: str) -> Manifest:
    """Return what the cluster is told of files in a folder: which commit they are of, if they are of one."""
    return {"kind": "folder", "where": str(path), "revision": str(revision_lookup.of(path, digest)), "digest": digest}


class Folder:
    """A folder, or one file."""

    def __init__(
        self, path: Path, loader: loader.Loader, *, poll_s: float = file_watcher.SLOW_POLL_S, events: bool = True
    ) -> None:
        self._path, self._loader, self._poll_s, self._events = path, loader, poll_s, events
        self._watch: file_watcher.Watch | None = None
        self._told: Manifest = {"kind": "folder", "where": str(path), "revision": "", "digest": ""}
        self.revision = self.trouble = ""

    def begin(self, changed: Callable[[], None]) -> None:
        """Watch the folder, and git's files if it is a checkout: a commit may change no file."""
        also = revision_lookup.landmarks(self._path)
        self._watch = file_watcher.Watch(self._path, changed, also=also, poll_s=self._poll_s, events=self._events)

    def load(self) -> loader.Loaded:
        """Read the folder, once nobody is writing there."""
        try:
            loaded = self._loader.load(self._path, stable=True, pause_s=self._pause_s)
        except errors.InputError as error:  # it is gone, or may not be read: that says nothing about what is wanted
            return replace(loader.nothing(), frozen=str(error))
        if self._watch is not None:
            self._watch.retarget([*revision_lookup.landmarks(self._path), *map(Path, loaded.references)])
        self._told = told_of(self._path, loaded.snapshot.digest)
        self.revision = self._told["revision"]
        return loaded

    @property
    def _pause_s(self) -> float:
        """How far apart two readings must agree: events have told of a quiet time already, a look has not."""
        quiet = self._watch is not None and not self._watch.polling
        return QUIET_PAUSE_S if quiet else files.PAUSE_S

    def told(self) -> Manifest:
        """Return what the cluster is told of it."""
        return self._told

    def pushed(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Refuse: nobody can push to a folder."""
        del headers, body
        return NO_HOOK

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()


class Git:
    """A git repository elsewhere."""

    def __init__(
        self,
        repository: git_repository.Repository,
        loader: loader.Loader,
        *,
        interval_s: float,
        ref: str,
        secret: str = "",
    ) -> None:
        self._repository, self._loader, self._interval_s = repository, loader, interval_s
        self._ref, self._secret = ref, secret
        self._checkout: git_repository.Checkout | None = None
        self._changed: Callable[[], None] = lambda: None
        self._poke, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._fetch, name="git", daemon=True)
        self._digest = ""
        self.revision = self.trouble = ""

    def begin(self, changed: Callable[[], None]) -> None:
        """Fetch at once, and again and again."""
        self._changed = changed
        self._checkout = self._repository.current()
        self._thread.start()

    def _fetch(self) -> None:
        while not self._stopping:
            try:
                self._fetched(self._repository.fetch())
            except errors.KwokfleetError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    log.warning("git_not_fetched", error=str(error), hint=error.hint)
                    self._changed()
            self._poke.wait(self._interval_s)
            self._poke.clear()

    def _fetched(self, now: git_repository.Checkout) -> None:
        before, mended = self._checkout, bool(self.trouble)
        self._checkout, self.trouble = now, ""
        if mended or before is None or before.revision != now.revision:
            self._changed()

    def load(self) -> loader.Loaded:
        """Read the last commit that could be had."""
        checkout = self._checkout
        if checkout is None:
            why = self.trouble or f"{self._repository.shown} has not been fetched yet"
            return replace(loader.nothing(), frozen=why)
        loaded = self._loader.load(checkout.path)
        self.revision, self._digest = str(checkout.revision), loaded.snapshot.digest
        return loaded

    def told(self) -> Manifest:
        """Return what the cluster is told of it."""
        return {"kind": "git", "where": self._repository.shown, "revision": self.revision, "digest": self._digest}

    def pushed(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Fetch now, if the word is good."""
        if not self._secret:
            return HTTPStatus.FORBIDDEN, "hooks are not taken: start with --hook-secret-file"
        word = webhooks.judge(headers, body, secret=self._secret, ref=self._ref, now=time.time())
        if word.meaning is webhooks.Meaning.REFUSED:
            return HTTPStatus.BAD_REQUEST if word.authentic else HTTPStatus.UNAUTHORIZED, word.why
        if word.meaning is webhooks.Meaning.PUSH:
            self._poke.set()
            return HTTPStatus.ACCEPTED, "fetching"
        return HTTPStatus.OK, word.why

    def close(self) -> None:
        """Stop fetching."""
        self._stopping = True
        self._poke.set()
        self._repository.close()
        if self._thread.is_alive():
            self._thread.join()
