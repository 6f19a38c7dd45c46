"""The one-shot timer, on the real clock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from kwokfleet.daemon import timer

PATIENCE_S = 30
SOON, LATER, FAR = timedelta(seconds=0.2), timedelta(seconds=0.6), timedelta(days=300)


class Counter:
    """Counts how often the timer fired."""

    def __init__(self) -> None:
        self.count = 0
        self._fired = threading.Condition()

    def fire(self) -> None:
        """Count one firing."""
        with self._fired:
            self.count += 1
            self._fired.notify_all()

    def wait_for(self, times: int = 1) -> bool:
        """Wait until the timer has fired this often."""
        with self._fired:
            return self._fired.wait_for(lambda: self.count >= times, PATIENCE_S)


@contextmanager
def running_timer() -> Iterator[tuple[timer.OneShotTimer, Counter]]:
    """Return a timer and its counter."""
    counter = Counter()
    one_shot = timer.OneShotTimer(counter.fire)
    try:
        yield one_shot, counter
    finally:
        one_shot.close()


def sleep_past(at: datetime) -> None:
    """Wait until a time has passed."""
    with running_timer() as (one_shot, counter):
        one_shot.set(at)
        assert counter.wait_for()


def test_it_fires_once_and_not_early() -> None:
    """It fires again when it is set again."""
    with running_timer() as (one_shot, counter):
        first = datetime.now(UTC) + SOON
        one_shot.set(first)
        assert counter.wait_for()
        assert datetime.now(UTC) >= first
        one_shot.set(datetime.now(UTC) + SOON)
        assert counter.wait_for(2)
        sleep_past(datetime.now(UTC) + LATER)
        assert counter.count == 2


def test_a_past_time_fires_at_once() -> None:
    """A late timer still fires."""
    with running_timer() as (one_shot, counter):
        one_shot.set(datetime.now(UTC) - timedelta(hours=1))
        assert counter.wait_for()


def test_it_can_be_set_to_an_earlier_time() -> None:
    """The earlier time counts."""
    with running_timer() as (one_shot, counter):
        one_shot.set(datetime.now(UTC) + FAR)
        one_shot.set(datetime.now(UTC) + SOON)
        assert counter.wait_for()


def test_it_can_be_set_to_a_later_time_or_to_none() -> None:
    """It does not fire at the time set before."""
    for other in (datetime.now(UTC) + FAR, None):
        with running_timer() as (one_shot, counter):
            at = datetime.now(UTC) + LATER
            one_shot.set(at)
            one_shot.set(other)
            sleep_past(at + SOON)
            assert counter.count == 0


def test_setting_the_same_time_again_changes_nothing() -> None:
    """It fires once."""
    with running_timer() as (one_shot, counter):
        at = datetime.now(UTC) + SOON
        for _ in range(100):
            one_shot.set(at)
        assert counter.wait_for()
        one_shot.set(at)
        sleep_past(datetime.now(UTC) + SOON)
        assert counter.count == 1


def test_a_reached_time_is_not_lost_when_the_timer_is_set_again() -> None:
    """It fires for the reached time first."""
    with running_timer() as (one_shot, counter):
        for number in range(1, 200):
            at = datetime.now(UTC) + timedelta(milliseconds=1)
            one_shot.set(at)
            while datetime.now(UTC) < at:
                pass
            one_shot.set(datetime.now(UTC) + FAR)
            assert counter.wait_for(number)
        assert counter.count == number


def test_it_never_fires_after_close() -> None:
    """Neither for the time set before nor for one set afterwards."""
    counter = Counter()
    one_shot = timer.OneShotTimer(counter.fire)
    at = datetime.now(UTC) + LATER
    one_shot.set(at)
    one_shot.close()
    sleep_past(at + SOON)
    one_shot.set(datetime.now(UTC) - timedelta(seconds=1))
    one_shot.set(datetime.now(UTC) + SOON)
    one_shot.set(None)
    sleep_past(datetime.now(UTC) + LATER)
    assert counter.count == 0
