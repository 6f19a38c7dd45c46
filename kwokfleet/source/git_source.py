"""Source of a remote git repository, fetched periodically and after a webhook."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube.objects import Manifest
from kwokfleet.source import git_repository, loader, webhooks

log = structlog.get_logger()


class GitSource:
    """A remote git repository."""

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
        return {"kind": "git", "where": self._repository.display_url, "revision": self.revision, "digest": self._digest}

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Fetch now, if the webhook is authentic and announces a push to our ref."""
        if not self._secret:
            return HTTPStatus.FORBIDDEN, "webhooks are not enabled: start with --hook-secret-file"
        status, reason = webhooks.evaluate(headers, body, secret=self._secret, ref=self._ref, now=time.time())
        if status is HTTPStatus.ACCEPTED:
            self._fetch_now.set()
            return status, "fetching"
        return status, reason

    def close(self) -> None:
        """Stop fetching."""
        self._stopping = True
        self._fetch_now.set()
        self._repository.close()
        if self._thread.is_alive():
            self._thread.join()
