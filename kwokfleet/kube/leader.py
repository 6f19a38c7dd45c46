"""Leader election of daemons: renews a Lease, and stops writes before another daemon may take it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, election, leader_identity
from kwokfleet.kube.election import LeaderLease, LeaseCandidate, LeaseObservation
from kwokfleet.kube.http_stream import HttpStream
from kwokfleet.kube.requests import Request, Response

log = structlog.get_logger()

_REQUEST_S = 2.0
"""Timeout of one request about the Lease."""
_MIN_TIMEOUT_S = 0.001


def _clock() -> float:
    """Return seconds that also pass while the machine sleeps: leadership may end during the sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaderElector(threading.Thread):
    """Acquires and renews the Lease, and knows whether this process leads *now*."""

    def __init__(self, api: client.KubeClient, candidate: LeaseCandidate) -> None:
        super().__init__(name="leader", daemon=True)
        self._api, self._candidate = api, candidate
        self.on_change: Callable[[bool], None] = lambda _leads: None
        """Called whenever leadership is gained or lost."""
        self._stopping = threading.Event()
        self._observation = LeaseObservation()
        self._leads_until = 0.0
        self._published = False
        """Leadership at the last call of `on_change`."""

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """Time until leadership ends without another renewal."""
        return self._leads_until - _clock()

    @property
    def holder(self) -> str:
        """The last seen holder of the Lease."""
        return self._observation.lease.holder if self._observation.lease else ""

    def run(self) -> None:
        """Acquire and renew until stopped."""
        last_error = ""
        while not self._stopping.is_set():
            try:
                self._acquire_or_renew()
                last_error = ""
            except errors.ClusterError as error:
                if str(error) != last_error:  # logged once; without rights to the Lease this process never leads
                    log.warning("lease_not_accessible", error=str(error), hint=error.hint)
                last_error = str(error)
            self._publish()
            # Never sleep beyond the end of leadership: on_change must be called then.
            remaining = self.remaining_s
            self._stopping.wait(min(election.RETRY_S, remaining) if remaining > 0 else election.RETRY_S)
            self._publish()

    def _acquire_or_renew(self) -> None:
        if not self.leads or self._observation.lease is None:
            self._read()
        now = _clock()
        if self._observation.allows(self._candidate.identity, now) or leader_identity.is_dead_process(self.holder):
            self._hold(now)

    def _read(self) -> None:
        response = self._api.send(self._candidate.get_request(), timeout_s=_REQUEST_S)
        if response.status == HTTPStatus.NOT_FOUND:
            self._observe(None)
        elif response.status == HTTPStatus.OK:
            self._observe(election.parse_lease(response.json()))
        else:
            raise client.rejection_error(self._api, response, "get leases")

    def _hold(self, began: float) -> None:
        request = self._candidate.hold_request(self._observation.lease, datetime.now(UTC))
        response = self._api.send(request, timeout_s=_REQUEST_S)
        if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            self._observe(election.parse_lease(response.json()))
            self._publish()  # a short loss, too: writes were rejected meanwhile
            self._leads_until = began + election.RENEW_S
        elif response.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            self._read()
            if self.holder != self._candidate.identity:
                self._leads_until = 0.0
        else:
            raise client.rejection_error(self._api, response, "write leases")

    def _observe(self, lease: LeaderLease | None) -> None:
        self._observation = self._observation.updated(lease, _clock())

    def _publish(self) -> None:
        if self._published != self.leads:
            self._published = self.leads
            candidate = self._candidate
            log.info("leading" if self._published else "not_leading", lease=f"{candidate.namespace}/{candidate.name}",
                     me=candidate.identity, holder=self.holder)  # fmt: skip
            self.on_change(self._published)

    def resign(self) -> None:
        """Stop and release the Lease, so that another daemon leads at once. No write is allowed after this."""
        self._stopping.set()
        self.join(_REQUEST_S * 2)
        lease, leads = self._observation.lease, self.leads
        self._leads_until = 0.0
        if lease is None or not leads:
            return
        try:
            self._api.send(self._candidate.release_request(lease), timeout_s=_REQUEST_S)
        except errors.ClusterError as error:
            log.debug("lease_not_released", error=str(error))


class LeaderGuardedClient:
    """Client that rejects writes without the leader Lease; a write never lasts longer than the leadership."""

    def __init__(self, api: client.KubeClient, leader: LeaderElector | None, count: Callable[[str, int], None]) -> None:
        self._api, self._leader, self._count = api, leader, count

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._api.host

    def send(
        self,
        request: Request,
        timeout_s: float = client.RESPONSE_TIMEOUT_S,
        before_send: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request; a write only as leader. *before_send* is called right before the bytes are sent."""
        if self._leader is not None and request.is_write:
            self._assert_leading()
            timeout_s = max(_MIN_TIMEOUT_S, min(timeout_s, self._leader.remaining_s))
            before_send = partial(self._assert_leading, before_send)
        response = self._api.send(request, timeout_s, before_send)
        self._count(request.method, response.status)
        return response

    def _assert_leading(self, before_send: Callable[[], None] | None = None) -> None:
        if not self.leads:
            raise errors.NotLeadingError("not the leader: nothing was written")
        if before_send is not None:
            before_send()

    @property
    def leads(self) -> bool:
        """Whether writes are allowed now."""
        return self._leader is None or self._leader.leads

    @property
    def leader(self) -> str:
        """The last seen leader; empty without leader election."""
        return self._leader.holder if self._leader is not None else ""

    def start_election(self, on_change: Callable[[bool], None]) -> None:
        """Start leader election; without one, writes are always allowed and *on_change* is never called."""
        if self._leader is not None:
            self._leader.on_change = on_change
            self._leader.start()

    def resign(self) -> None:
        """Stop all writes and let another daemon lead."""
        if self._leader is not None:
            self._leader.resign()

    def stream(self, request: Request, silence_s: float) -> HttpStream:
        """Open a watch."""
        return self._api.stream(request, silence_s)
