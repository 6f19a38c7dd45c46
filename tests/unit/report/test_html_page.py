"""The page of a report: complete in itself, true to its numbers, and safe whatever the names are."""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.measure.result import Clock, FailureGroup, Gap, GateResult, Mark, PodTimes, Series
from kwokfleet.report import writer
from kwokfleet.report.html import gantt, svg_plot
from tests.harness import browser, html_page, sample_results

EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&"
SIZE_LIMIT = 1_500_000


def page(*runs: sample_results.SampleRun, compare: bool = False) -> html_page.HtmlPage:
    """Return the page about some Runs, read."""
    return html_page.HtmlPage(
        writer.html_page([writer.ReportInput(run.result, run.pods) for run in runs], compare=compare)
    )


def known(values: Sequence[float | None]) -> list[float]:
    """Return what there is of a column."""
    return [each for each in values if each is not None]


def test_the_page_fetches_nothing() -> None:
    """No address outside of it, no script that could ask for one, and a policy that forbids it."""
    made = page(sample_results.sample_run(100), sample_results.sample_run(100, name="2"))
    assert made.outside == []
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', made.text)
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy
    assert made.tags.count("script") == 1


def test_every_line_over_time_has_the_points_of_its_column() -> None:
    """Neither more nor fewer, with the same numbers; what nobody watched is a hole."""
    made = sample_results.sample_run(300, gap=(4, 9))
    series = made.result.series
    assert series is not None
    lines = {line["data-title"]: line["d"] for line in page(made).lines["Pods"]}
    for name in ("pending", "running", "queued"):
        assert [y for _, y in html_page.line_points(lines[name])] == known(series.columns[name])
    used = page(made).lines["Requests as a share of pool capacity"]
    assert {line["data-title"] for line in used} == {
        "all pools: cpu", "general: cpu", "gpu: cpu", "gpu: nvidia.com/gpu",
    }  # fmt: skip
    for line in used:
        assert len(list(html_page.line_points(line["d"]))) == len(known(series.columns["utilisation/*/cpu"]))


def test_every_distribution_has_the_points_of_its_latency() -> None:
    """For each clock a line."""
    made = sample_results.sample_run(300)
    lines = {line["data-title"]: line["d"] for line in page(made).lines["Pods: created to running"]}
    for clock in (Clock.WATCH, Clock.API):
        latency = made.result.latency("podStartup", "pods", clock)
        assert latency is not None
        found = list(html_page.line_points(lines[clock]))
        assert [x for x, _ in found] == pytest.approx([x for x, _ in latency.cdf])
        assert [y for _, y in found] == pytest.approx([y * 100 for _, y in latency.cdf])


def test_no_text_of_a_user_becomes_markup() -> None:
    """Whatever names, errors, reasons and revisions hold."""
    made = sample_results.sample_run(20)
    odd = made.result.model_copy(
        update={
            "fleet": EVIL, "wave": EVIL, "run": EVIL, "cluster": EVIL, "revision": EVIL, "version": EVIL,
            "template_kind": EVIL,
            "gates": (GateResult(name=EVIL, want=EVIL, got=EVIL, passed=False, why=EVIL),),
            "gaps": (Gap(start=sample_results.START, end=sample_results.START + timedelta(seconds=2), why=EVIL),),
            "marks": (Mark(at=sample_results.START, what=EVIL),),
            "troubles": (FailureGroup(what=EVIL, count=1, example=EVIL),),
            "latencies": tuple(each.model_copy(update={"of": EVIL, "name": EVIL}) for each in made.result.latencies),
            "throughput": tuple(each.model_copy(update={"scheduler": EVIL}) for each in made.result.throughput),
            "series": Series(
                start=sample_results.START,
                step_s=1,
                columns={f"pending/{EVIL}": (1.0, 2.0), "pending/b": (1.0, 2.0), f"utilisation/{EVIL}/x": (1.0,)},
            ),
        }
    )  # fmt: skip
    for runs in ([odd], [odd, odd]):
        read = html_page.HtmlPage(writer.html_page([writer.ReportInput(result, made.pods) for result in runs]))
        assert read.tags.count("script") == 1
        assert read.outside == []
        assert "img" not in read.tags
        assert EVIL in "".join(read.words)


def test_no_data_is_said_and_nothing_is_drawn_for_it() -> None:
    """Not 0, not an empty plot that looks like one."""
    read = page(sample_results.SampleRun(sample_results.empty_result(), (), ()))
    assert read.lines == {}
    assert read.words.count("no data") > 5
    assert "The Run is not over: the numbers are interim." in read.words


def test_runs_of_a_wave_are_compared_with_the_first() -> None:
    """Side by side, with differences, and with one line for each in the distributions."""
    first, second = sample_results.sample_run(300), sample_results.sample_run(300, name="2", slower=1.5)
    read = page(first, second)
    assert [line["data-title"] for line in read.lines["Pods: created to running (watch)"]] == ["Run 1", "Run 2"]
    assert any(word.endswith(", worse") for word in read.words)
    assert len(read.lines["Pods"]) == 6


