"""Results as CSV: pods, time series and latencies. Unknown values are empty."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, timedelta

from kwokfleet.measure.result import PodTimes, Result, Series

_POD_FIELDS = (
    "namespace", "name", "uid", "index", "owner", "node", "pool", "scheduler", "stateless", "phase", "deleted",
)  # fmt: skip
_SEEN = ("created", "scheduled", "running", "ready", "over", "gone")
_API = (
    "created", "scheduled", "event", "readyToStart", "initialized", "started", "containersReady", "ready", "over",
)  # fmt: skip


class _Sink:
    """A file for the csv module that returns each line."""

    def write(self, text: str) -> str:
        return text


def rows(table: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield lines of CSV."""
    writer = csv.writer(_Sink(), lineterminator="\n")
    for row in table:
        yield str(writer.writerow(["" if value is None else value for value in row]))


def pods(times: Iterable[PodTimes]) -> Iterator[str]:
    """Yield a line for each pod; times are seconds since 1970 by the watch clock (`seen`) and the API clock (`api`)."""
    return rows(_pods(times))


def _pods(times: Iterable[PodTimes]) -> Iterator[Sequence[object]]:
    yield (*_POD_FIELDS, *(f"seen.{name}" for name in _SEEN), *(f"api.{name}" for name in _API))
    for pod in times:
        yield (
            *(getattr(pod, name) for name in _POD_FIELDS),
            *(pod.seen.get(name) for name in _SEEN),
            *(pod.api.get(name) for name in _API),
        )


def series(time_series: Series | None) -> Iterator[str]:
    """Yield a line for each step of a time series."""
    return rows(_steps(time_series)) if time_series else iter(())


def _steps(time_series: Series) -> Iterator[Sequence[object]]:
    names = sorted(time_series.columns)
    yield ("time", "second", *names)
    for step in range(max((len(column) for column in time_series.columns.values()), default=0)):
        second = step * time_series.step_s
        time = (time_series.start + timedelta(seconds=second)).astimezone(UTC).isoformat(timespec="milliseconds")
        columns = (time_series.columns[name] for name in names)
        yield (time, second, *(column[step] if step < len(column) else None for column in columns))


def latencies(results: Iterable[Result]) -> Iterator[str]:
    """Yield a line for each latency of each Run, in seconds."""
    return rows(_latencies(results))


def _latencies(results: Iterable[Result]) -> Iterator[Sequence[object]]:
    fields = ("of", "name", "clock", "count", "missing", "min", "mean", "p50", "p90", "p95", "p99", "max")
    yield ("fleet", "wave", "run", *fields)
    for result in results:
        for latency in result.latencies:
            yield (result.fleet, result.wave, result.run, *(getattr(latency, name) for name in fields))
