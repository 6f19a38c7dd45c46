"""Many things done at their moments, by a few threads that all share: each Run has a line, all lines one budget.

One thread looks at the clock. When something is due, that very thread does it, and another one takes its
place at the clock: nothing is handed over at the moment that counts. Moments are absolute, so that one that
comes late makes no later one late. If more is due than can be done, the lines take turns.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

IDLE_S = 30.0
"""A thread that has had nothing to do for so long ends."""

Task = Callable[[], None]


class TaskQueue:
    """What one Run has to do."""

    def __init__(self, pacer: "DeadlineQueue") -> None:
        self._pacer = pacer
        self.waiting: list[tuple[float, int, Task]] = []
        """A heap: moments of the monotonic clock, and what is to be done then."""
        self.served = 0
        """When it last had its turn."""

    def put(self, due: float, act: Task) -> None:
        """Have something done at a moment."""
        self._pacer.put(self, due, act)

    def __len__(self) -> int:
        """Return how much is waiting."""
        return len(self.waiting)

    def close(self) -> None:
        """Forget what is waiting."""
        self._pacer.leave(self)


class DeadlineQueue:
    """The threads, and the lines before them."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        """How many things may be under way at once, at this moment."""
        self._lock = threading.Lock()
        self._clock = threading.Condition(self._lock)
        """Where one thread waits for the next moment."""
        self._bench = threading.Condition(self._lock)
        """Where the other threads wait that have nothing to do."""
        self._lines: list[TaskQueue] = []
        self._turns = itertools.count(1)
        self._numbers = itertools.count()
        self._watched = False
        self._threads = self._resting = 0

    def line(self) -> TaskQueue:
        """Return a new line."""
        return TaskQueue(self)

    def put(self, line: TaskQueue, due: float, act: Task) -> None:
        """Have something done at a moment, in the turn of a line."""
        with self._lock:
            first = not line.waiting or due < line.waiting[0][0]
            heapq.heappush(line.waiting, (due, next(self._numbers), act))
            if line not in self._lines:
                self._lines.append(line)
            if first:
                self._clock.notify()
            self._call()

    def leave(self, line: TaskQueue) -> None:
        """Take a line away, with all that waits in it."""
        with self._lock:
            line.waiting.clear()
            self._drop(line)

    def _drop(self, line: TaskQueue) -> None:
        if line in self._lines:
            self._lines.remove(line)

    def _call(self) -> None:
        """See to it that somebody looks at the clock, as long as there is something to wait for."""
        if self._watched or not self._lines:
            return
        if self._resting:
            self._bench.notify()
        elif self._threads < max(1, self._most()):
            self._threads += 1
            threading.Thread(target=self._serve, name=f"submitter-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (act := self._next()) is not None:
            try:
                act()
            except Exception:  # a bug in one must not end the thread that all share
                log.exception("submitter_failed")

    def _next(self) -> Task | None:
        """Return the next thing to do, when it is due; None if this thread is not needed."""
        with self._lock:
            while True:
                if self._watched or not self._lines:
                    if not self._rest():
                        self._threads -= 1
                        return None
                    continue
                now = time.monotonic()
                line = self._whose_turn(now)
                if line is not None:
                    return self._taken(line)
                self._watched = True
                self._clock.wait(min(each.waiting[0][0] for each in self._lines) - now)
                self._watched = False

    def _rest(self) -> bool:
        """Wait to be called; return whether somebody did, or still may."""
        self._resting += 1
        called = self._bench.wait(IDLE_S)
        self._resting -= 1
        return called or self._threads == 1

    def _whose_turn(self, now: float) -> TaskQueue | None:
        due = [each for each in self._lines if each.waiting[0][0] <= now]
        return min(due, key=lambda each: each.served) if due else None

    def _taken(self, line: TaskQueue) -> Task:
        _, _, act = heapq.heappop(line.waiting)
        line.served = next(self._turns)
        if not line.waiting:
            self._drop(line)
        self._call()
        return act