def test_runs_of_different_waves_follow_each_other() -> None:
    """They are not compared: they are meant to differ."""
    first, second = sample_results.sample_run(30), sample_results.sample_run(30, wave="other")
    read = page(first, second)
    assert read.tags.count("article") == 2
    assert not any(word.endswith((", worse", ", better")) for word in read.words)
    assert page(first, second, compare=True).tags.count("article") == 0


def test_a_hundred_thousand_pods_make_no_large_page() -> None:
    """The picture of the pods has a fixed size, whatever it stands for."""
    pod = sample_results.sample_run(1).pods[0]
    start = sample_results.START.timestamp()
    pods = [
        pod.model_copy(
            update={"seen": {"created": start + n / 100, "running": start + n / 90, "over": start + n / 80 + 9}}
        )
        for n in range(100_000)
    ]
    made = sample_results.sample_run(100).result.model_copy(
        update={"end": sample_results.START + timedelta(seconds=1300)}
    )
    columns = {name: tuple(float(n % 977) for n in range(1300)) for name in made.series.columns} if made.series else {}
    long = made.model_copy(update={"series": Series(start=sample_results.START, step_s=1, columns=columns)})
    assert len(writer.html_page([writer.ReportInput(long, pods)]).encode()) < SIZE_LIMIT


def test_a_day_of_seconds_is_thinned_and_keeps_its_peaks() -> None:
    """Of each short time the smallest and the largest stay."""
    values = [float(n % 60) for n in range(86_400)]
    values[40_000] = 999.0
    found = list(html_page.line_points(svg_plot.level_path(values, 1.0)))
    assert len(found) <= svg_plot.MAX_POINTS
    assert (40_000, 999.0) in found
    assert min(y for _, y in found) == 0


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=60), st.sampled_from((0.5, 1.0, 5.0)))
def test_a_line_is_what_it_was_made_of(values: list[float | None], step: float) -> None:
    """Read back, a path gives the same points, up to seven digits."""
    found = list(html_page.line_points(svg_plot.level_path(values, step)))
    wanted = [(place * step, each) for place, each in enumerate(values) if each is not None]
    assert len(found) == len(wanted)
    assert [x for x, _ in found] == [x for x, _ in wanted]
    assert [y for _, y in found] == pytest.approx([y for _, y in wanted], rel=1e-6, abs=1e-8)


@given(st.floats(1e-6, 1e9))
def test_axes_have_few_round_ticks_that_hold_everything(most: float) -> None:
    """From 0 to at least the largest number."""
    for axis in (
        svg_plot.value_axis(most),
        svg_plot.value_axis(most, "/s"),
        svg_plot.duration_axis(most),
        svg_plot.time_axis(most),
    ):
        assert axis.ticks[0][0] == 0
        assert axis.top >= most * 0.999
        assert len(axis.ticks) <= 8
        assert len({text for _, text in axis.ticks}) == len(axis.ticks)


def test_a_pod_that_waited_and_ran_is_drawn_as_such() -> None:
    """Ten seconds: three of waiting, four of running, nothing afterwards."""
    pod = PodTimes(name="a", namespace="b", seen={"created": 100.0, "running": 103.0, "over": 107.0})
    text = gantt.picture([pod], 100.0, 10.0, [], "")
    assert 'class="waiting l6" d="M0,0H90v.8H0z"' in text
    assert 'class="running l6" d="M90,0H210v.8H90z"' in text


def test_pods_of_which_nothing_is_known_are_not_drawn() -> None:
    """And a Run without pods has no such picture."""
    assert not gantt.picture([PodTimes(name="a", namespace="b")], 0.0, 10.0, [], "")


@pytest.mark.skipif(
    browser.find_program() is None, reason="no Chromium here; name one: KWOKFLEET_TEST_BROWSER=/path/to/it"
)
def test_a_browser_draws_the_page_and_shows_values_under_the_pointer(tmp_path: Path) -> None:
    """It asks for nothing but the file, its policy refuses nothing, and nothing is wider than a phone."""
    made = sample_results.sample_run(200)
    file = tmp_path / "report.html"
    file.write_text(writer.html_page([writer.ReportInput(made.result, made.pods)]), encoding="utf-8")
    with browser.open_tab(str(browser.find_program()), file, tmp_path / "profile") as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        assert tab.value("document.documentElement.scrollWidth - innerWidth") <= 0
        lines = "[...document.querySelectorAll('path.line')].map(each => each.getBoundingClientRect().width)"
        assert min(tab.value(lines)) >= 0
        assert max(tab.value(lines)) > 200
        tab.point("figure[data-kind=count] .area")
        shown = tab.value("document.querySelector('figure[data-kind=count] .tip').innerText")
        assert {"pending", "running", "queued"} <= set(shown.split())
        assert tab.errors == []
        assert tab.requested_urls == [file.as_uri()]
