"""Cron expressions in a time zone.

A cron time that a clock change skips fires right after the gap; one that occurs twice fires once (as in Debian's
crontab(5)).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import cronsim

_MINUTE = timedelta(minutes=1)
_REPEATED = timedelta(hours=3)
"""More than any clock change."""


def last_fire_time(cron: str, time_zone: str, at_or_before: datetime) -> datetime | None:
    """Return the last time that *cron* fired."""
    # Start later and filter: in a repeated hour, local time alone is ambiguous.
    later = (at_or_before + _REPEATED).astimezone(ZoneInfo(time_zone))
    for moment in cronsim.CronSim(cron, later, reverse=True):
        if moment.astimezone(UTC) <= at_or_before:
            return moment.astimezone(UTC)
    return None


def fire_times(cron: str, time_zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times at which *cron* fires after *after*."""
    last = after
    for moment in cronsim.CronSim(cron, (after - _REPEATED).astimezone(ZoneInfo(time_zone))):
        if moment.astimezone(UTC) > last:
            last = moment.astimezone(UTC)
            yield last


def fires_in_minute(cron: str, time_zone: str, now: datetime) -> bool:
    """Return whether *cron* fires in the minute of *now*, in local time."""
    minute = now.astimezone(ZoneInfo(time_zone)).replace(second=0, microsecond=0, tzinfo=None)
    return next(cronsim.CronSim(cron, minute - _MINUTE), None) == minute
