"""Results as CSV: pods, time series and latencies. Unknown values are empty."""

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, timedelta

from kwokfleet.measure.result import PodTimes, Result, Series
from kwokfleet.report import numbers

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


def _lines(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    writer = csv.writer(_Sink(), lineterminator="\n")
    for row in itertools.chain((head,), rows):
        yield str(writer.writerow(["" if value is None else value for value in row]))


def pods(times: Iterable[PodTimes]) -> Iterator[str]:
    """Yield a line for each pod; times are seconds since 1970 by the watch clock (`seen`) and the API clock (`api`)."""
    head = (*_POD_FIELDS, *(f"seen.{name}" for name in _SEEN), *(f"api.{name}" for name in _API))
    rows = (
        [getattr(pod, name) for name in _POD_FIELDS] + [*map(pod.seen.get, _SEEN), *map(pod.api.get, _API)]
        for pod in times
    )
    return _lines(head, rows)


def series(time_series: Series) -> Iterator[str]:
    """Yield a line for each step of a time series."""
    names = sorted(time_series.columns)
    columns = itertools.zip_longest(*(time_series.columns[name] for name in names))
    return _lines(("time", "second", *names), ((*_time(time_series, step), *row) for step, row in enumerate(columns)))


def _time(time_series: Series, step: int) -> tuple[str, float]:
    second = step * time_series.step_s
    time = time_series.start + timedelta(seconds=second)
    return time.astimezone(UTC).isoformat(timespec="milliseconds"), second


def latencies(results: Iterable[Result]) -> Iterator[str]:
    """Yield a line for each latency of each Run, in seconds."""
    fields = ("of", "name", "clock", "count", "missing", *numbers.STATISTICS)
    rows = (
        (result.fleet, result.wave, result.run, *(getattr(latency, name) for name in fields))
        for result in results
        for latency in result.latencies
    )
    return _lines(("fleet", "wave", "run", *fields), rows)
