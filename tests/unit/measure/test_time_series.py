"""Time series of a Run: bounded size, gaps, and throughput in windows."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.measure import time_series
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.time_series import SeriesRecorder
from tests.harness.pod_timelines import T0, PodTimeline, job, new_collector, timestamp

deterministic = settings(deadline=None, derandomize=True, database=None)
CAPACITY = {"general": {"cpu": 4.0, "pods": 10.0, "nvidia.com/gpu": 8.0}, "empty": {"cpu": 4.0}}


def values(recorder: SeriesRecorder, name: str) -> list[float | None]:
    """Return a column."""
    series = recorder.series()
    assert series is not None
    return list(series.columns[name])


def test_one_sample_per_second_gives_one_step_per_second() -> None:
    """Gauges are stored as sampled, counters as the increase since the last sample."""
    recorder = SeriesRecorder()
    for second, total in enumerate((3, 3, 10)):
        recorder.add(T0 + second, {"pending": second}, {"scheduled/s": total})
    series = recorder.series()
    assert series is not None
    assert (series.start.timestamp(), series.step_s) == (T0, 1.0)
    assert series.columns == {"pending": (0, 1, 2), "scheduled/s": (3, 0, 7)}


@deterministic
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=3000))
def test_merging_keeps_sums_and_averages(samples: list[tuple[int, int]]) -> None:
    """The number of steps is bounded, and totals are preserved."""
    recorder, total = SeriesRecorder(), 0
    for second, (gauge, count) in enumerate(samples):
        total += count
        recorder.add(T0 + second, {"pending": gauge}, {"scheduled/s": total})
    series = recorder.series()
    assert series is not None
    rates, gauges = series.columns["scheduled/s"], series.columns["pending"]
    assert len(rates) == len(gauges) <= time_series.MAX_STEPS
    assert sum(value or 0 for value in rates) * series.step_s == pytest.approx(total, abs=0.5)
    width = int(series.step_s)
    for step, average in enumerate(gauges):
        part = [gauge for gauge, _ in samples[step * width : (step + 1) * width]]
        assert average == pytest.approx(sum(part) / len(part), abs=1e-3)


def test_a_long_time_without_samples_is_a_gap_and_a_late_sample_is_not() -> None:
    """A late sample fills the steps before it; a minute without samples stays empty."""
    recorder = SeriesRecorder()
    for second, total in ((0, 1), (3, 7), (60, 8)):
        recorder.add(T0 + second, {"running": total}, {"completed/s": total})
    gauges, rates = values(recorder, "running"), values(recorder, "completed/s")
    assert gauges[:5] == [1, 7, 7, 7, None]
    assert rates[:5] == [1, 2, 2, 2, None]
    assert gauges[4:60] == [None] * 56
    assert (gauges[60], rates[60]) == (8, 1)


def test_steps_within_a_reported_gap_are_empty() -> None:
    """Samples were taken, but the watch was lost."""
    recorder = SeriesRecorder()
    for second in range(10):
        recorder.add(T0 + second, {"running": 5}, {})
    series = recorder.series([(T0 + 3.5, T0 + 6.5)])
    assert series is not None
    assert series.columns["running"] == (5, 5, 5, 5, None, None, 5, 5, 5, 5)


def test_a_gap_of_days_keeps_the_size_bounded() -> None:
    """A clock that is set back is tolerated."""
    recorder = SeriesRecorder()
    recorder.add(T0, {"running": 1}, {})
    recorder.add(T0 + 10 * 86400, {"running": 2}, {})
    recorder.add(T0 + 5, {"running": 3}, {})
    column = values(recorder, "running")
    assert len(column) <= time_series.MAX_STEPS
    assert (column[0], column[-1]) == (1, 2.5)
    assert set(column[1:-1]) == {None}


def test_without_samples_the_series_is_none() -> None:
    """It is None, not an empty series."""
    assert SeriesRecorder().series() is None


def test_a_new_column_is_zero_before_its_first_sample() -> None:
    """A scheduler that had no pods had none pending."""
    recorder = SeriesRecorder()
    recorder.add(T0, {}, {})
    recorder.add(T0 + 1, {"pending/other": 4}, {})
    assert values(recorder, "pending/other") == [0, 4]


def test_a_collector_records_pending_running_and_utilisation() -> None:
    """Utilisation is by pool and resource, and in total."""
    collector = new_collector(2)
    timelines = [
        PodTimeline(0, 0, 1, 2, 4, requests={"cpu": "2", "nvidia.com/gpu": "4"}),
        PodTimeline(1, 0, 3, 5, gone=6),
    ]
    for second in range(8):
        for timeline in timelines:
            for seen, manifest, received in timeline.events():
                if int(received - T0) == second:
                    collector.pod(seen, manifest, received)
        collector.tick(T0 + second + 0.9, CAPACITY)
    result = collector.result(T0 + 100)
    assert result.series is not None
    columns = {name: list(column) for name, column in result.series.columns.items()}
    assert columns["pending"] == [2, 1, 1, 0, 0, 0, 0, 0]
    assert columns["running"] == [0, 0, 1, 1, 0, 1, 0, 0]
    assert columns["scheduled/s"] == [0, 1, 0, 1, 0, 0, 0, 0]
    assert columns["completed/s"] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert columns["utilisation/general/cpu"] == [0, 0.5, 0.5, 0.625, 0.125, 0.125, 0, 0]
    assert columns["utilisation/general/nvidia.com/gpu"] == [0, 0.5, 0.5, 0.5, 0, 0, 0, 0]
    assert columns["utilisation/*/cpu"] == [0, 0.25, 0.25, 0.3125, 0.0625, 0.0625, 0, 0]
    assert "queued" not in columns
    assert not [name for name in columns if name.startswith(("utilisation/empty/", "pending/", "scheduled/s/"))]


def test_jobs_are_queued_until_they_start() -> None:
    """A Job starts when startTime is set or one of its pods runs."""
    collector = new_collector(2, "Job")
    collector.workload(EventType.ADDED, job(0), T0)
    collector.workload(EventType.ADDED, job(1), T0)
    collector.tick(T0, {})
    collector.workload(EventType.MODIFIED, job(0, {"startTime": timestamp(T0)}), T0 + 1)
    collector.tick(T0 + 1, {})
    for event in PodTimeline(9, 1, 2, 3, owner=job(1)).events():
        collector.pod(*event)
    collector.tick(T0 + 2, {})
    recorded = collector.result(T0 + 9).series
    assert recorded is not None
    assert recorded.columns["queued"] == (2, 1, 0)


def test_throughput_counts_every_window_between_the_first_binding_and_the_last() -> None:
    """Windows without bindings count as 0."""
    (throughput,) = time_series.throughput({"default-scheduler": [T0, T0 + 1, T0 + 4.9, T0 + 16, T0 + 16]})
    assert throughput.windows == 4
    assert (throughput.max, throughput.p50, throughput.p90) == (0.6, 0.0, 0.6)
    assert throughput.mean == pytest.approx(5 / 16)
    (none,) = time_series.throughput({})
    assert (none.windows, none.max, none.p50) == (0, None, None)


@deterministic
@given(st.lists(st.floats(0, 200), min_size=1))
def test_each_binding_is_in_exactly_one_window(times: list[float]) -> None:
    """Windows do not overlap and leave no space."""
    (throughput,) = time_series.throughput({"s": [T0 + time for time in times]})
    first = min(times)
    edges = [T0 + first + 5 * index for index in range(throughput.windows + 1)]
    naive = [sum(low <= T0 + time < high for time in times) / 5 for low, high in pairwise(edges)]
    assert sum(naive) * 5 == pytest.approx(len(times))
    assert throughput.max == pytest.approx(max(naive), abs=0.21)
