"""The alarm clock, on the real clock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from kwokfleet.daemon import timer

PATIENCE_S = 30
SOON, LATER, FAR = timedelta(seconds=0.2), timedelta(seconds=0.6), timedelta(days=300)


class Bell:
    """Counts how often it rings."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = threading.Condition()

    def ring(self) -> None:
        """Ring."""
        with self._rung:
            self.count += 1
            self._rung.notify_all()

    def heard(self, times: int = 1) -> bool:
        """Wait until it has rung so often."""
        with self._rung:
            return self._rung.wait_for(lambda: self.count >= times, PATIENCE_S)


@contextmanager
def alarm() -> Iterator[tuple[timer.OneShotTimer, Bell]]:
    """Give an alarm clock and its bell."""
    bell = Bell()
    made = timer.OneShotTimer(bell.ring)
    try:
        yield made, bell
    finally:
        made.close()


def sleep_past(moment: datetime) -> None:
    """Return when another alarm clock has rung at a moment."""
    with alarm() as (clock, bell):
        clock.set(moment)
        assert bell.heard()


def test_it_rings_once_and_not_before() -> None:
    """And again when it is set again."""
    with alarm() as (clock, bell):
        first = datetime.now(UTC) + SOON
        clock.set(first)
        assert bell.heard()
        assert datetime.now(UTC) >= first
        clock.set(datetime.now(UTC) + SOON)
        assert bell.heard(2)
        sleep_past(datetime.now(UTC) + LATER)
        assert bell.count == 2


def test_a_moment_that_is_past_rings_at_once() -> None:
    """Late is better than never."""
    with alarm() as (clock, bell):
        clock.set(datetime.now(UTC) - timedelta(hours=1))
        assert bell.heard()


def test_it_can_be_set_to_an_earlier_moment() -> None:
    """It does not sleep through it."""
    with alarm() as (clock, bell):
        clock.set(datetime.now(UTC) + FAR)
        clock.set(datetime.now(UTC) + SOON)
        assert bell.heard()


def test_it_can_be_set_to_a_later_moment_or_to_none() -> None:
    """What it was set to before does not ring any more."""
    for other in (datetime.now(UTC) + FAR, None):
        with alarm() as (clock, bell):
            moment = datetime.now(UTC) + LATER
            clock.set(moment)
            clock.set(other)
            sleep_past(moment + SOON)
            assert bell.count == 0


def test_setting_it_to_the_same_moment_again_changes_nothing() -> None:
    """It rings once."""
    with alarm() as (clock, bell):
        moment = datetime.now(UTC) + SOON
        for _ in range(100):
            clock.set(moment)
        assert bell.heard()
        clock.set(moment)
        sleep_past(datetime.now(UTC) + SOON)
        assert bell.count == 1


def test_a_moment_that_has_come_is_not_lost_when_it_is_set_anew() -> None:
    """Who is about to ring, and is told of the next moment, rings for this one first."""
    with alarm() as (clock, bell):
        for number in range(1, 200):
            moment = datetime.now(UTC) + timedelta(milliseconds=1)
            clock.set(moment)
            while datetime.now(UTC) < moment:
                pass
            clock.set(datetime.now(UTC) + FAR)
            assert bell.heard(number)
        assert bell.count == number


def test_it_never_rings_after_it_is_closed() -> None:
    """Neither for what it was set to nor for what it is set to afterwards."""
    bell = Bell()
    clock = timer.OneShotTimer(bell.ring)
    moment = datetime.now(UTC) + LATER
    clock.set(moment)
    clock.close()
    sleep_past(moment + SOON)
    clock.set(datetime.now(UTC) - timedelta(seconds=1))
    clock.set(datetime.now(UTC) + SOON)
    clock.set(None)
    sleep_past(datetime.now(UTC) + LATER)
    assert bell.count == 0
