"""DeadlineQueue: each task runs once and not early, on few threads, and queues take turns."""

import threading
import time

from kwokfleet.waves import deadline_queue
from tests.harness import waiting


def test_each_task_runs_once_and_not_early() -> None:
    """In any order of insertion."""
    done: list[tuple[int, float]] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 4)
    queue, began = deadlines.task_queue(), time.monotonic()
    moments = {number: began + (number * 37 % 100) / 200 for number in range(100)}
    for number, due in moments.items():
        queue.put(due, lambda number=number: done.append((number, time.monotonic())))  # type: ignore[misc]
    waiting.until(lambda: len(done) == 100)
    assert sorted(number for number, _ in done) == list(range(100))
    assert all(at >= moments[number] for number, at in done)


def test_the_number_of_threads_is_limited() -> None:
    """Also when all tasks are due at once."""
    lock, now, most = threading.Lock(), 0, 0
    left = threading.Semaphore(0)

    def task() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        left.release()

    deadlines = deadline_queue.DeadlineQueue(lambda: 3)
    queue = deadlines.task_queue()
    for _ in range(30):
        queue.put(0.0, task)
    for _ in range(30):
        assert left.acquire(timeout=30)
    assert 1 <= most <= 3


def test_queues_take_turns() -> None:
    """A short queue does not wait for a long one."""
    order: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    held, gate = threading.Event(), deadlines.task_queue()
    gate.put(0.0, lambda: _wait(held))
    long, short = deadlines.task_queue(), deadlines.task_queue()
    for _ in range(20):
        long.put(0.0, lambda: order.append("long"))
    for _ in range(3):
        short.put(0.0, lambda: order.append("short"))
    held.set()
    waiting.until(lambda: len(order) == 23)
    assert order[:6].count("short") == 3


def _wait(held: threading.Event) -> None:
    assert held.wait(30)


def test_a_closed_queue_drops_its_tasks() -> None:
    """Other queues are not affected."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 2)
    one, other = deadlines.task_queue(), deadlines.task_queue()
    soon = time.monotonic() + 0.2
    one.put(soon, lambda: done.append("one"))
    other.put(soon + 0.1, lambda: done.append("other"))
    one.close()
    waiting.until(lambda: done)
    assert done == ["other"]


def test_a_nearer_deadline_wakes_the_waiting_thread() -> None:
    """It waits for a later deadline of another queue."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    queue = deadlines.task_queue()
    queue.put(time.monotonic() + 3600, lambda: done.append("late"))
    time.sleep(0.05)
    deadlines.task_queue().put(time.monotonic() + 0.05, lambda: done.append("soon"))
    waiting.until(lambda: done)
    assert done == ["soon"]


def test_a_failing_task_does_not_end_the_thread() -> None:
    """All queues share the threads."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    queue = deadlines.task_queue()
    queue.put(0.0, lambda: done.remove("what is not there"))
    queue.put(0.0, lambda: done.append("next"))
    waiting.until(lambda: done)
