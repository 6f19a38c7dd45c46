"""When time alone changes what the files ask for: the next size of a pool, the next opening of a window.

Only the moment is told here. What is due at it is reckoned anew by the pass that it wakes, so an
alarm that rings late, twice or not at all does no harm beyond the delay.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from kwokfleet.api.fleet import Fleet, NodePool, Window
from kwokfleet.render import schedule, seeded_random

_MINUTE = timedelta(minutes=1)
_FAR = timedelta(days=1)
"""So far ahead an opening is looked for; if there is none, somebody looks again by then."""
JITTER = 0.05


def next_moment(fleets: Iterable[Fleet], now: datetime) -> datetime | None:
    """Return the first moment after *now* at which some Fleet may ask for something else."""
    return min((each for fleet in fleets for each in _moments(fleet, now)), default=None)


def _moments(fleet: Fleet, now: datetime) -> Iterator[datetime]:
    if fleet.spec.suspend:
        return
    for pool in fleet.spec.node_pools:
        yield from _sizes(pool, now)
    if fleet.spec.windows and not schedule.is_open(fleet.spec.windows, now):
        yield opening(fleet.spec.windows, now)


def _sizes(pool: NodePool, now: datetime) -> Iterator[datetime]:
    for entry in pool.schedule:
        if entry.cron:
            yield from _first(schedule.fire_times(entry.cron, entry.time_zone, now))
        elif entry.at is not None and entry.at > now:
            yield entry.at


def _first(moments: Iterator[datetime]) -> Iterator[datetime]:
    moment = next(moments, None)
    if moment is not None:
        yield moment


def opening(windows: Iterable[Window], now: datetime) -> datetime:
    """Return the first minute after *now* in which changes may be made; a day later if none is near."""
    return _opening(tuple(windows), now.astimezone(UTC).replace(second=0, microsecond=0))


@lru_cache(maxsize=256)  # asked for at each turn of the daemon, and the same for a minute; it takes up to 0.1 s
def _opening(windows: tuple[Window, ...], minute: datetime) -> datetime:
    end = minute + _FAR
    while minute < end:
        minute += _MINUTE
        if schedule.is_open(windows, minute):
            return minute
    return end


def resync(interval: timedelta, name: str, number: int) -> timedelta:
    """Return how long to wait until everything is looked at again: not all daemons at the same moment."""
    share = seeded_random.SeededRandom(0, name, "resync").uniform(number)
    return interval * (1 + JITTER * (2 * share - 1))
