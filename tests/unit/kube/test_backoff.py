"""Exponential backoff."""

from kwokfleet.kube import backoff


def test_pauses_double_up_to_the_maximum() -> None:
    """A reset starts with the first pause again."""
    pauses = backoff.Backoff(0.5, 15.0)
    assert [pauses.next_s() for _ in range(7)] == [0.5, 1, 2, 4, 8, 15, 15]
    pauses.reset()
    assert pauses.next_s() == 0.5


def test_no_failure_means_no_pause() -> None:
    """Any number of failures stays below the maximum."""
    assert backoff.pause_s(0, 1.0, 300.0) == 0.0
    assert backoff.pause_s(10_000, 1.0, 300.0) == 300.0
