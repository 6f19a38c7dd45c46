"""Bounded parallelism: applies a function to many items in a few threads."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_JOIN_S = 0.5
"""Upper bound of one join, so that the main thread handles signals."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def run_all(
    act: Callable[[ItemT], ResultT],
    items: Sequence[ItemT],
    max_threads: int,
    stop: threading.Event | None = None,
    on_done: Callable[[int], None] = lambda _done: None,
) -> list[ResultT | None]:
    """Return the results in the order of the items; None for items that a stop left out.

    The first exception stops all threads and is raised here. *on_done* gets the number of finished items.
    """
    indexes, results = iter(range(len(items))), list[ResultT | None]([None] * len(items))
    lock, done, failures = threading.Lock(), itertools.count(1), list[Exception]()

    def work() -> None:
        while not failures and not (stop is not None and stop.is_set()):
            with lock:
                index = next(indexes, -1)
            if index < 0:
                return
            try:
                results[index] = act(items[index])
                on_done(next(done))
            except Exception as error:  # noqa: BLE001  # raised below, in the calling thread
                failures.append(error)

    threads = [
        threading.Thread(target=work, name=f"parallel-{number}", daemon=True)
        for number in range(min(len(items), max_threads))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_JOIN_S)
    if failures:
        raise failures[0]
    return results
