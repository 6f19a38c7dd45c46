"""The source of a daemon's files: a watched folder, or a git repository that is fetched periodically."""

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

NO_WEBHOOK = (HTTPStatus.NOT_FOUND, "webhooks are not accepted: the source is a folder, not a git repository")


QUIET_PAUSE_S = 0.01


class Source(Protocol):
    """Loads the files, and reports when they may have changed."""

    revision: str
    """Revision of the last load, for display."""
    error: str
    """Why newer files cannot be fetched; empty without an error."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Call *on_change* from now on whenever the files may have changed."""

    def load(self) -> loader.Loaded:
        """Return the current tree."""

    def description(self) -> Manifest:
        """Return the source as Fleet.status shows it: kind, where, revision and digest."""

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Handle a webhook of a git host; return an HTTP status and a message."""

    def close(self) -> None:
        """Stop watching or fetching."""


def folder_description(path: Path, digest: str) -> Manifest:
    """Return a folder as Fleet.status shows it, with the commit if it is a git checkout."""
    revision = str(revision_lookup.find_revision(path, digest))
    return {"kind": "folder", "where": str(path), "revision": revision, "digest": digest}


class FolderSource:
    """A folder, or a single file."""

    def __init__(
        self, path: Path, loader: loader.Loader, *, poll_s: float = file_watcher.SLOW_POLL_S, events: bool = True
    ) -> None:
        self._path, self._loader, self._poll_s, self._events = path, loader, poll_s, events
        self._watcher: file_watcher.FileWatcher | None = None
        self._description: Manifest = {"kind": "folder", "where": str(path), "revision": "", "digest": ""}
        self.revision = self.error = ""

    def start(self, on_change: Callable[[], None]) -> None:
        """Watch the folder, and git's state files in a checkout: a commit may change no file."""
        self._watcher = file_watcher.FileWatcher(
            self._path,
            on_change,
            also=revision_lookup.git_state_files(self._path),
            poll_s=self._poll_s,
            events=self._events,
        )

    def load(self) -> loader.Loaded:
        """Read the folder once it is stable."""
        try:
            loaded = self._loader.load(self._path, stable=True, pause_s=self._pause_s)
        except errors.InputError as error:  # an unreadable folder declares nothing: freeze, do not prune
            return replace(loader.empty_tree(), frozen=str(error))
        if self._watcher is not None:
            self._watcher.retarget([*revision_lookup.git_state_files(self._path), *map(Path, loaded.references)])
        self._description = folder_description(self._path, loaded.snapshot.digest)
        self.revision = self._description["revision"]
        return loaded

    @property
    def _pause_s(self) -> float:
        """Pause between two readings that must agree. Events are debounced already, polling is not."""
        debounced = self._watcher is not None and not self._watcher.polling
        return QUIET_PAUSE_S if debounced else files.PAUSE_S

    def description(self) -> Manifest:
        """Return the source as Fleet.status shows it."""
        return self._description

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Reject: a folder has no webhook."""
        del headers, body
        return NO_WEBHOOK

    def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.close()


class GitRepositorySource:
    """A remote git repository, fetched periodically and after a webhook."""

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
        self._on_change: Callable[[], None] = lambda: None
        self._fetch_now, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="git", daemon=True)
        self._digest = ""
        self.revision = self.error = ""

    def start(self, on_change: Callable[[], None]) -> None:
        """Fetch now, then periodically."""
        self._on_change = on_change
        self._checkout = self._repository.current()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._update(self._repository.fetch())
            except errors.KwokfleetError as error:
                if self.error != str(error):
                    self.error = str(error)
                    log.warning("git_fetch_failed", error=str(error), hint=error.hint)
                    self._on_change()
            self._fetch_now.wait(self._interval_s)
            self._fetch_now.clear()

    def _update(self, checkout: git_repository.Checkout) -> None:
        previous, recovered = self._checkout, bool(self.error)
        self._checkout, self.error = checkout, ""
        if recovered or previous is None or previous.revision != checkout.revision:
            self._on_change()

    def load(self) -> loader.Loaded:
        """Read the last commit that was fetched."""
        checkout = self._checkout
        if checkout is None:
            reason = self.error or f"{self._repository.display_url} has not been fetched yet"
            return replace(loader.empty_tree(), frozen=reason)
        loaded = self._loader.load(checkout.path)
        self.revision, self._digest = str(checkout.revision), loaded.snapshot.digest
        return loaded

    def description(self) -> Manifest:
        """Return the source as Fleet.status shows it."""
        return {
            "kind": "git",
            "where": self._repository.display_url,
            "revision": self.revision,
            "digest": self._digest,
        }

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Fetch now, if the webhook is authentic and announces a push to our ref."""
        if not self._secret:
            return HTTPStatus.FORBIDDEN, "webhooks are not enabled: start with --hook-secret-file"
        decision = webhooks.evaluate(headers, body, secret=self._secret, ref=self._ref, now=time.time())
        if decision.action is webhooks.WebhookAction.REJECT:
            return HTTPStatus.BAD_REQUEST if decision.authentic else HTTPStatus.UNAUTHORIZED, decision.reason
        if decision.action is webhooks.WebhookAction.FETCH:
            self._fetch_now.set()
            return HTTPStatus.ACCEPTED, "fetching"
        return HTTPStatus.OK, decision.reason

    def close(self) -> None:
        """Stop fetching."""
        self._stopping = True
        self._fetch_now.set()
        self._repository.close()
        if self._thread.is_alive():
            self._thread.join()
