"""Schedules: pool sizes, change windows and Runs. `now` is an argument.

Results depend only on files, seed and time, so a restarted daemon or another machine gets the same.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kwokfleet.api import wave as wave_api
from kwokfleet.api.fleet import Window
from kwokfleet.api.node_pool import NodePool
from kwokfleet.render import cron

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, order=True)
class ScheduledRun:
    """One firing of a Wave."""

    start: datetime
    name: str
    """Unique within the Wave; part of the objects' names."""


def scheduled_replicas(pool: NodePool, now: datetime) -> int:
    """Return the number of nodes of a pool, by the latest entry of its schedule."""
    latest: tuple[datetime, int] | None = None
    for entry in pool.schedule:
        moment = cron.last_fire_time(entry.cron, entry.time_zone, now) if entry.cron else entry.at
        if moment is not None and moment <= now and (latest is None or moment >= latest[0]):
            latest = (moment, entry.replicas)
    return latest[1] if latest else (pool.replicas or 0)


def max_replicas(pool: NodePool) -> int:
    """Return the largest number of nodes that a pool may have."""
    autoscaled = pool.autoscaler.max if pool.autoscaler else 0
    return max(autoscaled, pool.replicas or 0, *(entry.replicas for entry in pool.schedule))


def is_open(windows: Sequence[Window], now: datetime) -> bool:
    """Return whether changes are allowed at *now*."""
    if any(cron.fires_in_minute(window.deny, window.time_zone, now) for window in windows if window.deny):
        return False
    allowed = [window for window in windows if window.allow]
    return not allowed or any(cron.fires_in_minute(window.allow or "", window.time_zone, now) for window in allowed)


def runs_between(start: wave_api.Start, anchor: datetime, after: datetime, until: datetime) -> Iterator[ScheduledRun]:
    """Yield the Runs that start after *after*, up to and including *until*.

    *anchor* is the time at which the Wave was first seen; `after` and `every` count from it.
    """
    if start.after is not None or start.at is not None:
        moment = start.at if start.at is not None else anchor + (start.after or timedelta())
        if after < moment <= until:
            yield ScheduledRun(moment, "0")
    elif start.every is not None:
        number = max(0, math.floor((after - anchor) / start.every) + 1)
        while (moment := anchor + number * start.every) <= until:
            yield ScheduledRun(moment, str(number))
            number += 1
    elif start.cron is not None:
        for moment in cron.fire_times(start.cron, start.time_zone, after):
            if moment > until:
                return
            yield ScheduledRun(moment, str(int(moment.timestamp()) // 60))


def due_runs(
    start: wave_api.Start, anchor: datetime, last: datetime, now: datetime, *, grace: timedelta
) -> list[ScheduledRun]:
    """Return the Runs to start now that were not due at *last*.

    A Run that is late by more than *grace* is missed. `missed: run` starts the latest missed one.
    """
    on_time = list(runs_between(start, anchor, max(last, now - grace - _INSTANT), now))
    if on_time or start.missed == "skip":
        return on_time
    if start.cron is not None:  # the latest Run, without iterating over all missed ones
        moment = cron.last_fire_time(start.cron, start.time_zone, now)
        last = max(last, moment - _INSTANT) if moment else now
    elif start.every is not None:
        last = max(last, now - start.every)
    return list(runs_between(start, anchor, last, now))
