"""Two Runs compared."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.measure import compare
from kwokfleet.measure.compare import DeltaVerdict, RegressionLimits
from kwokfleet.measure.result import Clock, Counts, Latency, Result, Throughput
from kwokfleet.report import comparisons
from tests.harness import sample_results


def run(seconds: float | None, clock: Clock = Clock.WATCH, rate: float | None = None, failed: int = 0) -> Result:
    """Return a Run with one latency."""
    latency = Latency(name="podStartup", of="pods", clock=clock, count=0 if seconds is None else 1, p99=seconds)
    counts = Counts(total=100, created=100, completed=100 - failed, failed=failed)
    peak = Throughput(windows=1, max=rate)
    return Result(
        fleet="lab", wave="w", run="1", start=sample_results.START, state="Done", objects=counts, pods=counts,
        template_kind="Pod", latencies=(latency,), throughput=(peak,),
    )  # fmt: skip


def p99(comparison: compare.Comparison) -> compare.Delta:
    """Return the podStartup p99 delta."""
    return next(delta for delta in comparison.deltas if (delta.name, delta.statistic) == ("podStartup", "p99"))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (1.0, 1.2, DeltaVerdict.WORSE),
        (1.0, 1.1, DeltaVerdict.SAME),
        (0.1, 0.14, DeltaVerdict.SAME),  # 40 percent, but only 40 ms
        (1.2, 1.0, DeltaVerdict.BETTER),
        (0.0, 0.2, DeltaVerdict.WORSE),
        (1.0, None, DeltaVerdict.NO_DATA),
        (None, 1.0, DeltaVerdict.NO_DATA),
    ],
)
def test_a_latency_is_worse_beyond_both_limits(
    before: float | None, after: float | None, verdict: DeltaVerdict
) -> None:
    """The defaults are ten percent and 50 ms."""
    assert p99(compare.compare(run(before), run(after))).verdict is verdict


def test_one_second_is_within_the_limits_for_api_times() -> None:
    """API timestamps have whole seconds."""
    assert p99(compare.compare(run(1, Clock.API), run(2, Clock.API))).verdict is DeltaVerdict.SAME
    assert p99(compare.compare(run(1, Clock.API), run(3, Clock.API))).verdict is DeltaVerdict.WORSE


def test_clusterloader2_latencies_are_not_judged() -> None:
    """They measure the same pods again; their deltas are only reported."""
    for clock in (Clock.CL2_2024, Clock.CL2_2026):
        delta = p99(compare.compare(run(1, clock), run(3, clock)))
        assert (delta.verdict, delta.change) == (DeltaVerdict.NOT_JUDGED, 2)


def test_less_throughput_and_more_failures_are_worse() -> None:
    """Equal latencies do not hide them."""
    worse = compare.compare(run(1.0, rate=100), run(1.0, rate=80, failed=3)).regressions
    assert {(delta.name, delta.statistic) for delta in worse} == {("throughput", "max"), ("count", "failed")}


def test_limits_can_be_tightened() -> None:
    """Lower limits detect smaller regressions."""
    comparison = compare.compare(run(1.0), run(1.05), RegressionLimits(regression=0.01, floor_s=0.001))
    assert p99(comparison).verdict is DeltaVerdict.WORSE


def test_notes_list_differences_between_the_runs() -> None:
    """Size, kind and gaps."""
    comparison = compare.compare(
        sample_results.sample_run(50).result, sample_results.sample_run(60, job=False, gap=(1, 3)).result
    )
    notes = " ".join(comparison.notes)
    assert "50 and 60 objects" in notes
    assert "Job and Pod" in notes
    assert "has gaps" in notes


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_a_regression_is_not_symmetric(first: float, second: float) -> None:
    """Two Runs cannot both be worse than the other."""
    forward, backward = (p99(compare.compare(run(a), run(b))).verdict for a, b in ((first, second), (second, first)))
    assert not (forward is DeltaVerdict.WORSE and backward is DeltaVerdict.WORSE)
    if forward is DeltaVerdict.WORSE:
        assert second > first


def test_a_run_is_no_worse_than_itself() -> None:
    """No delta is a regression."""
    result = sample_results.sample_run(100).result
    assert compare.compare(result, result).regressions == ()


def test_json_has_all_deltas_and_markdown_the_relevant_ones() -> None:
    """Markdown omits the ClusterLoader2 definitions."""
    comparison = compare.compare(
        sample_results.sample_run(300).result, sample_results.sample_run(300, name="2", slower=1.5).result
    )
    document = json.loads(comparisons.to_json(comparison))
    assert document["regressions"] == len(comparison.regressions) > 0
    assert len(document["deltas"]) == len(comparison.deltas)
    text = comparisons.to_markdown(comparison, RegressionLimits())
    assert "| podStartup p99 | pods | watch |" in text
    assert "**worse**" in text
    assert "clusterloader2" not in text


def test_markdown_cells_cannot_break_the_table() -> None:
    """Names may contain any character."""
    result = run(1.0).model_copy(
        update={"throughput": (Throughput(scheduler="a|b<script>", windows=1, max=1.0, mean=1.0),)}
    )
    text = comparisons.to_markdown(compare.compare(result, result), RegressionLimits())
    assert "a\\|b&lt;script>" in text
