"""Client that stops writes before another daemon may lead."""

from collections.abc import Callable
from functools import partial

from kwokfleet import errors
from kwokfleet.kube import client
from kwokfleet.kube.http_stream import HttpStream
from kwokfleet.kube.leader_election import LeaderElector, LeadershipListener
from kwokfleet.kube.requests import Request, Response

_MIN_TIMEOUT_S = 0.001


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

    def start_election(self, on_change: LeadershipListener) -> None:
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
