"""Runs tasks at their deadlines on a small shared thread pool. Each Run has its own TaskQueue.

One thread waits for the earliest deadline and runs that task itself. Another thread then takes its place, so no
task is handed over between threads when it is due. Deadlines are absolute: a late task does not delay later ones.
When more tasks are due than threads are free, the queues take turns.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger()

IDLE_S = 30.0
"""A thread ends after this time without a task."""

Task = Callable[[], None]


@dataclass(eq=False, slots=True)
class TaskQueue:
    """The tasks of one Run."""

    tasks: list[tuple[float, int, Task]] = field(default_factory=list)
    """A heap of monotonic deadline, sequence number and task."""
    last_turn: int = 0


class DeadlineQueue:
    """The thread pool and the TaskQueues it serves."""

    def __init__(self, max_threads: Callable[[], int]) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._deadline = threading.Condition(self._lock)
        """One thread waits here for the earliest deadline."""
        self._idle = threading.Condition(self._lock)
        """All other threads without a task wait here."""
        self._queues: list[TaskQueue] = []
        self._turns = itertools.count(1)
        self._sequence = itertools.count()
        self._has_waiter = False
        self._threads = self._idle_threads = 0

    def put(self, queue: TaskQueue, due: float, task: Task) -> None:
        """Add a task with a monotonic deadline to a TaskQueue."""
        with self._lock:
            is_earliest = not queue.tasks or due < queue.tasks[0][0]
            heapq.heappush(queue.tasks, (due, next(self._sequence), task))
            if queue not in self._queues:
                self._queues.append(queue)
            if is_earliest:
                self._deadline.notify()
            self._ensure_waiter()

    def remove(self, queue: TaskQueue) -> None:
        """Remove a TaskQueue and its tasks."""
        with self._lock:
            queue.tasks.clear()
            if queue in self._queues:
                self._queues.remove(queue)

    def _ensure_waiter(self) -> None:
        """Wake or start a thread if none waits for the earliest deadline."""
        if self._has_waiter or not self._queues:
            return
        if self._idle_threads:
            self._idle.notify()
        elif self._threads < max(1, self._max_threads()):
            self._threads += 1
            threading.Thread(target=self._run_tasks, name=f"submitter-{self._threads}", daemon=True).start()

    def _run_tasks(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception:  # the threads are shared: a bug in one task must not end them
                log.exception("submitter_failed")

    def _next_task(self) -> Task | None:
        """Return the next task when it is due, or None if this thread is not needed."""
        with self._lock:
            while True:
                if self._has_waiter or not self._queues:
                    if not self._wait_idle():
                        self._threads -= 1
                        return None
                    continue
                now = time.monotonic()
                due = [queue for queue in self._queues if queue.tasks[0][0] <= now]
                if due:
                    return self._pop(min(due, key=lambda queue: queue.last_turn))
                self._has_waiter = True
                self._deadline.wait(min(queue.tasks[0][0] for queue in self._queues) - now)
                self._has_waiter = False

    def _wait_idle(self) -> bool:
        """Wait for a wake-up; return whether the thread is still needed."""
        self._idle_threads += 1
        notified = self._idle.wait(IDLE_S)
        self._idle_threads -= 1
        return notified or self._threads == 1

    def _pop(self, queue: TaskQueue) -> Task:
        _, _, task = heapq.heappop(queue.tasks)
        queue.last_turn = next(self._turns)
        if not queue.tasks:
            self._queues.remove(queue)
        self._ensure_waiter()
        return task
