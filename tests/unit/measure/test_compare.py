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
    """Return a Run whose every percentile is the same."""
    latency = Latency(name="podStartup", of="pods", clock=clock, count=0 if seconds is None else 1, p99=seconds)
    counts = Counts(total=100, created=100, completed=100 - failed, failed=failed)
    peak = Throughput(windows=1, max=rate)
    return Result(
        fleet="lab", wave="w", run="1", start=sample_results.START, state="Done", objects=counts, pods=counts,
        template_kind="Pod", latencies=(latency,), throughput=(peak,),
    )  # fmt: skip


def p99(found: compare.Comparison) -> compare.Delta:
    """Return the one number that the Runs above differ in."""
    return next(each for each in found.deltas if (each.name, each.statistic) == ("podStartup", "p99"))


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
def test_a_latency_is_worse_beyond_the_share_and_the_noise(
    before: float | None, after: float | None, verdict: DeltaVerdict
) -> None:
    """Ten percent and 50 ms, unless they are said otherwise."""
    assert p99(compare.compare(run(before), run(after))).verdict is verdict


def test_a_second_is_noise_where_times_are_whole_seconds() -> None:
    """Two timestamps may differ by one while nothing has changed."""
    assert p99(compare.compare(run(1, Clock.API), run(2, Clock.API))).verdict is DeltaVerdict.SAME
    assert p99(compare.compare(run(1, Clock.API), run(3, Clock.API))).verdict is DeltaVerdict.WORSE


def test_what_is_judged_already_is_not_judged_again_by_clusterloader2s_definitions() -> None:
    """They are other words for the same pods; their differences are shown all the same."""
    for clock in (Clock.CL2_2024, Clock.CL2_2026):
        delta = p99(compare.compare(run(1, clock), run(3, clock)))
        assert (delta.verdict, delta.change) == (DeltaVerdict.NOT_JUDGED, 2)


def test_less_throughput_and_more_failures_are_worse() -> None:
    """Whatever the latencies say."""
    worse = compare.compare(run(1.0, rate=100), run(1.0, rate=80, failed=3)).regressions
    assert {(each.name, each.statistic) for each in worse} == {("throughput", "max"), ("count", "failed")}


def test_limits_can_be_tightened() -> None:
    """For a quiet machine."""
    found = compare.compare(run(1.0), run(1.05), RegressionLimits(regression=0.01, floor_s=0.001))
    assert p99(found).verdict is DeltaVerdict.WORSE


def test_what_cannot_be_compared_is_said() -> None:
    """Sizes, kinds, gaps, Runs that are not over."""
    found = compare.compare(
        sample_results.sample_run(50).result, sample_results.sample_run(60, job=False, gap=(1, 3)).result
    )
    told = " ".join(found.notes)
    assert "50 and 60 objects" in told
    assert "Job and Pod" in told
    assert "has gaps" in told


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_what_is_worse_one_way_is_never_worse_the_other_way(first: float, second: float) -> None:
    """Whichever Run is called the first."""
    there, back = (p99(compare.compare(run(a), run(b))).verdict for a, b in ((first, second), (second, first)))
    assert not (there is DeltaVerdict.WORSE and back is DeltaVerdict.WORSE)
    if there is DeltaVerdict.WORSE:
        assert second > first


def test_a_run_is_no_worse_than_itself() -> None:
    """In no number."""
    made = sample_results.sample_run(100).result
    assert compare.compare(made, made).regressions == ()


def test_json_has_every_number_and_markdown_those_that_matter() -> None:
    """For programs, and for pull requests."""
    found = compare.compare(
        sample_results.sample_run(300).result, sample_results.sample_run(300, name="2", slower=1.5).result
    )
    read = json.loads(comparisons.to_json(found))
    assert read["regressions"] == len(found.regressions) > 0
    assert len(read["deltas"]) == len(found.deltas)
    text = comparisons.to_markdown(found, RegressionLimits())
    assert "| podStartup p99 | pods | watch |" in text
    assert "**worse**" in text
    assert "clusterloader2" not in text


def test_markdown_cells_cannot_break_the_table() -> None:
    """A name may hold anything."""
    odd = run(1.0).model_copy(
        update={"throughput": (Throughput(scheduler="a|b<script>", windows=1, max=1.0, mean=1.0),)}
    )
    text = comparisons.to_markdown(compare.compare(odd, odd), RegressionLimits())
    assert "a\\|b&lt;script>" in text
