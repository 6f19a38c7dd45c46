"""Debouncing of file events."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.source.debounce import MAX_S, QUIET_S, Debouncer


def test_without_an_event_it_never_fires() -> None:
    """For any elapsed time."""
    storm = Debouncer()
    assert storm.due is None
    assert not storm.fires(1e9)


def test_it_fires_once_after_the_quiet_period() -> None:
    """Not earlier, and not twice."""
    storm = Debouncer(quiet_s=1, max_s=10)
    storm.event(5)
    assert not storm.fires(5.9)
    assert storm.fires(6)
    assert not storm.fires(7)
    assert storm.due is None


def test_each_event_restarts_the_quiet_period() -> None:
    """Files that are written in several steps are read once."""
    storm = Debouncer(quiet_s=1, max_s=10)
    storm.event(5)
    storm.event(5.9)
    assert not storm.fires(6.5)
    assert storm.fires(6.9)


def test_continuous_events_fire_after_max_s() -> None:
    """Counted from the first event, and again from the next one."""
    storm = Debouncer(quiet_s=1, max_s=3)
    fired = []
    for tenth in range(100):
        storm.event(tenth / 10)
        if storm.fires(tenth / 10):
            fired.append(tenth / 10)
    assert fired == [3.0, 6.1, 9.2]


@given(st.lists(st.floats(0.001, 2), min_size=1, max_size=50))
def test_every_event_fires_within_max_s(pauses: list[float]) -> None:
    """For any pauses: within the quiet period after an event, or max_s after the first one."""
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
