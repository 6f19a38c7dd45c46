"""Leader election of daemons: one of several holds a Lease and renews it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, leader_identity, leader_lease
from kwokfleet.kube.leader_lease import LeaderLease, LeaseCandidate, LeaseObservation

log = structlog.get_logger()

RENEW_S = 10.0
"""The leader stops leading this long after its last renewal."""
RETRY_S = 2.0
"""Interval of renewals and checks."""
LeadershipListener = Callable[[bool], None]
"""Gets whether this process leads, after each change."""
_REQUEST_S = 2.0
"""Timeout of one request about the Lease."""


def _clock() -> float:
    """Return seconds that also pass while the machine sleeps: leadership may end during the sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaderElector(threading.Thread):
    """Acquires and renews the Lease, and knows whether this process leads *now*."""

    def __init__(self, api: client.KubeClient, candidate: LeaseCandidate) -> None:
        super().__init__(name="leader", daemon=True)
        self._api, self._candidate = api, candidate
        self.on_change: LeadershipListener = lambda _leads: None
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
            self._stopping.wait(min(RETRY_S, remaining) if remaining > 0 else RETRY_S)
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
            self._observe(leader_lease.parse_lease(response.json()))
        else:
            raise client.rejection_error(self._api, response, "get leases")

    def _hold(self, began: float) -> None:
        request = self._candidate.hold_request(self._observation.lease, datetime.now(UTC))
        response = self._api.send(request, timeout_s=_REQUEST_S)
        if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            self._observe(leader_lease.parse_lease(response.json()))
            self._publish()  # a short loss, too: writes were rejected meanwhile
            self._leads_until = began + RENEW_S
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
