"""Leader election: never two leaders, whatever their clocks say, and soon a new one after a failure."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kwokfleet.kube import leader_election, leader_lease
from kwokfleet.kube.leader_lease import LeaderLease, LeaseCandidate, LeaseObservation
from kwokfleet.kube.requests import Request

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
ME, OTHER = LeaseCandidate("kube-system", "kwokfleet", "me"), LeaseCandidate("kube-system", "kwokfleet", "other")


class LeaseServer:
    """Stores one Lease like an API server: a write with an old version is rejected."""

    def __init__(self) -> None:
        self.manifest: dict[str, Any] | None = None
        self.version = 0

    def read(self) -> LeaderLease | None:
        """Return the Lease."""
        return leader_lease.parse_lease(self.manifest) if self.manifest else None

    def lease(self) -> LeaderLease:
        """Return the Lease, which must exist."""
        lease = self.read()
        assert lease is not None
        return lease

    def write(self, request: Request) -> bool:
        """Handle a POST or PUT; return whether it was accepted."""
        assert request.body is not None
        body = json.loads(request.body)
        current = str(self.version) if self.manifest else None
        if body["metadata"].get("resourceVersion") != current:
            return False
        self.version += 1
        self.manifest = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        return True


def test_of_two_candidates_one_creates_the_lease() -> None:
    """The second request conflicts."""
    server = LeaseServer()
    assert LeaseObservation().updated(server.read(), 0.0).allows("me", 0.0)
    assert server.write(ME.hold_request(None, NOON))
    assert not server.write(OTHER.hold_request(None, NOON))
    lease = server.lease()
    assert (lease.holder, lease.duration_s, lease.transitions) == ("me", 15.0, 0)


def test_the_leader_renews_and_others_wait() -> None:
    """Others wait while they see renewals."""
    server = LeaseServer()
    server.write(ME.hold_request(None, NOON))
    observation = LeaseObservation()
    for second in range(0, 120, 2):
        observation = observation.updated(server.read(), float(second))
        assert observation.allows("me", float(second))
        assert not observation.allows("other", float(second))
        assert server.write(ME.hold_request(server.read(), NOON + timedelta(seconds=second)))
    assert server.lease().acquired == "2026-03-02T12:00:00.000000Z"
    assert server.lease().transitions == 0


def test_an_expired_lease_is_taken_by_one_candidate() -> None:
    """It was seen unchanged for its duration; the second candidate conflicts."""
    server = LeaseServer()
    server.write(ME.hold_request(None, NOON))
    observation = LeaseObservation().updated(server.read(), 50.0)
    assert not observation.updated(server.read(), 65.0).allows("other", 65.0)
    assert observation.updated(server.read(), 65.1).allows("other", 65.1)
    expired = server.read()
    assert server.write(OTHER.hold_request(expired, NOON))
    assert not server.write(LeaseCandidate("kube-system", "kwokfleet", "third").hold_request(expired, NOON))
    assert (server.lease().holder, server.lease().transitions) == ("other", 1)


def test_a_wrong_clock_neither_takes_nor_keeps_the_lease() -> None:
    """A renewal with a timestamp of last or next year counts from the time it was seen."""
    for skew in (timedelta(days=-365), timedelta(days=365)):
        server = LeaseServer()
        server.write(ME.hold_request(None, NOON + skew))
        observation = LeaseObservation().updated(server.read(), 0.0)
        assert not observation.allows("other", 14.0)
        server.write(ME.hold_request(server.read(), NOON + skew))
        server.write(ME.hold_request(server.read(), NOON + skew))  # same timestamp, new version
        observation = observation.updated(server.read(), 14.0)
        assert not observation.allows("other", 28.0)
        assert observation.allows("other", 29.1)


def test_a_leader_stops_before_another_may_take_over() -> None:
    """Others see a renewal after it was sent, and wait longer than the leader leads."""
    server = LeaseServer()
    for sent in range(0, 40, 2):
        server.write(ME.hold_request(server.read(), NOON + timedelta(seconds=sent)))
        leads_until = sent + leader_election.RENEW_S
        observation = LeaseObservation().updated(server.read(), float(sent))  # the earliest possible
        allowed = {second: observation.allows("other", second) for second in range(sent, sent + 30)}
        assert not any(may_take for second, may_take in allowed.items() if second <= leads_until)
        assert any(allowed.values())


def test_a_released_lease_is_taken_at_once() -> None:
    """The count of transitions continues."""
    server = LeaseServer()
    server.write(ME.hold_request(None, NOON))
    assert server.write(ME.release_request(server.lease()))
    released = server.lease()
    assert LeaseObservation().updated(released, 7.0).allows("other", 7.0)
    assert server.write(OTHER.hold_request(released, NOON))
    assert (server.lease().holder, server.lease().transitions) == ("other", 1)


def test_a_lease_without_fields_is_free() -> None:
    """A user may have created it empty, or removed the fields."""
    for spec in ({}, {"spec": None}, {"spec": {"holderIdentity": None}}):
        lease = leader_lease.parse_lease({"metadata": {"name": "kwokfleet"}, **spec})
        assert LeaseObservation().updated(lease, 0.0).allows("me", 0.0)
