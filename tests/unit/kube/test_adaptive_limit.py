"""The adaptive concurrency limit."""

from kwokfleet.kube import adaptive_limit
from kwokfleet.kube.adaptive_limit import AdaptiveLimit


def record_responses(limit: AdaptiveLimit, count: int, took_s: float) -> None:
    """Record a number of equal responses."""
    for _ in range(count):
        limit.record_response(took_s)


def test_fast_responses_raise_the_limit_up_to_the_maximum() -> None:
    """It never exceeds the maximum."""
    limit = AdaptiveLimit(max_inflight=40)
    record_responses(limit, 10_000, 0.01)
    assert limit.limit == 40
    assert limit.may_send(39)
    assert not limit.may_send(40)


def test_slow_responses_lower_the_limit_to_one() -> None:
    """One request at a time is always allowed."""
    limit = AdaptiveLimit()
    record_responses(limit, 10_000, 5.0)
    assert limit.limit == 1
    assert limit.may_send(0)
    assert not limit.may_send(1)


def test_responses_between_fast_and_slow_keep_the_limit() -> None:
    """The limit is then the one that the API server can handle."""
    limit = AdaptiveLimit()
    record_responses(limit, 1_000, (adaptive_limit.FAST_RESPONSE_S + adaptive_limit.SLOW_RESPONSE_S) / 2)
    assert limit.limit == adaptive_limit.INITIAL_INFLIGHT


def test_a_maximum_below_the_initial_limit_applies_from_the_start() -> None:
    """The third request has to wait."""
    limit = AdaptiveLimit(max_inflight=2)
    assert [limit.may_send(count) for count in (0, 1, 2)] == [True, True, False]


def test_a_rejection_halves_the_limit_and_pauses() -> None:
    """No request is sent before Retry-After has passed."""
    limit = AdaptiveLimit()
    limit.record_rejection(100.0, 3.0)
    assert limit.limit == adaptive_limit.INITIAL_INFLIGHT / 2
    assert limit.reserve_slot(101.0) == 2.0
    assert limit.reserve_slot(103.5) == 0.0


def test_rejections_during_a_pause_count_once() -> None:
    """A later one counts again, and the limit never falls below one."""
    limit = AdaptiveLimit()
    for _ in range(10):
        limit.record_rejection(100.0, 3.0)
    assert limit.limit == adaptive_limit.INITIAL_INFLIGHT / 2
    for number in range(10):
        limit.record_rejection(200.0 + 10 * number, 3.0)
    assert limit.limit == 1


def test_requests_per_second_are_limited() -> None:
    """Each request reserves the next free slot."""
    limit = AdaptiveLimit(qps=4)
    assert [limit.reserve_slot(10.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert limit.reserve_slot(20.0) == 0.0


def test_without_a_rate_limit_no_request_waits() -> None:
    """Any number of slots is free at once."""
    limit = AdaptiveLimit()
    assert [limit.reserve_slot(10.0) for _ in range(1_000)] == [0.0] * 1_000
