"""Gates: each limit judged by the best clock there is, and no data is no pass."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api import wave as wave_api
from kwokfleet.measure import gates
from kwokfleet.measure.result import Clock, Counts, GateResult, Latency, Pacing, Result, Throughput

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def expect(**fields: object) -> wave_api.Expect:
    """Return what a file expects."""
    return wave_api.Expect.model_validate(fields)


def latency(name: str, of: str = "pods", clock: Clock = Clock.WATCH, **fields: Any) -> Latency:  # noqa: ANN401  # of a Latency
    """Return a latency of ten."""
    return Latency(name=name, of=of, clock=clock, **{"count": 10, **fields})


def result(*latencies: Latency, **fields: Any) -> Result:  # noqa: ANN401  # of a Result
    """Return a Result."""
    return Result(fleet="lab", wave="w", run="0", start=NOON, latencies=latencies, **fields)


def judge(expected: wave_api.Expect, made: Result) -> GateResult:
    """Return the one gate."""
    (gate,) = gates.evaluate(expected, made)
    return gate


def test_nothing_expected_is_no_gate() -> None:
    """Neither passed nor failed."""
    assert gates.evaluate(None, result()) == ()
    assert gates.evaluate(expect(), result()) == ()


@pytest.mark.parametrize(("got", "passed"), [(4.2, True), (5.0, True), (5.0001, False)])
def test_a_percentile_must_not_be_above_its_limit(got: float, *, passed: bool) -> None:
    """And what is said never looks like the opposite."""
    gate = judge(expect(podStartup={"p99": "5s"}), result(latency("podStartup", p99=got)))
    assert (gate.name, gate.want, gate.got) == ("podStartup.p99", "5s", f"{got:g}s")
    assert (gate.passed, gate.clock, gate.no_data) == (passed, Clock.WATCH, False)


def test_every_limit_is_a_gate_of_its_own() -> None:
    """In the order in which the file may name them."""
    wanted = expect(scheduling={"max": "1s", "p50": "10ms"}, deadline="1m", failures=0, throughput="20/s")
    assert [each.name for each in gates.evaluate(wanted, result())] == [
        "scheduling.p50", "scheduling.max", "deadline", "failures", "throughput",
    ]  # fmt: skip


def test_the_watch_judges_if_it_missed_nothing() -> None:
    """Else the API's timestamps do; the gate says so, and of how many it is not known."""
    by_api = latency("scheduling", clock=Clock.API, p50=2.0)
    wanted = expect(scheduling={"p50": "1s"})
    assert judge(wanted, result(latency("scheduling", p50=0.5), by_api)).passed
    gate = judge(wanted, result(latency("scheduling", p50=0.5, missing=1), by_api))
    assert (gate.passed, gate.clock, gate.why) == (False, Clock.API, "API timestamps: whole seconds")
    worse = latency("scheduling", clock=Clock.API, p50=2.0, missing=7)
    gate = judge(wanted, result(latency("scheduling", p50=0.5, missing=1), worse))
    assert (gate.clock, gate.why) == (Clock.WATCH, "samples not measured: 1")


def test_no_data_is_not_passed() -> None:
    """And is told apart from a limit that was missed."""
    for made in (result(), result(latency("podStartup", count=0, missing=3))):
        gate = judge(expect(podStartup={"p99": "5s"}), made)
        assert (gate.passed, gate.no_data, gate.got) == (False, True, "no data")
    assert judge(expect(throughput="1/s"), result(throughput=(Throughput(),))).no_data
    assert judge(expect(failures=0), result()).no_data


def test_completion_is_that_of_the_waves_own_objects() -> None:
    """Of Jobs if it makes Jobs, of pods if it makes pods."""
    both = (latency("completion", p99=10.0), latency("completion", "Job", p99=20.0))
    wanted = expect(completion={"p99": "15s"})
    assert judge(wanted, result(*both, template_kind="Pod")).got == "10s"
    assert judge(wanted, result(*both, template_kind="Job")).got == "20s"


def test_the_deadline_counts_from_when_the_run_was_due() -> None:
    """A Run that is not over has not kept it."""
    wanted = expect(deadline="1m")
    gate = judge(wanted, result(end=NOON + timedelta(seconds=59.5)))
    assert (gate.passed, gate.got) == (True, "59.5s")
    assert not judge(wanted, result(end=NOON + timedelta(seconds=61))).passed
    gate = judge(wanted, result())
    assert (gate.passed, gate.got) == (False, "not over yet")


def test_objects_that_were_refused_are_failures_too() -> None:
    """The gate says how many of them."""
    made = result(objects=Counts(created=8, failed=1), pacing=Pacing(count=10, refused=2))
    gate = judge(expect(failures=2), made)
    assert (gate.passed, gate.got, gate.why) == (False, "3", "the API server rejected 2 of them")
    assert judge(expect(failures=3), made).passed


def test_throughput_is_that_of_the_best_window() -> None:
    """Of all schedulers together."""
    made = result(throughput=(Throughput(max=120.0, windows=3), Throughput(scheduler="a", max=9.0, windows=3)))
    gate = judge(expect(throughput="100/s"), made)
    assert (gate.passed, gate.got, gate.want) == (True, "120/s", "100/s")
    assert not judge(expect(throughput="121/s"), made).passed


def test_a_gate_that_can_never_hold_is_named() -> None:
    """As far as the file alone tells."""
    completes = expect(completion={"p99": "5s"})
    assert gates.impossible_gates(None, ends=False) == []
    assert gates.impossible_gates(completes, ends=True) == []
    assert gates.impossible_gates(completes, ends=False, kind="Deployment") == []
    (said,) = gates.impossible_gates(completes, ends=False)
    assert said.startswith("completion: objects of kind Pod never complete")
    assert gates.impossible_gates(expect(podStartup={"p50": 0}, deadline=0), ends=True) == [
        "podStartup.p50: must be above 0",
        "deadline: must be above 0",
    ]
