"""Backoff after failures."""

from itertools import pairwise

from kwokfleet.daemon import fleet_backoff
from kwokfleet.daemon.fleet_backoff import BackoffState


def failed(times: int, now: float = 100.0) -> BackoffState:
    """Return the backoff after a number of consecutive failures."""
    state: BackoffState | None = None
    for number in range(times):
        state = fleet_backoff.after(state, now, f"error {number}")
    assert state is not None
    return state


def test_a_retry_is_due_after_the_backoff_and_not_before() -> None:
    """One second after the first failure."""
    state = failed(1)
    assert not state.is_over(100.0 + fleet_backoff.FIRST_S - 0.001)
    assert state.is_over(100.0 + fleet_backoff.FIRST_S)


def test_the_backoff_doubles_up_to_five_minutes() -> None:
    """Thousands of failures do not overflow."""
    backoffs_s = [failed(times).until - 100.0 for times in range(1, 12)]
    assert all(later == min(2 * earlier, fleet_backoff.LONGEST_S) for earlier, later in pairwise(backoffs_s))
    assert failed(5_000).until == 100.0 + fleet_backoff.LONGEST_S


def test_the_last_error_and_the_number_of_failures_are_known() -> None:
    """The status reports them."""
    assert (failed(3).why, failed(3).failures) == ("error 2", 3)
