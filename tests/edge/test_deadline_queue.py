"""The pacer: everything is done once and not before its moment, by few threads, and lines take turns."""

import threading
import time

from kwokfleet.waves import deadline_queue
from tests.harness import waiting


def test_everything_is_done_once_and_never_early() -> None:
    """Whatever the order in which it was put in."""
    done: list[tuple[int, float]] = []
    made = deadline_queue.DeadlineQueue(lambda: 4)
    line, began = made.task_queue(), time.monotonic()
    moments = {number: began + (number * 37 % 100) / 200 for number in range(100)}
    for number, due in moments.items():
        line.put(due, lambda number=number: done.append((number, time.monotonic())))  # type: ignore[misc]
    waiting.until(lambda: len(done) == 100)
    assert sorted(number for number, _ in done) == list(range(100))
    assert all(at >= moments[number] for number, at in done)


def test_no_more_is_under_way_than_allowed() -> None:
    """Also when all is due at once."""
    lock, now, most = threading.Lock(), 0, 0
    left = threading.Semaphore(0)

    def act() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        left.release()

    made = deadline_queue.DeadlineQueue(lambda: 3)
    line = made.task_queue()
    for _ in range(30):
        line.put(0.0, act)
    for _ in range(30):
        assert left.acquire(timeout=30)
    assert 1 <= most <= 3


def test_lines_take_turns() -> None:
    """One that comes later with little does not wait for all that the first has."""
    order: list[str] = []
    made = deadline_queue.DeadlineQueue(lambda: 1)
    held, gate = threading.Event(), made.task_queue()
    gate.put(0.0, lambda: _wait(held))
    long, short = made.task_queue(), made.task_queue()
    for _ in range(20):
        long.put(0.0, lambda: order.append("long"))
    for _ in range(3):
        short.put(0.0, lambda: order.append("short"))
    held.set()
    waiting.until(lambda: len(order) == 23)
    assert order[:6].count("short") == 3


def _wait(held: threading.Event) -> None:
    assert held.wait(30)


def test_a_line_that_is_closed_is_forgotten() -> None:
    """What waits in it is never done; other lines go on."""
    done: list[str] = []
    made = deadline_queue.DeadlineQueue(lambda: 2)
    one, other = made.task_queue(), made.task_queue()
    soon = time.monotonic() + 0.2
    one.put(soon, lambda: done.append("one"))
    other.put(soon + 0.1, lambda: done.append("other"))
    one.close()
    waiting.until(lambda: done)
    assert done == ["other"]


def test_what_comes_sooner_is_not_kept_waiting_by_what_comes_later() -> None:
    """Whoever waits for a moment that is far away is woken for one that is near."""
    done: list[str] = []
    made = deadline_queue.DeadlineQueue(lambda: 1)
    line = made.task_queue()
    line.put(time.monotonic() + 3600, lambda: done.append("late"))
    time.sleep(0.05)
    made.task_queue().put(time.monotonic() + 0.05, lambda: done.append("soon"))
    waiting.until(lambda: done)
    assert done == ["soon"]


def test_a_failing_act_ends_nothing_but_itself() -> None:
    """The threads are everybody's."""
    done: list[str] = []
    made = deadline_queue.DeadlineQueue(lambda: 1)
    line = made.task_queue()
    line.put(0.0, lambda: done.remove("what is not there"))
    line.put(0.0, lambda: done.append("next"))
    waiting.until(lambda: done)
