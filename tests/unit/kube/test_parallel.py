"""Bounded parallelism."""

import threading

import pytest

from kwokfleet.kube import parallel


def test_results_have_the_order_of_the_items() -> None:
    """The progress callback counts every item once."""
    counts: list[int] = []
    assert parallel.run_all(str, range(20), 4, on_done=counts.append) == [str(number) for number in range(20)]
    assert sorted(counts) == list(range(1, 21))


def test_no_more_threads_than_allowed_run_at_once() -> None:
    """Four items wait at a barrier of four; a fifth thread would break it."""
    barrier, running, most = threading.Barrier(4, timeout=5), set[int](), list[int]()

    def act(_item: int) -> None:
        running.add(threading.get_ident())
        most.append(len(running))
        barrier.wait()

    parallel.run_all(act, range(8), 4)
    assert max(most) == 4


def test_the_first_error_stops_the_rest_and_is_raised() -> None:
    """With one thread, the items after it are not touched."""
    seen: list[int] = []

    def act(item: int) -> None:
        seen.append(item)
        if item == 2:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        parallel.run_all(act, range(9), 1)
    assert seen == [0, 1, 2]


def test_a_stop_leaves_the_rest_without_result() -> None:
    """Results that exist are returned."""
    stop = threading.Event()

    def act(item: int) -> int:
        stop.set()
        return item

    assert parallel.run_all(act, [7, 8, 9], 1, stop) == [7, None, None]
