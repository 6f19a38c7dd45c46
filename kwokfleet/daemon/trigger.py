"""Requests for a pass, collected until the worker takes them; the reasons as one word and as a text."""

import threading
import time
from collections.abc import Iterable
from enum import StrEnum


class PassReason(StrEnum):
    """Why a pass was requested."""

    START = "start"
    FILES = "files"
    CLUSTER = "cluster"
    TIME = "time"
    ASKED = "asked"
    HTTP = "http"
    FLEETS = "fleets"
    """A Fleet object changed: users write suspensions, approvals and commands on it."""
    RETRY = "retry"
    DONE = "done"
    """A worker finished: is anything left to do?"""
    LEADING = "leading"
    KWOK = "kwok"
    NEWS = "news"
    """Only the status is to be written; no pass is needed."""


_TEXTS = {
    PassReason.START: "the daemon started",
    PassReason.FILES: "files changed",
    PassReason.CLUSTER: "the cluster changed",
    PassReason.TIME: "scheduled time reached",
    PassReason.ASKED: "requested by a user",
    PassReason.HTTP: "requested over HTTP",
    PassReason.FLEETS: "a Fleet object changed",
    PassReason.RETRY: "retry",
    PassReason.DONE: "follow-up of other changes",
    PassReason.LEADING: "the daemon started",
    PassReason.KWOK: "kwok changed",
}


class Trigger:
    """Collects requests for a pass until the worker takes them."""

    def __init__(self) -> None:
        self._requested = threading.Condition()
        self._reasons: set[PassReason] = set()
        self._requested_at: float | None = None

    def request(self, reason: PassReason) -> None:
        """Request a pass; do not wait for it."""
        with self._requested:
            self._reasons.add(reason)
            if self._requested_at is None and reason is not PassReason.NEWS:
                self._requested_at = time.monotonic()
            self._requested.notify_all()

    def pending(self) -> tuple[str, ...]:
        """Return the reasons that no pass has taken yet."""
        with self._requested:
            return tuple(sorted(self._reasons))

    def wait(self, timeout_s: float) -> tuple[frozenset[PassReason], float | None]:
        """Take the reasons of the next pass, and the monotonic time of its first request.

        After a timeout there are no reasons and no time; NEWS alone has no time.
        """
        with self._requested:
            self._requested.wait_for(lambda: self._reasons, timeout_s)
            request = frozenset(self._reasons), self._requested_at
            self._reasons, self._requested_at = set(), None
            return request


def join(reasons: Iterable[PassReason]) -> str:
    """Return the reasons in the form of logs and of the API, such as `files+time`."""
    return "+".join(sorted(reasons))


def describe(reasons: Iterable[PassReason]) -> str:
    """Return the reasons as a text for Events; a start explains everything else."""
    names = sorted(reasons)
    for start in (PassReason.START, PassReason.LEADING):
        if start in names:
            return _TEXTS[start]
    return ", ".join(_TEXTS[name] for name in names if name in _TEXTS)
