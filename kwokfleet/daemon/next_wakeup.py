"""Next time at which a pass is due although nothing changed: a scheduled pool size, a window that opens.

The pass computes what is due by itself, so a timer that fires late or twice does no harm.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice

from kwokfleet.api.fleet import Fleet, Window
from kwokfleet.render import cron, schedule, seeded_random

_MINUTE = timedelta(minutes=1)
_HORIZON = timedelta(days=1)
"""How far ahead a window is searched; without one, the search is repeated then."""
JITTER = 0.05


def next_change(fleets: Iterable[Fleet], now: datetime) -> datetime | None:
    """Return the first time after *now* at which the desired state of a Fleet may change."""
    return min((time for fleet in fleets for time in _times(fleet, now)), default=None)


def _times(fleet: Fleet, now: datetime) -> Iterator[datetime]:
    if fleet.spec.suspend:
        return
    if fleet.spec.windows and not schedule.is_open(fleet.spec.windows, now):
        yield opening(fleet.spec.windows, now)
    for entry in (entry for pool in fleet.spec.node_pools for entry in pool.schedule):
        if entry.cron:
            yield from islice(cron.fire_times(entry.cron, entry.time_zone, now), 1)
        elif entry.at is not None and entry.at > now:
            yield entry.at


def opening(windows: Iterable[Window], now: datetime) -> datetime:
    """Return the first minute after *now* inside a window; a day later if there is none before."""
    return _opening(tuple(windows), now.astimezone(UTC).replace(second=0, microsecond=0))


@lru_cache(maxsize=256)  # computed in each pass, the same for a minute, and takes up to 0.1 s
def _opening(windows: tuple[Window, ...], minute: datetime) -> datetime:
    end = minute + _HORIZON
    while minute < end:
        minute += _MINUTE
        if schedule.is_open(windows, minute):
            return minute
    return end


def resync(interval: timedelta, name: str, number: int) -> timedelta:
    """Return the time until the next resync, with jitter so that daemons do not resync together."""
    share = seeded_random.SeededRandom(0, name, "resync").uniform(number)
    return interval * (1 + JITTER * (2 * share - 1))
