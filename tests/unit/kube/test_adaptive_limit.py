"""How many requests are under way at once."""

from kwokfleet.kube import adaptive_limit
from kwokfleet.kube.adaptive_limit import AdaptiveLimit


def answered(pace: AdaptiveLimit, count: int, took_s: float) -> None:
    """Let so many answers come."""
    for _ in range(count):
        pace.answered(took_s)


def test_quick_answers_let_the_number_grow_up_to_what_is_allowed() -> None:
    """And never beyond."""
    pace = AdaptiveLimit(max_inflight=40)
    answered(pace, 10_000, 0.01)
    assert pace.limit == 40
    assert pace.may_send(39)
    assert not pace.may_send(40)


def test_slow_answers_let_it_shrink_to_one() -> None:
    """One request at a time always goes."""
    pace = AdaptiveLimit()
    answered(pace, 10_000, 5.0)
    assert pace.limit == 1
    assert pace.may_send(0)
    assert not pace.may_send(1)


def test_answers_between_quick_and_slow_change_nothing() -> None:
    """That is the pace the API server bears."""
    pace = AdaptiveLimit()
    answered(pace, 1_000, (adaptive_limit.FAST_RESPONSE_S + adaptive_limit.SLOW_RESPONSE_S) / 2)
    assert pace.limit == adaptive_limit.INITIAL_INFLIGHT


def test_a_small_limit_is_kept_from_the_start() -> None:
    """Also below where one would begin."""
    pace = AdaptiveLimit(max_inflight=2)
    assert [pace.may_send(count) for count in (0, 1, 2)] == [True, True, False]


def test_a_refusal_halves_it_and_brings_silence() -> None:
    """Nothing is sent before the API server wants to hear of us again."""
    pace = AdaptiveLimit()
    pace.refused(100.0, 3.0)
    assert pace.limit == adaptive_limit.INITIAL_INFLIGHT / 2
    assert pace.slot(101.0) == 2.0
    assert pace.slot(103.5) == 0.0


def test_what_is_refused_together_is_one_refusal() -> None:
    """Many requests were under way; a later one counts again, and the number never falls below one."""
    pace = AdaptiveLimit()
    for _ in range(10):
        pace.refused(100.0, 3.0)
    assert pace.limit == adaptive_limit.INITIAL_INFLIGHT / 2
    for moment in range(10):
        pace.refused(200.0 + 10 * moment, 3.0)
    assert pace.limit == 1


def test_requests_a_second_are_kept() -> None:
    """Each takes the next moment that is free, however many ask at once."""
    pace = AdaptiveLimit(qps=4)
    assert [pace.slot(10.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert pace.slot(20.0) == 0.0


def test_without_such_a_limit_nobody_waits() -> None:
    """Whatever came before."""
    pace = AdaptiveLimit()
    assert [pace.slot(10.0) for _ in range(1_000)] == [0.0] * 1_000
