"""Requests sent at a pace that the API server can bear, and again where that helps.

All writes of a process share one pace, whoever makes them: passes, Runs, what is told of them.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Protocol

import structlog

from kwokfleet import errors, settings
from kwokfleet.kube import adaptive_limit, client, parallel, rejections
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.informer import reflector
from kwokfleet.kube.requests import Request, Response

log = structlog.get_logger()

RETRY_TIMEOUT_S = 60.0
"""How long the API server may stay away, or an answer stay the same bad one."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
MAX_TRIES = 6
"""Of a request that is answered by an internal error each time."""
RETRYABLE_STATUSES = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How hard the API server may be asked."""

    max_inflight: int = settings.MAX_INFLIGHT
    qps: float = 0.0
    patience_s: float = RETRY_TIMEOUT_S
    dry_run: bool = False
    """Let the API server check every write, and keep none."""


class SendApi(reflector.WatchApi, Protocol):
    """A way to the cluster that tells when a request leaves."""

    def send(self, request: Request, *, ask: Callable[[], None] | None = None) -> Response:
        """Send a request; *ask* is called right before each piece of it goes out."""


@dataclass(slots=True)
class SendTiming:
    """How one request fared on its way to the API server."""

    tries: int = 0
    at: float = 0.0
    """When it went out for the first time, by the monotonic clock; 0 before that."""

    def leaves(self) -> None:
        """Take note that a piece of it goes out; the last piece counts."""
        if self.tries <= 1:
            self.at = time.monotonic()


@dataclass(slots=True)
class _Gate:
    """How many requests are under way, and how many may be."""

    pace: adaptive_limit.AdaptiveLimit
    turn: threading.Condition = field(default_factory=threading.Condition)
    inflight: int = 0


class ThrottledClient:
    """Sends requests at a pace that the API server can bear, again where that helps."""

    def __init__(self, api: SendApi, limits: ClientLimits, stop: threading.Event, gate: "_Gate | None" = None) -> None:
        self.api, self.limits, self.stop = api, limits, stop
        self._gate = gate or _Gate(adaptive_limit.AdaptiveLimit(limits.max_inflight, limits.qps))
        self._silent_since: float | None = None

    def lane(self, stop: threading.Event, patience_s: float | None = None) -> "ThrottledClient":
        """Return another one that can be stopped by itself, or gives up sooner; all lanes together keep to one pace."""
        limits = self.limits if patience_s is None else replace(self.limits, patience_s=patience_s)
        return ThrottledClient(self.api, limits, stop, self._gate)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self.api.host

    @property
    def room(self) -> int:
        """How many may usefully wait to send: as many as the API server can bear, or as may be sent in a second."""
        most = self._gate.pace.limit
        return max(1, int(min(most, self.limits.qps) if self.limits.qps > 0 else most))

    def send(self, request: Request, passage: SendTiming | None = None) -> Response:
        """Return the answer to a request; raise if there is none for too long, or the sender is stopped."""
        began = time.monotonic()
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        for tries in itertools.count(1):
            try:
                answer = self._once(request, passage)
            except errors.UnreachableError as error:
                self._is_away(error)
                wait = backoff.next_s()
            else:
                self._silent_since = None
                if not self._worth_repeating(answer, tries, time.monotonic() - began):
                    return answer
                log.debug("request_refused", status=answer.status, path=request.path)
                wait = max(answer.retry_after_s, backoff.next_s())
            if self.stop.wait(wait):
                raise errors.ClusterError("stopped before the API server answered")
        raise AssertionError("unreachable: the loop above has no end")

    def _once(self, request: Request, passage: SendTiming | None) -> Response:
        with self._gate.turn:
            while not self._gate.pace.may_send(self._gate.inflight):
                self._gate.turn.wait(1.0)
                if self.stop.is_set():
                    raise errors.ClusterError("stopped")
            self._gate.inflight += 1
        try:
            self._wait_for_slot()
            began = time.monotonic()
            if passage is not None:
                passage.tries += 1
            answer = self.api.send(request, ask=passage.leaves) if passage else self.api.send(request)
        except BaseException:
            self._release(None, 0.0)
            raise
        took = (
            None
            if answer.status in RETRYABLE_STATUSES and not rejections.is_budget_rejection(answer)
            else time.monotonic() - began
        )
        self._release(took, answer.retry_after_s)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise client.rejection_error(self.api, answer, "know us")
        return answer

    def _wait_for_slot(self) -> None:
        """Wait for the next moment at which a request may be sent; while one waits, another may be refused."""
        while not self.stop.is_set():
            with self._gate.turn:
                wait = self._gate.pace.slot(time.monotonic())
            self.stop.wait(wait)
            with self._gate.turn:
                if not self._gate.pace.is_quiet(time.monotonic()):
                    return

    def _release(self, took_s: float | None, retry_after_s: float) -> None:
        """Give the turn to the next, who must know already what came of this one."""
        with self._gate.turn:
            self._gate.inflight -= 1
            if took_s is not None:
                self._gate.pace.answered(took_s)
            else:
                self._gate.pace.refused(time.monotonic(), retry_after_s)
            self._gate.turn.notify(max(1, int(self._gate.pace.limit) - self._gate.inflight))  # the limit may have grown

    def _is_away(self, error: errors.UnreachableError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since > self.limits.patience_s:
            raise error

    def _worth_repeating(self, answer: Response, tries: int, since_s: float) -> bool:
        if answer.status not in RETRYABLE_STATUSES or since_s > self.limits.patience_s:
            return False
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            return not rejections.is_budget_rejection(
                answer
            )  # a PodDisruptionBudget's no is an answer, not a matter of pace
        return answer.status == HTTPStatus.SERVICE_UNAVAILABLE or tries < MAX_TRIES


def send_all(
    sender: ThrottledClient, work: Sequence[Request], on_done: Callable[[int], None] = lambda _done: None
) -> None:
    """Send many requests in parallel and ignore errors: the next pass observes the result."""

    def send(request: Request) -> None:
        with suppress(errors.ClusterError):
            sender.send(request)

    parallel.run_all(send, work, sender.limits.max_inflight, sender.stop, on_done)
