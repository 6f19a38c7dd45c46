"""One-shot timer, and the timer of a daemon's passes.

apscheduler keeps the time. A time that was reached is never lost: if the timer is set again before it fired,
because the machine slept or the clock stepped, it fires at once.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from kwokfleet.api.fleet import Fleet
from kwokfleet.daemon import next_wakeup

_JOB = "timer"


class OneShotTimer:
    """Fires once at the time it was last set to."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self._fire = fire
        # One thread: firing is quick, and a late timer must still fire (misfire_grace_time=None).
        self._scheduler: Any = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.start()
        self._lock = threading.Lock()
        self._at: datetime | None = None
        self._armed = self._closed = False

    def set(self, at: datetime | None) -> None:
        """Fire at *at* instead of the time set before; None: do not fire."""
        with self._lock:
            if self._closed or at == self._at:
                return
            overdue = self._armed and self._at is not None and self._at <= datetime.now(UTC)
            self._at, self._armed = at, at is not None
            if at is not None:
                self._scheduler.add_job(self._reached, "date", run_date=at, id=_JOB, replace_existing=True, args=[at])
            else:
                with suppress(JobLookupError):  # it has fired
                    self._scheduler.remove_job(_JOB)
        if overdue:
            self._fire()

    def _reached(self, at: datetime) -> None:
        with self._lock:
            current = self._armed and at == self._at
            self._armed &= not current
        if current:
            self._fire()

    def close(self) -> None:
        """Do not fire any more."""
        with self._lock:
            self._closed, self._armed = True, False
        self._scheduler.remove_all_jobs()  # apscheduler's thread fails on a job that is due during shutdown
        self._scheduler.shutdown(wait=True)


class PassTimer(OneShotTimer):
    """Fires when the next pass is due: a resync, a scheduled pool size, a window, a Run."""

    def __init__(self, interval: timedelta, identity: str, fire: Callable[[], None]) -> None:
        super().__init__(fire)
        self._interval, self._identity = interval, identity
        self._resyncs = 0
        self._resync_at = datetime.now(UTC)

    def set_next(self, fleets: Iterable[Fleet], next_run: datetime | None) -> None:
        """Set the timer to the earliest time at which a pass is due."""
        now = datetime.now(UTC)
        if self._resync_at <= now:
            self._resyncs += 1
            self._resync_at = now + next_wakeup.resync(self._interval, self._identity, self._resyncs)
        due_times = (self._resync_at, next_wakeup.next_change(fleets, now), next_run)
        self.set(min(due for due in due_times if due is not None))
