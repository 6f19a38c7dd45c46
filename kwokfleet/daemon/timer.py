"""An alarm clock: rings once at a moment. What is due then, others decide.

apscheduler keeps the time. A moment that has come is never lost: if the alarm is set anew before it
could ring, because the machine slept or the clock stepped, it rings at once.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

_JOB = "alarm"


class Alarm:
    """Rings at the moment it was last set to."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        # One thread: ringing is quick, and a ring that comes late must still come (misfire_grace_time=None).
        self._scheduler: Any = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.start()
        self._lock = threading.Lock()
        self._at: datetime | None = None
        self._waiting = self._closed = False
        """Whether it has yet to ring; whether it never will again."""

    def set(self, at: datetime | None) -> None:
        """Ring at *at* instead of whenever it was set to before; None: not at all."""
        with self._lock:
            if self._closed or at == self._at:
                return
            overdue = self._waiting and self._at is not None and self._at <= datetime.now(UTC)
            self._at, self._waiting = at, at is not None
            if at is not None:
                self._scheduler.add_job(self._due, "date", run_date=at, id=_JOB, replace_existing=True, args=[at])
            else:
                with suppress(JobLookupError):  # it has rung
                    self._scheduler.remove_job(_JOB)
        if overdue:
            self._ring()

    def _due(self, at: datetime) -> None:
        with self._lock:
            mine = self._waiting and at == self._at
            self._waiting &= not mine
        if mine:
            self._ring()

    def close(self) -> None:
        """Never ring again."""
        with self._lock:
            self._closed, self._waiting = True, False
        self._scheduler.remove_all_jobs()  # its thread stumbles over a job that is due while it shuts down
        self._scheduler.shutdown(wait=True)
