"""How long something that failed is left alone."""

from itertools import pairwise

from kwokfleet.daemon import backoff
from kwokfleet.daemon.backoff import BackoffState


def failed(times: int, now: float = 100.0) -> BackoffState:
    """Return the pause after so many failures in a row."""
    rest: BackoffState | None = None
    for number in range(times):
        rest = backoff.after(rest, now, f"trouble {number}")
    assert rest is not None
    return rest


def test_it_is_tried_again_when_the_pause_is_over_and_not_before() -> None:
    """A second after the first failure."""
    rest = failed(1)
    assert not rest.is_over(100.0 + backoff.FIRST_S - 0.001)
    assert rest.is_over(100.0 + backoff.FIRST_S)


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_five_minutes() -> None:
    """However often it failed: not longer, and no number grows too large."""
    pauses = [failed(times).until - 100.0 for times in range(1, 12)]
    assert all(later == min(2 * earlier, backoff.LONGEST_S) for earlier, later in pairwise(pauses))
    assert failed(5_000).until == 100.0 + backoff.LONGEST_S


def test_the_last_reason_is_told() -> None:
    """What is wrong now, and how often it went wrong."""
    assert (failed(3).why, failed(3).failures) == ("trouble 2", 3)
