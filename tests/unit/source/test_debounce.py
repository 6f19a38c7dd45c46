"""When to act on a storm of events."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.source.debounce import MAX_S, QUIET_S, Debouncer


def test_nothing_happens_without_an_event() -> None:
    """Not even after a long time."""
    storm = Debouncer()
    assert storm.due is None
    assert not storm.fires(1e9)


def test_it_fires_once_when_it_has_been_quiet() -> None:
    """Not before, and not again."""
    storm = Debouncer(quiet_s=1, max_s=10)
    storm.event(5)
    assert not storm.fires(5.9)
    assert storm.fires(6)
    assert not storm.fires(7)
    assert storm.due is None


def test_each_event_puts_it_off() -> None:
    """Who writes in steps is waited for."""
    storm = Debouncer(quiet_s=1, max_s=10)
    storm.event(5)
    storm.event(5.9)
    assert not storm.fires(6.5)
    assert storm.fires(6.9)


def test_a_storm_without_end_is_acted_on_in_time() -> None:
    """At the latest max_s after its first event, and then again after the next."""
    storm = Debouncer(quiet_s=1, max_s=3)
    fired = []
    for tenth in range(100):
        storm.event(tenth / 10)
        if storm.fires(tenth / 10):
            fired.append(tenth / 10)
    assert fired == [3.0, 6.1, 9.2]


@given(st.lists(st.floats(0.001, 2), min_size=1, max_size=50))
def test_no_event_is_lost_and_none_waits_too_long(pauses: list[float]) -> None:
    """Whatever the rhythm: after each event it fires within the quiet time, or max_s after the first of the storm."""
    storm = Debouncer()
    now, waiting = 0.0, None
    for pause in pauses:
        storm.event(now)
        waiting = now if waiting is None else waiting
        due = storm.due
        assert due is not None
        assert due <= min(now + QUIET_S, waiting + MAX_S)
        now += pause
        if storm.fires(now):
            waiting = None
    assert waiting is None or storm.fires(now + QUIET_S)
