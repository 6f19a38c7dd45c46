"""What was so over time: bounded, adding up, honest about gaps; and throughput in windows."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.measure import time_series
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.time_series import SeriesRecorder
from tests.harness.pod_timelines import T0, PodTimeline, collector, job, timestamp

at_leisure = settings(deadline=None, derandomize=True, database=None)
CAPACITY = {"general": {"cpu": 4.0, "pods": 10.0, "nvidia.com/gpu": 8.0}, "empty": {"cpu": 4.0}}


def values(recorder: SeriesRecorder, name: str) -> list[float | None]:
    """Return a column."""
    made = recorder.series()
    assert made is not None
    return list(made.columns[name])


def test_a_sample_a_second_is_a_step_a_second() -> None:
    """A gauge as it was, a count as what came since the sample before."""
    recorder = SeriesRecorder()
    for second, total in enumerate((3, 3, 10)):
        recorder.add(T0 + second, {"pending": second}, {"scheduled/s": total})
    made = recorder.series()
    assert made is not None
    assert (made.start.timestamp(), made.step_s) == (T0, 1.0)
    assert made.columns == {"pending": (0, 1, 2), "scheduled/s": (3, 0, 7)}


@at_leisure
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=3000))
def test_merging_keeps_sums_and_averages(samples: list[tuple[int, int]]) -> None:
    """However long it lasts there are few steps, and nothing that was counted is lost."""
    recorder, total = SeriesRecorder(), 0
    for second, (gauge, count) in enumerate(samples):
        total += count
        recorder.add(T0 + second, {"pending": gauge}, {"scheduled/s": total})
    made = recorder.series()
    assert made is not None
    rates, gauges = made.columns["scheduled/s"], made.columns["pending"]
    assert len(rates) == len(gauges) <= time_series.MAX_STEPS
    assert sum(each or 0 for each in rates) * made.step_s == pytest.approx(total, abs=0.5)
    width = int(made.step_s)
    for step, average in enumerate(gauges):
        part = [gauge for gauge, _ in samples[step * width : (step + 1) * width]]
        assert average == pytest.approx(sum(part) / len(part), abs=1e-3)


def test_no_sample_for_long_is_a_gap_and_a_late_one_is_not() -> None:
    """A sample that comes two seconds after the last speaks for both; nobody speaks for a minute of silence."""
    recorder = SeriesRecorder()
    for second, total in ((0, 1), (3, 7), (60, 8)):
        recorder.add(T0 + second, {"running": total}, {"completed/s": total})
    gauges, rates = values(recorder, "running"), values(recorder, "completed/s")
    assert gauges[:5] == [1, 7, 7, 7, None]
    assert rates[:5] == [1, 2, 2, 2, None]
    assert gauges[4:60] == [None] * 56
    assert (gauges[60], rates[60]) == (8, 1)


def test_steps_within_a_gap_that_was_told_of_are_empty() -> None:
    """Somebody ticked, but saw nothing."""
    recorder = SeriesRecorder()
    for second in range(10):
        recorder.add(T0 + second, {"running": 5}, {})
    made = recorder.series([(T0 + 3.5, T0 + 6.5)])
    assert made is not None
    assert made.columns["running"] == (5, 5, 5, 5, None, None, 5, 5, 5, 5)


def test_a_silence_of_days_costs_no_more_room_than_others() -> None:
    """And a clock that is set back breaks nothing."""
    recorder = SeriesRecorder()
    recorder.add(T0, {"running": 1}, {})
    recorder.add(T0 + 10 * 86400, {"running": 2}, {})
    recorder.add(T0 + 5, {"running": 3}, {})
    found = values(recorder, "running")
    assert len(found) <= time_series.MAX_STEPS
    assert (found[0], found[-1]) == (1, 2.5)
    assert set(found[1:-1]) == {None}


def test_nothing_sampled_is_no_series() -> None:
    """Not an empty one."""
    assert SeriesRecorder().series() is None


def test_a_column_that_comes_later_was_zero_before() -> None:
    """A scheduler that had no pods had none pending."""
    recorder = SeriesRecorder()
    recorder.add(T0, {}, {})
    recorder.add(T0 + 1, {"pending/other": 4}, {})
    assert values(recorder, "pending/other") == [0, 4]


def test_a_book_counts_who_waits_who_runs_and_what_they_use() -> None:
    """By pool and resource, and of all pools together."""
    made = collector(2)
    lives = [PodTimeline(0, 0, 1, 2, 4, requests={"cpu": "2", "nvidia.com/gpu": "4"}), PodTimeline(1, 0, 3, 5, gone=6)]
    for second in range(8):
        for life in lives:
            for seen, manifest, received in life.events():
                if int(received - T0) == second:
                    made.pod(seen, manifest, received)
        made.tick(T0 + second + 0.9, CAPACITY)
    result = made.result(T0 + 100)
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


def test_jobs_wait_in_the_queue_until_they_start() -> None:
    """They say so themselves, or one of their pods runs."""
    made = collector(2, "Job")
    made.workload(EventType.ADDED, job(0), T0)
    made.workload(EventType.ADDED, job(1), T0)
    made.tick(T0, {})
    made.workload(EventType.MODIFIED, job(0, {"startTime": timestamp(T0)}), T0 + 1)
    made.tick(T0 + 1, {})
    for event in PodTimeline(9, 1, 2, 3, owner=job(1)).events():
        made.pod(*event)
    made.tick(T0 + 2, {})
    found = made.result(T0 + 9).series
    assert found is not None
    assert found.columns["queued"] == (2, 1, 0)


def test_throughput_counts_every_window_between_the_first_binding_and_the_last() -> None:
    """Also those in which nothing was bound; a percentile by the one formula, a rate per second."""
    (found,) = time_series.throughput({"default-scheduler": [T0, T0 + 1, T0 + 4.9, T0 + 16, T0 + 16]})
    assert found.windows == 4
    assert (found.max, found.p50, found.p90) == (0.6, 0.0, 0.6)
    assert found.mean == pytest.approx(5 / 16)
    (none,) = time_series.throughput({})
    assert (none.windows, none.max, none.p50) == (0, None, None)


@at_leisure
@given(st.lists(st.floats(0, 200), min_size=1))
def test_windows_hold_every_binding_once(times: list[float]) -> None:
    """None falls between two of them."""
    (found,) = time_series.throughput({"s": [T0 + each for each in times]})
    first = min(times)
    edges = [T0 + first + 5 * each for each in range(found.windows + 1)]
    naive = [sum(low <= T0 + each < high for each in times) / 5 for low, high in pairwise(edges)]
    assert sum(naive) * 5 == pytest.approx(len(times))
    assert found.max == pytest.approx(max(naive), abs=0.21)
