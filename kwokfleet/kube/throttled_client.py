"""Client with an adaptive concurrency limit and retries.

All writes of a process share one limit: passes, Runs, status updates and Events.
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
"""Retries end after this time without a response, or with retryable responses only."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
MAX_TRIES = 6
"""Maximum of tries that end in an internal error."""
RETRYABLE_STATUSES = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of a ThrottledClient."""

    max_inflight: int = settings.MAX_INFLIGHT
    qps: float = 0.0
    retry_timeout_s: float = RETRY_TIMEOUT_S
    dry_run: bool = False
    """Send every write as a dry run."""


class SendApi(reflector.WatchApi, Protocol):
    """A WatchApi with a hook that runs before bytes are sent."""

    def send(self, request: Request, *, before_send: Callable[[], None] | None = None) -> Response:
        """Send a request; *before_send* is called right before each part of it is sent."""


@dataclass(slots=True)
class SendTiming:
    """Tries of one request, and the time of the first one."""

    tries: int = 0
    sent_at: float = 0.0
    """Monotonic time at which the last part of the first try was sent; 0 before."""

    def record_send(self) -> None:
        """Record that a part of the request is sent."""
        if self.tries <= 1:
            self.sent_at = time.monotonic()


@dataclass(slots=True)
class _InflightGate:
    """Requests in flight, shared by all clients of a process."""

    limit: adaptive_limit.AdaptiveLimit
    turn: threading.Condition = field(default_factory=threading.Condition)
    inflight: int = 0


class ThrottledClient:
    """Sends requests within an adaptive limit and retries them."""

    def __init__(
        self, api: SendApi, limits: ClientLimits, stop: threading.Event, gate: "_InflightGate | None" = None
    ) -> None:
        self.api, self.limits, self.stop = api, limits, stop
        self._gate = gate or _InflightGate(adaptive_limit.AdaptiveLimit(limits.max_inflight, limits.qps))
        self._silent_since: float | None = None

    def with_stop(self, stop: threading.Event, retry_timeout_s: float | None = None) -> "ThrottledClient":
        """Return a client with its own stop event and retry timeout; both clients share one limit."""
        limits = self.limits if retry_timeout_s is None else replace(self.limits, retry_timeout_s=retry_timeout_s)
        return ThrottledClient(self.api, limits, stop, self._gate)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self.api.host

    @property
    def concurrency(self) -> int:
        """Useful number of sending threads: the current limit, or the requests of one second."""
        limit = self._gate.limit.limit
        return max(1, int(min(limit, self.limits.qps) if self.limits.qps > 0 else limit))

    def send(self, request: Request, timing: SendTiming | None = None) -> Response:
        """Return the response to a request; raise if there is none in time, or the client is stopped."""
        began, backoff = time.monotonic(), Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        for tries in itertools.count(1):
            try:
                response = self._send_once(request, timing)
            except errors.UnreachableError as error:
                self._record_silence(error)
                pause_s = backoff.next_s()
            else:
                self._silent_since = None
                if not self._is_retryable(response, tries, time.monotonic() - began):
                    return response
                log.debug("request_rejected", status=response.status, path=request.path)
                pause_s = max(response.retry_after_s, backoff.next_s())
            if self.stop.wait(pause_s):
                raise errors.ClusterError("stopped before the API server responded")
        raise AssertionError("unreachable: the loop above has no end")

    def _send_once(self, request: Request, timing: SendTiming | None) -> Response:
        with self._gate.turn:
            while not self._gate.limit.may_send(self._gate.inflight):
                self._gate.turn.wait(1.0)
                if self.stop.is_set():
                    raise errors.ClusterError("stopped")
            self._gate.inflight += 1
        try:
            self._wait_for_slot()
            began = time.monotonic()
            if timing is not None:
                timing.tries += 1
            response = self.api.send(request, before_send=timing.record_send) if timing else self.api.send(request)
        except BaseException:
            self._release(None, 0.0)
            raise
        rejected = response.status in RETRYABLE_STATUSES and not rejections.is_budget_rejection(response)
        self._release(None if rejected else time.monotonic() - began, response.retry_after_s)
        if response.status == HTTPStatus.UNAUTHORIZED:
            raise client.rejection_error(self.api, response, "authenticate")
        return response

    def _wait_for_slot(self) -> None:
        """Wait for the next send time; a rejection meanwhile moves it."""
        while not self.stop.is_set():
            with self._gate.turn:
                wait_s = self._gate.limit.reserve_slot(time.monotonic())
            self.stop.wait(wait_s)
            with self._gate.turn:
                if not self._gate.limit.is_paused(time.monotonic()):
                    return

    def _release(self, took_s: float | None, retry_after_s: float) -> None:
        """Record the result, then wake up waiting threads: they must see the new limit."""
        with self._gate.turn:
            self._gate.inflight -= 1
            if took_s is not None:
                self._gate.limit.record_response(took_s)
            else:
                self._gate.limit.record_rejection(time.monotonic(), retry_after_s)
            self._gate.turn.notify(max(1, int(self._gate.limit.limit) - self._gate.inflight))  # it may have grown

    def _record_silence(self, error: errors.UnreachableError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since > self.limits.retry_timeout_s:
            raise error

    def _is_retryable(self, response: Response, tries: int, elapsed_s: float) -> bool:
        if response.status not in RETRYABLE_STATUSES or elapsed_s > self.limits.retry_timeout_s:
            return False
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            return not rejections.is_budget_rejection(response)  # final: a PodDisruptionBudget, not throttling
        return response.status == HTTPStatus.SERVICE_UNAVAILABLE or tries < MAX_TRIES


def send_all(
    sender: ThrottledClient, work: Sequence[Request], on_done: Callable[[int], None] = lambda _done: None
) -> None:
    """Send many requests in parallel and ignore errors: the next pass observes the result."""

    def send(request: Request) -> None:
        with suppress(errors.ClusterError):
            sender.send(request)

    parallel.run_all(send, work, sender.limits.max_inflight, sender.stop, on_done)
