"""Gates: the best available clock judges each limit; no data does not pass."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api import wave as wave_api
from kwokfleet.measure import gates
from kwokfleet.measure.result import Clock, Counts, GateResult, Latency, Pacing, Result, Throughput

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def expect(**fields: object) -> wave_api.Expect:
    """Return the gates of a Wave."""
    return wave_api.Expect.model_validate(fields)


def latency(name: str, of: str = "pods", clock: Clock = Clock.WATCH, **fields: Any) -> Latency:  # noqa: ANN401  # of a Latency
    """Return a latency with ten samples."""
    return Latency(name=name, of=of, clock=clock, **{"count": 10, **fields})


def result(*latencies: Latency, **fields: Any) -> Result:  # noqa: ANN401  # of a Result
    """Return a Result."""
    return Result(fleet="lab", wave="w", run="0", start=NOON, latencies=latencies, **fields)


def judge(expected: wave_api.Expect, run_result: Result) -> GateResult:
    """Return the result of the only gate."""
    (gate,) = gates.evaluate(expected, run_result)
    return gate


def test_nothing_expected_is_no_gate() -> None:
    """Neither passed nor failed."""
    assert gates.evaluate(None, result()) == ()
    assert gates.evaluate(expect(), result()) == ()


@pytest.mark.parametrize(("got", "passed"), [(4.2, True), (5.0, True), (5.0001, False)])
def test_a_percentile_must_not_be_above_its_limit(got: float, *, passed: bool) -> None:
    """The printed value keeps enough digits."""
    gate = judge(expect(podStartup={"p99": "5s"}), result(latency("podStartup", p99=got)))
    assert (gate.name, gate.want, gate.got) == ("podStartup.p99", "5s", f"{got:g}s")
    assert (gate.passed, gate.clock, gate.no_data) == (passed, Clock.WATCH, False)


def test_each_limit_is_a_separate_gate() -> None:
    """In the order of the schema."""
    expected = expect(scheduling={"max": "1s", "p50": "10ms"}, deadline="1m", failures=0, throughput="20/s")
    assert [gate.name for gate in gates.evaluate(expected, result())] == [
        "scheduling.p50", "scheduling.max", "deadline", "failures", "throughput",
    ]  # fmt: skip


def test_the_watch_clock_is_used_without_missing_samples() -> None:
    """Otherwise API timestamps are used if fewer samples are missing; the gate gives the reason."""
    by_api = latency("scheduling", clock=Clock.API, p50=2.0)
    expected = expect(scheduling={"p50": "1s"})
    assert judge(expected, result(latency("scheduling", p50=0.5), by_api)).passed
    gate = judge(expected, result(latency("scheduling", p50=0.5, missing=1), by_api))
    assert (gate.passed, gate.clock, gate.why) == (False, Clock.API, "API timestamps: whole seconds")
    worse = latency("scheduling", clock=Clock.API, p50=2.0, missing=7)
    gate = judge(expected, result(latency("scheduling", p50=0.5, missing=1), worse))
    assert (gate.clock, gate.why) == (Clock.WATCH, "samples not measured: 1")


def test_no_data_is_not_passed() -> None:
    """It differs from an exceeded limit."""
    for run_result in (result(), result(latency("podStartup", count=0, missing=3))):
        gate = judge(expect(podStartup={"p99": "5s"}), run_result)
        assert (gate.passed, gate.no_data, gate.got) == (False, True, "no data")
    assert judge(expect(throughput="1/s"), result(throughput=(Throughput(),))).no_data
    assert judge(expect(failures=0), result()).no_data


def test_completion_uses_the_kind_of_the_template() -> None:
    """Jobs for a Job template, pods for a Pod template."""
    both = (latency("completion", p99=10.0), latency("completion", "Job", p99=20.0))
    expected = expect(completion={"p99": "15s"})
    assert judge(expected, result(*both, template_kind="Pod")).got == "10s"
    assert judge(expected, result(*both, template_kind="Job")).got == "20s"


def test_the_deadline_counts_from_the_start_of_the_run() -> None:
    """An unfinished Run fails."""
    expected = expect(deadline="1m")
    gate = judge(expected, result(end=NOON + timedelta(seconds=59.5)))
    assert (gate.passed, gate.got) == (True, "59.5s")
    assert not judge(expected, result(end=NOON + timedelta(seconds=61))).passed
    gate = judge(expected, result())
    assert (gate.passed, gate.got) == (False, "not over yet")


def test_rejected_objects_count_as_failures() -> None:
    """The gate reports their number."""
    run_result = result(objects=Counts(created=8, failed=1), pacing=Pacing(count=10, refused=2))
    gate = judge(expect(failures=2), run_result)
    assert (gate.passed, gate.got, gate.why) == (False, "3", "the API server rejected 2 of them")
    assert judge(expect(failures=3), run_result).passed


def test_throughput_uses_the_best_window() -> None:
    """Over all schedulers."""
    run_result = result(throughput=(Throughput(max=120.0, windows=3), Throughput(scheduler="a", max=9.0, windows=3)))
    gate = judge(expect(throughput="100/s"), run_result)
    assert (gate.passed, gate.got, gate.want) == (True, "120/s", "100/s")
    assert not judge(expect(throughput="121/s"), run_result).passed


def test_impossible_gates_are_reported() -> None:
    """Only the file is considered."""
    completes = expect(completion={"p99": "5s"})
    assert gates.impossible_gates(None, ends=False) == []
    assert gates.impossible_gates(completes, ends=True) == []
    assert gates.impossible_gates(completes, ends=False, kind="Deployment") == []
    (message,) = gates.impossible_gates(completes, ends=False)
    assert message.startswith("completion: objects of kind Pod never complete")
    assert gates.impossible_gates(expect(podStartup={"p50": 0}, deadline=0), ends=True) == [
        "podStartup.p50: must be above 0",
        "deadline: must be above 0",
    ]
