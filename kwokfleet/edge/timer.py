"""An alarm clock: rings once at a moment. What is due then, others decide.

apscheduler keeps the time: it knows clocks that step, and sleeps that took longer than planned.
"""

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
        self._at: datetime | None = None

    def set(self, at: datetime | None) -> None:
        """Ring at *at* instead of whenever it was set to before; None: not at all."""
        if at == self._at:
            return
        self._at = at
        if at is not None:
            self._scheduler.add_job(self._ring, "date", run_date=at, id=_JOB, replace_existing=True)
            return
        with suppress(JobLookupError):  # it has rung
            self._scheduler.remove_job(_JOB)

    def close(self) -> None:
        """Never ring again."""
        self._scheduler.shutdown(wait=True)
