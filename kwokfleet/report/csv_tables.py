"""Results as tables for spreadsheets and data frames: pods, moments, or Runs as rows. What is unknown is empty."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, timedelta

from kwokfleet.measure.result import PodTimes, Result, Series

_OF_PODS = (
    "namespace", "name", "uid", "index", "owner", "node", "pool", "scheduler", "stateless", "phase", "deleted",
)  # fmt: skip
_SEEN = ("created", "scheduled", "running", "ready", "over", "gone")
_API = (
    "created", "scheduled", "event", "readyToStart", "initialized", "started", "containersReady", "ready", "over",
)  # fmt: skip


class _Sink:
    """What the csv module writes into; it gives back what it was told last."""

    def write(self, text: str) -> str:
        return text


def rows(table: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield lines of CSV."""
    writer = csv.writer(_Sink(), lineterminator="\n")
    for row in table:
        yield str(writer.writerow(["" if each is None else each for each in row]))


def pods(times: Iterable[PodTimes]) -> Iterator[str]:
    """Yield a line for each pod; times are seconds since 1970, by our watch (`seen`) and as written (`api`)."""
    return rows(_pods(times))


def _pods(times: Iterable[PodTimes]) -> Iterator[Sequence[object]]:
    yield (*_OF_PODS, *(f"seen.{name}" for name in _SEEN), *(f"api.{name}" for name in _API))
    for pod in times:
        yield (
            *(getattr(pod, name) for name in _OF_PODS),
            *(pod.seen.get(name) for name in _SEEN),
            *(pod.api.get(name) for name in _API),
        )


def series(found: Series | None) -> Iterator[str]:
    """Yield a line for each moment, with a column for each thing that was followed."""
    return rows(_moments(found)) if found else iter(())


def _moments(found: Series) -> Iterator[Sequence[object]]:
    names = sorted(found.columns)
    yield ("time", "second", *names)
    for step in range(max((len(column) for column in found.columns.values()), default=0)):
        second = step * found.step_s
        when = (found.start + timedelta(seconds=second)).astimezone(UTC).isoformat(timespec="milliseconds")
        columns = (found.columns[name] for name in names)
        yield (when, second, *(column[step] if step < len(column) else None for column in columns))


def latencies(results: Iterable[Result]) -> Iterator[str]:
    """Yield a line for each latency of each Run, in seconds."""
    return rows(_latencies(results))


def _latencies(results: Iterable[Result]) -> Iterator[Sequence[object]]:
    fields = ("of", "name", "clock", "count", "missing", "min", "mean", "p50", "p90", "p95", "p99", "max")
    yield ("fleet", "wave", "run", *fields)
    for made in results:
        for each in made.latencies:
            yield (made.fleet, made.wave, made.run, *(getattr(each, name) for name in fields))
