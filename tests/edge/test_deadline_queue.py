"""DeadlineQueue: each task runs once and not early, on few threads, and queues take turns."""

import threading
import time

from kwokfleet.waves import deadline_queue
from tests.harness import waiting


def test_each_task_runs_once_and_not_early() -> None:
    """In any order of insertion."""
    done: list[tuple[int, float]] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 4)
    queue, began = deadline_queue.TaskQueue(), time.monotonic()
    moments = {number: began + (number * 37 % 100) / 200 for number in range(100)}
    for number, due in moments.items():
        deadlines.put(queue, due, lambda number=number: done.append((number, time.monotonic())))  # type: ignore[misc]
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
    queue = deadline_queue.TaskQueue()
    for _ in range(30):
        deadlines.put(queue, 0.0, task)
    for _ in range(30):
        assert left.acquire(timeout=30)
    assert 1 <= most <= 3


def test_queues_take_turns() -> None:
    """A short queue does not wait for a long one."""
    order: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    held, gate = threading.Event(), deadline_queue.TaskQueue()
    deadlines.put(gate, 0.0, lambda: _wait(held))
    long, short = deadline_queue.TaskQueue(), deadline_queue.TaskQueue()
    for _ in range(20):
        deadlines.put(long, 0.0, lambda: order.append("long"))
    for _ in range(3):
        deadlines.put(short, 0.0, lambda: order.append("short"))
    held.set()
    waiting.until(lambda: len(order) == 23)
    assert order[:6].count("short") == 3


def _wait(held: threading.Event) -> None:
    assert held.wait(30)


def test_a_closed_queue_drops_its_tasks() -> None:
    """Other queues are not affected."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 2)
    one, other = deadline_queue.TaskQueue(), deadline_queue.TaskQueue()
    soon = time.monotonic() + 0.2
    deadlines.put(one, soon, lambda: done.append("one"))
    deadlines.put(other, soon + 0.1, lambda: done.append("other"))
    deadlines.remove(one)
    waiting.until(lambda: done)
    assert done == ["other"]


def test_a_nearer_deadline_wakes_the_waiting_thread() -> None:
    """It waits for a later deadline of another queue."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    queue = deadline_queue.TaskQueue()
    deadlines.put(queue, time.monotonic() + 3600, lambda: done.append("late"))
    time.sleep(0.05)
    deadlines.put(deadline_queue.TaskQueue(), time.monotonic() + 0.05, lambda: done.append("soon"))
    waiting.until(lambda: done)
    assert done == ["soon"]


def test_a_failing_task_does_not_end_the_thread() -> None:
    """All queues share the threads."""
    done: list[str] = []
    deadlines = deadline_queue.DeadlineQueue(lambda: 1)
    queue = deadline_queue.TaskQueue()
    deadlines.put(queue, 0.0, lambda: done.remove("what is not there"))
    deadlines.put(queue, 0.0, lambda: done.append("next"))
    waiting.until(lambda: done)
