"""One of several daemons leads: it renews a Lease, and stops writing before anybody else may take it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, election
from kwokfleet.kube.election import ElectionStep, LeaderLease, LeaseCandidate, LeaseObservation, LeaseTiming
from kwokfleet.kube.informer import reflector
from kwokfleet.kube.requests import Request, Response

log = structlog.get_logger()

_ASK_S = 2.0
"""How long one question about the Lease may take."""
_BLINK_S = 0.001
"""No time at all, where a time must be given."""


def _clock() -> float:
    """Return seconds that also pass while the machine sleeps: who wakes up must know that its time is over."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaderElector(threading.Thread):
    """Stands for election, renews, and tells whoever asks whether we lead *now*."""

    def __init__(
        self,
        api: client.KubeClient,
        seat: LeaseCandidate,
        timing: LeaseTiming,
        is_dead: Callable[[str], bool] = lambda _holder: False,
    ) -> None:
        super().__init__(name="leader", daemon=True)
        self._is_dead = is_dead
        self._api, self.seat, self._timing = api, seat, timing
        self._on_change: Callable[[bool], None] = lambda _leads: None
        self._stopping = threading.Event()
        self._sight = LeaseObservation()
        self._until = 0.0
        self._led = False

    def start_election(self, on_change: Callable[[bool], None]) -> None:
        """Start the thread; *on_change* is called whenever leadership is gained or lost."""
        self._on_change = on_change
        self.start()

    @property
    def leads(self) -> bool:
        """Whether we lead at this moment."""
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """How long we may go on without another renewal."""
        return self._until - _clock()

    @property
    def holder(self) -> str:
        """Who holds the Lease, as far as is known."""
        return self._sight.record.holder if self._sight.record else ""

    def run(self) -> None:
        """Look, take, renew, until stopped."""
        trouble = ""
        while not self._stopping.is_set():
            try:
                self._look()
                trouble = ""
            except errors.ClusterError as error:
                if str(error) != trouble:  # said once: who may not touch the Lease never leads, and should know why
                    log.warning("lease_out_of_reach", error=str(error), hint=error.hint)
                trouble = str(error)
            self._tell()
            # Never asleep beyond the moment at which we cease to lead: somebody must be told of it.
            left = self.left_s
            self._stopping.wait(min(self._timing.retry_s, left) if left > 0 else self._timing.retry_s)
            self._tell()

    def _look(self) -> None:
        if not self.leads or self._sight.record is None:
            self._read()
        now = _clock()
        if election.next_step(self._sight, self.seat.me, now) is not ElectionStep.WAIT or self._is_dead(self.holder):
            self._hold(now)

    def _read(self) -> None:
        answer = self._api.send(self.seat.get(), timeout_s=_ASK_S)
        if answer.status == HTTPStatus.NOT_FOUND:
            self._seen(None)
        elif answer.status == HTTPStatus.OK:
            self._seen(election.parse_lease(answer.json()))
        else:
            raise client.rejection_error(self._api, answer, "get leases")

    def _hold(self, began: float) -> None:
        answer = self._api.send(self.seat.hold(self._sight.record, self._timing, datetime.now(UTC)), timeout_s=_ASK_S)
        if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            self._seen(election.parse_lease(answer.json()))
            self._tell()  # of a lapse, however short: who was refused a write meanwhile has left off
            self._until = began + self._timing.renew_s
        elif answer.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            self._read()  # somebody was quicker, or has removed it
            if self.holder != self.seat.me:
                self._until = 0.0
        else:
            raise client.rejection_error(self._api, answer, "write leases")

    def _seen(self, record: LeaderLease | None) -> None:
        self._sight = self._sight.updated(record, _clock())

    def _tell(self) -> None:
        if self._led != self.leads:
            self._led = self.leads
            log.info("leading" if self._led else "standing_by", lease=f"{self.seat.namespace}/{self.seat.name}",
                     me=self.seat.me, holder=self.holder)  # fmt: skip
            self._on_change(self._led)

    def resign(self) -> None:
        """Stop, and give the Lease up, so that another one leads at once. Nothing of ours may be written after this."""
        self._stopping.set()
        self.join(_ASK_S * 2)
        record, leads = self._sight.record, self.leads
        self._until = 0.0
        if record is None or not leads:
            return
        try:
            self._api.send(self.seat.release(record), timeout_s=_ASK_S)
        except errors.ClusterError as error:
            log.debug("lease_not_released", error=str(error))


class LeaderGuardedClient:
    """A way to the cluster on which writes are possible only while we lead, and last no longer than that."""

    def __init__(
        self,
        api: client.KubeClient,
        leader: LeaderElector | None = None,
        count: Callable[[str, int], None] | None = None,
    ) -> None:
        self._api, self._leader = api, leader
        self._count = count or (lambda _method, _status: None)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._api.host

    def send(
        self, request: Request, timeout_s: float = client.RESPONSE_TIMEOUT_S, ask: Callable[[], None] | None = None
    ) -> Response:
        """Send a request; a write, only if we lead. *ask* is called at the last moment."""
        if self._leader is not None and request.changes_something:
            self._assert_leading()
            asked = self._assert_leading if ask is None else self._asking(ask)
            answer = self._api.send(request, max(_BLINK_S, min(timeout_s, self._leader.left_s)), asked)
        else:
            answer = self._api.send(request, timeout_s, ask)
        self._count(request.method, answer.status)
        return answer

    def _asking(self, ask: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            self._assert_leading()
            ask()

        return both

    def _assert_leading(self) -> None:
        if not self.leads:
            raise errors.NotLeadingError("another kwokfleet leads: nothing was written")

    @property
    def leads(self) -> bool:
        """Whether writes are possible now."""
        return self._leader is None or self._leader.leads

    @property
    def leader(self) -> str:
        """Who leads, as far as is known; empty if there is no election."""
        return self._leader.holder if self._leader is not None else ""

    def start_election(self, on_change: Callable[[bool], None]) -> None:
        """Stand for election; without one, writes are always allowed and *on_change* is not called."""
        if self._leader is not None:
            self._leader.start_election(on_change)

    def resign(self) -> None:
        """Write nothing any more, and let another one lead."""
        if self._leader is not None:
            self._leader.resign()

    def stream(self, request: Request, silence_s: float) -> reflector.WatchStream:
        """Send a request whose answer goes on."""
        return self._api.stream(request, silence_s)

    def close(self) -> None:
        """Close all connections."""
        self._api.close()
