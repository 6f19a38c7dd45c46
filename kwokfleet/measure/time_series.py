"""Time series with a bounded number of steps, and scheduling throughput.

A sample is taken about once a second. Above the limit, neighbours are merged and the step is doubled: gauges are
averaged, counts added. So a Run of a day takes as much space as one of ten minutes, and counts keep their sums.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import floor

from kwokfleet.measure import percentiles
from kwokfleet.measure.columns import Note
from kwokfleet.measure.result import Series, Throughput

MAX_STEPS = 600
STALL_S = 5.0
"""A sample covers the time since the last one, up to this time."""
WINDOW_S = 5.0
"""Window of ClusterLoader2."""

Span = tuple[float, float]


class SeriesRecorder:
    """Records samples and merges them above the limit."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._step = 1.0
        self._last = 0.0
        self._samples = array("d")
        """Number of samples in each step."""
        self._gauges: dict[str, array[float]] = {}
        """Sums of the samples."""
        self._counts: dict[str, array[float]] = {}
        self._totals: dict[str, float] = {}
        """Last total of each counter."""
        self._changed_steps: set[int] = set()
        self._noted_columns: set[str] = set()
        """Columns that the notes have; 0 is no longer written for these."""

    def add(self, now: float, gauges: Mapping[str, float], totals: Mapping[str, float]) -> None:
        """Add a sample of gauges and of counter totals since the start."""
        if self._start is None:
            self._start = self._last = floor(now)
        if not self._totals:
            self._totals = {name: round(sum(column), 3) for name, column in self._counts.items()}
        steps = self._steps(max(now, self._last))
        for step in steps:
            self._samples[step] += 1
        for name, value in gauges.items():
            column = self._column(self._gauges, name)
            for step in steps:
                column[step] += value
        for name, total in totals.items():
            column, increase = self._column(self._counts, name), total - self._totals.get(name, 0.0)
            for step in steps:
                column[step] += increase / len(steps)
            self._totals[name] = total
        self._changed_steps.update(steps)
        self._last = max(now, self._last)

    def _steps(self, now: float) -> range:
        """Extend the columns up to *now*; return the steps that a sample covers."""
        start = self._start or 0.0
        while (now - start) // self._step >= MAX_STEPS:
            self._merge()
        step, first = int((now - start) // self._step), len(self._samples)
        self._extend(step + 1)
        return range(min(first, step) if now - self._last <= STALL_S else step, step + 1)

    def _extend(self, size: int) -> None:
        for column in self._columns():
            column.extend([0.0] * (size - len(column)))

    def _columns(self) -> tuple["array[float]", ...]:
        return self._samples, *self._gauges.values(), *self._counts.values()

    def _column(self, columns: "dict[str, array[float]]", name: str) -> "array[float]":
        if name not in columns:
            columns[name] = array("d", bytes(8 * len(self._samples)))
        return columns[name]

    def _merge(self) -> None:
        for column in self._columns():
            if len(column) % 2:
                column.append(0.0)
            column[:] = array("d", (column[step] + column[step + 1] for step in range(0, len(column), 2)))
        self._step *= 2
        self._changed_steps = {step // 2 for step in self._changed_steps}

    def series(self, gaps: Sequence[Span] = (), hidden: Sequence[str] = ()) -> Series | None:
        """Return the Series, with None inside gaps; *hidden*: prefixes of columns to leave out."""
        if self._start is None:
            return None
        is_known = [bool(samples) and not self._within(step, gaps) for step, samples in enumerate(self._samples)]
        columns: dict[str, tuple[float | None, ...]] = {}
        for name, sums in self._gauges.items():
            if not name.startswith(tuple(hidden)) and (any(sums) or not name.startswith("utilisation/")):
                values = zip(is_known, sums, self._samples, strict=True)
                columns[name] = tuple(round(total / samples, 4) if known else None for known, total, samples in values)
        for name, counts in self._counts.items():
            if not name.startswith(tuple(hidden)):
                pairs = zip(is_known, counts, strict=True)
                columns[name] = tuple(round(count / self._step, 4) if known else None for known, count in pairs)
        start = datetime.fromtimestamp(self._start, UTC)
        return Series(start=start, step_s=self._step, columns=dict(sorted(columns.items())))

    def _within(self, step: int, gaps: Sequence[Span]) -> bool:
        """Return whether a step is completely inside a gap."""
        start = (self._start or 0.0) + step * self._step
        return any(begin <= start and start + self._step <= end for begin, end in gaps)

    def notes(self) -> Iterator[Note]:
        """Yield the changed steps since the last call."""
        for step in sorted(self._changed_steps):
            gauges, counts = (
                {name: at[step] for name, at in columns.items() if at[step] or name not in self._noted_columns}
                for columns in (self._gauges, self._counts)
            )
            self._noted_columns.update(gauges, counts)
            yield ["t", self._start, self._step, step, self._last, self._samples[step], gauges, counts]
        self._changed_steps = set()

    def restore_note(self, note: Note) -> float:
        """Restore a step, replacing earlier notes of it; return its time."""
        _, start, width, step, last, samples, gauges, counts = note
        if self._start is None:
            self._start = start
        while self._step < width:
            self._merge()
        self._extend(step + 1)
        self._samples[step], self._last = samples, last
        for columns, values in ((self._gauges, gauges), (self._counts, counts)):
            self._noted_columns.update(values)
            for name in values:
                self._column(columns, name)
            for name, column in columns.items():
                column[step] = values.get(name, 0.0)
        self._totals = {}
        return float(last)


def throughput(times: Mapping[str, Sequence[float]]) -> tuple[Throughput, ...]:
    """Return the scheduling throughput: of all pods and, with several schedulers, of each."""
    overall = _throughput("", [at for bound in times.values() for at in bound])
    return (overall, *(_throughput(name, times[name]) for name in sorted(times) if len(times) > 1))


def _throughput(scheduler: str, times: Sequence[float]) -> Throughput:
    """Count bindings in every window from the first to the last, including empty ones."""
    if not times:
        return Throughput(scheduler=scheduler, window_s=WINDOW_S)
    first, last = min(times), max(times)
    windows = int((last - first) // WINDOW_S) + 1
    counts = Counter(int((at - first) // WINDOW_S) for at in times)
    rates = sorted(counts[window] / WINDOW_S for window in range(windows))
    return Throughput(
        scheduler=scheduler,
        window_s=WINDOW_S,
        windows=windows,
        p50=percentiles.percentile(rates, 50),
        p90=percentiles.percentile(rates, 90),
        p99=percentiles.percentile(rates, 99),
        max=rates[-1],
        mean=round(len(times) / (last - first), 6) if last > first else None,
    )
