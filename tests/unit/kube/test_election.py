"""Who leads: never two at once, whatever their clocks say; and somebody soon, whatever happens to the leader."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kwokfleet.kube import election
from kwokfleet.kube.election import ElectionStep, LeaderLease, LeaseCandidate, LeaseObservation, LeaseTiming
from kwokfleet.kube.requests import Request

TIMING = LeaseTiming()
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
ME, OTHER = LeaseCandidate("kube-system", "kwokfleet", "me"), LeaseCandidate("kube-system", "kwokfleet", "other")


class Server:
    """What an API server does with a Lease: versions, and refusing what was read too long ago."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def read(self) -> LeaderLease | None:
        """Answer a GET."""
        return election.parse_lease(self.lease) if self.lease else None

    def write(self, request: Request) -> bool:
        """Take a POST or a PUT; return whether it was accepted."""
        assert request.body is not None
        asked = json.loads(request.body)
        known = str(self.version) if self.lease else None
        if asked["metadata"].get("resourceVersion") != known:
            return False
        self.version += 1
        self.lease = asked | {"metadata": asked["metadata"] | {"resourceVersion": str(self.version)}}
        return True


def test_the_first_one_creates_the_lease_and_of_two_only_one() -> None:
    """The second meets a Lease that is there already."""
    server = Server()
    assert election.next_step(LeaseObservation().updated(server.read(), 0.0), "me", 0.0) is ElectionStep.CREATE
    assert server.write(ME.hold(None, TIMING, NOON))
    assert not server.write(OTHER.hold(None, TIMING, NOON))
    record = server.read()
    assert record is not None
    assert (record.holder, record.duration_s, record.transitions) == ("me", 15.0, 0)


def test_the_leader_renews_and_others_wait() -> None:
    """As long as they see it renewed."""
    server = Server()
    server.write(ME.hold(None, TIMING, NOON))
    sight = LeaseObservation()
    for second in range(0, 120, 2):
        sight = sight.updated(server.read(), float(second))
        assert election.next_step(sight, "me", float(second)) is ElectionStep.RENEW
        assert election.next_step(sight, "other", float(second)) is ElectionStep.WAIT
        assert server.write(ME.hold(server.read(), TIMING, NOON + timedelta(seconds=second)))
    record = server.read()
    assert record is not None
    assert record.acquired == "2026-03-02T12:00:00.000000Z"
    assert record.transitions == 0


def test_a_lease_that_nobody_renews_is_taken_by_one() -> None:
    """Once it was seen unchanged for as long as it lasts; of two who try, the second is refused."""
    server = Server()
    server.write(ME.hold(None, TIMING, NOON))
    sight = LeaseObservation().updated(server.read(), 50.0)
    assert election.next_step(sight.updated(server.read(), 65.0), "other", 65.0) is ElectionStep.WAIT
    assert election.next_step(sight.updated(server.read(), 65.1), "other", 65.1) is ElectionStep.TAKE
    read = server.read()
    assert server.write(OTHER.hold(read, TIMING, NOON))
    assert not server.write(LeaseCandidate("kube-system", "kwokfleet", "third").hold(read, TIMING, NOON))
    record = server.read()
    assert record is not None
    assert (record.holder, record.transitions) == ("other", 1)


def test_a_wrong_clock_neither_takes_nor_keeps_the_lease() -> None:
    """A renewal that is stamped a year ago or ahead counts from when it was seen."""
    for skew in (timedelta(days=-365), timedelta(days=365)):
        server = Server()
        server.write(ME.hold(None, TIMING, NOON + skew))
        sight = LeaseObservation().updated(server.read(), 0.0)
        assert election.next_step(sight, "other", 14.0) is ElectionStep.WAIT
        server.write(ME.hold(server.read(), TIMING, NOON + skew))
        server.write(ME.hold(server.read(), TIMING, NOON + skew))  # the same stamp, and yet another state
        sight = sight.updated(server.read(), 14.0)
        assert election.next_step(sight, "other", 28.0) is ElectionStep.WAIT
        assert election.next_step(sight, "other", 29.1) is ElectionStep.TAKE


def test_a_leader_ends_before_anybody_may_take_over() -> None:
    """However late others look, and however quickly: they see a renewal after it was sent, and wait longer."""
    server = Server()
    for sent in range(0, 40, 2):
        server.write(ME.hold(server.read(), TIMING, NOON + timedelta(seconds=sent)))
        leads_until = sent + TIMING.renew_s
        sight = LeaseObservation().updated(server.read(), float(sent))  # the earliest that anybody can see it
        steps = {second: election.next_step(sight, "other", second) for second in range(sent, sent + 30)}
        assert {step for second, step in steps.items() if second <= leads_until} == {ElectionStep.WAIT}
        assert ElectionStep.TAKE in steps.values()


def test_what_is_given_up_is_taken_at_once() -> None:
    """Nobody waits for its end, and the count of changes goes on."""
    server = Server()
    server.write(ME.hold(None, TIMING, NOON))
    held = server.read()
    assert held is not None
    assert server.write(ME.release(held))
    free = server.read()
    assert free is not None
    assert election.next_step(LeaseObservation().updated(free, 7.0), "other", 7.0) is ElectionStep.TAKE
    assert server.write(OTHER.hold(free, TIMING, NOON))
    taken = server.read()
    assert taken is not None
    assert (taken.holder, taken.transitions) == ("other", 1)


def test_a_lease_without_fields_is_free() -> None:
    """Somebody made an empty one, or kubectl edit took them out."""
    for spec in ({}, {"spec": None}, {"spec": {"holderIdentity": None}}):
        record = election.parse_lease({"metadata": {"name": "kwokfleet"}, **spec})
        assert election.next_step(LeaseObservation().updated(record, 0.0), "me", 0.0) is ElectionStep.TAKE
