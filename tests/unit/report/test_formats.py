"""Results in other systems' formats."""

import csv
import json
import re
from datetime import UTC, datetime
from math import ceil
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.cli import report_view
from kwokfleet.measure.result import Clock, GateResult, PodTimes, Result
from kwokfleet.report import clusterloader2, csv_tables, junit, kube_burner, numbers
from tests.harness import sample_results

MADE = sample_results.sample_run(200)
UGLY = 'a <script>alert("1")</script> & \x00\x1b[31m ]]> \ud800 é'


def documents(files: dict[str, str]) -> dict[str, object]:
    """Return the files, read."""
    return {name: json.loads(text) for name, text in files.items()}


def burned(made: sample_results.SampleRun) -> dict[str, list[dict[str, object]]]:
    """Return kube-burner's files, read."""
    files = kube_burner.files(made.result, made.pods, made.workloads)
    return {name: json.loads("".join(parts)) for name, parts in files.items()}


# ----------------------------------------------------------------------------------------
# ClusterLoader2


def test_clusterloader2_files_are_named_and_shaped_as_it_does() -> None:
    """A version, and items with data, unit and labels: milliseconds."""
    files = documents(clusterloader2.files(MADE.result, MADE.workloads))
    startup = files["PodStartupLatency_lab-stress-1-2026.json"]
    assert isinstance(startup, dict)
    assert startup["version"] == "1.0"
    item = next(each for each in startup["dataItems"] if each["labels"]["Metric"] == "pod_startup")
    latency = MADE.result.latency("pod_startup", "pods", Clock.CL2_2026)
    assert latency is not None
    assert latency.p99 is not None
    assert item["unit"] == "ms"
    assert set(item["data"]) == {"Perc50", "Perc90", "Perc99"}
    assert item["data"]["Perc99"] == pytest.approx(latency.p99 * 1000)


def test_both_definitions_of_pod_startup_latency_have_files_of_their_own() -> None:
    """With and without state, until and since May 2026; nothing is mixed."""
    files = clusterloader2.files(MADE.result)
    for prefix in ("", "Stateless", "Stateful"):
        assert {f"{prefix}PodStartupLatency_lab-stress-1-{year}.json" for year in (2024, 2026)} <= set(files)
    assert "create_to_run" not in files["PodStartupLatency_lab-stress-1-2024.json"]


def test_throughput_has_clusterloader2s_four_numbers() -> None:
    """For all pods, and for each scheduler."""
    files = documents(clusterloader2.files(MADE.result))
    peak = MADE.result.throughput[0]
    assert files["SchedulingThroughput_lab-stress-1.json"] == {
        "perc50": peak.p50,
        "perc90": peak.p90,
        "perc99": peak.p99,
        "max": peak.max,
    }
    assert "SchedulingThroughput_lab-stress-1-bin-packer.json" in files


def test_job_lifecycle_latency_is_reckoned_from_what_is_written_in_the_jobs() -> None:
    """From creation to start, from start to completion."""
    found = documents(clusterloader2.files(MADE.result, MADE.workloads))["JobLifecycleLatency_lab-stress-1.json"]
    assert isinstance(found, dict)
    took = sorted(each.api["over"] - each.api["started"] for each in MADE.workloads)
    item = next(each for each in found["dataItems"] if each["labels"]["Metric"] == "start_to_complete")
    assert item["data"]["Perc90"] == took[ceil(len(took) * 0.9) - 1] * 1000


def test_clusterloader2_is_told_nothing_where_there_is_no_data() -> None:
    """It would write 0, and nobody could tell that from a latency of 0."""
    assert clusterloader2.files(sample_results.empty_result()) == {}


# ----------------------------------------------------------------------------------------
# kube-burner


def test_kube_burner_documents_have_its_fields_in_whole_milliseconds() -> None:
    """A document for each pod that became Ready, measured from its creation."""
    [first, *_] = burned(MADE)["podLatencyMeasurement-lab-stress-1.json"]
    pod = MADE.pods[0]
    assert first["schedulingLatency"] == int(round((pod.api["event"] - pod.api["created"]) * 1000, 3))
    assert first["podReadyLatency"] == (pod.api["ready"] - pod.api["created"]) * 1000
    assert first["timestamp"] == datetime.fromtimestamp(pod.api["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert {"metricName", "uuid", "jobName", "jobIteration", "replica", "namespace", "podName", "nodeName"} <= set(
        first
    )
    assert first["metricName"] == "podLatencyMeasurement"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(first["uuid"]))


def test_kube_burner_quantiles_are_integers_with_its_names() -> None:
    """One document for each condition."""
    found = {
        str(each["quantileName"]): each for each in burned(MADE)["podLatencyQuantilesMeasurement-lab-stress-1.json"]
    }
    assert set(found) == {"PodScheduled", "Initialized", "ContainersReady", "Ready", "ContainersStarted"}
    for each in found.values():
        assert all(isinstance(each[name], int) for name in ("P99", "P95", "P50", "min", "max", "avg"))
        assert each["metricName"] == "podLatencyQuantilesMeasurement"


def test_kube_burner_has_jobs_that_completed() -> None:
    """A Job that failed has no document there."""
    found = burned(MADE)
    failed = sum(each.failed for each in MADE.workloads)
    assert len(found["jobLatencyMeasurement-lab-stress-1.json"]) == len(MADE.workloads) - failed
    names = {each["quantileName"] for each in found["jobLatencyQuantilesMeasurement-lab-stress-1.json"]}
    assert names == {"StartTime", "Complete"}


def test_kube_burner_leaves_out_pods_that_never_became_ready_and_fields_that_nobody_knows() -> None:
    """It does the former; of the latter it would say 0."""
    pods = [
        PodTimes(name="ready", namespace="a", api={"created": 100.0, "ready": 103.0}),
        PodTimes(name="pending", namespace="a", api={"created": 100.0}),
    ]
    made = sample_results.SampleRun(sample_results.empty_result(), tuple(pods), ())
    found = burned(made)
    [document] = found["podLatencyMeasurement-lab-unseen-1.json"]
    assert document["podName"] == "ready"
    assert "initializedLatency" not in document
    assert [each["quantileName"] for each in found["podLatencyQuantilesMeasurement-lab-unseen-1.json"]] == ["Ready"]


def test_kube_burners_percentile_is_a_value_or_the_mean_of_two() -> None:
    """As montanaflynn/stats 0.7 has it: of ten values, the 95th percentile lies between the ninth and the tenth."""
    ten = list(range(10, 110, 10))
    assert kube_burner.percentile(ten, 50) == 50
    assert kube_burner.percentile(ten, 95) == 95
    assert kube_burner.percentile(ten, 99) == 95
    assert kube_burner.percentile([7], 99) == 7


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300), st.sampled_from((50, 95, 99)))
def test_kube_burners_percentile_lies_between_two_neighbours(values: list[int], percent: int) -> None:
    """Never outside what was measured, and around ClusterLoader2's rank."""
    ordered = sorted(values)
    rank = ceil(round(len(ordered) * percent / 100, 9))
    found = kube_burner.percentile(ordered, percent)
    assert ordered[max(0, rank - 2)] <= found <= ordered[rank - 1]


# ----------------------------------------------------------------------------------------
# JUnit


def test_junit_has_a_case_for_the_run_and_for_each_gate() -> None:
    """What failed says why; the numbers at the head are those of the cases."""
    root = ET.fromstring(junit.to_xml([MADE.result]))  # noqa: S314 - our own text
    [suite] = root
    cases = {str(each.get("name")): each for each in suite}
    assert set(cases) == {
        "lab/stress overall (1)",
        *(f"lab/stress: {gate.name} (1)" for gate in MADE.result.gates),
    }
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == str(len(failed))
    broken = [gate for gate in MADE.result.gates if not gate.passed]
    assert len(failed) == (len(broken) + 1 if broken else 0)


def test_junit_tells_no_data_from_a_failure_and_a_run_that_is_not_over_from_both() -> None:
    """A gate that could not be judged has a type of its own."""
    root = ET.fromstring(junit.to_xml([sample_results.empty_result()]))  # noqa: S314 - our own text
    cases = {str(each.get("name")): each for each in root[0]}
    failure = cases["lab/unseen: podStartup.p99 (1)"].find("failure")
    assert failure is not None
    assert failure.get("type") == "NoData"
    assert cases["lab/unseen overall (1)"].find("skipped") is not None


def test_junit_carries_any_text() -> None:
    """Names and messages may hold what XML has another meaning for, or none at all."""
    gate = GateResult(name=UGLY.replace("\ud800", ""), want="1", got="2", passed=False, why="]]> \x01")
    made = Result(fleet="a", wave="<b>", run="1", start=sample_results.START, state="Done", gates=(gate,))
    root = ET.fromstring(junit.to_xml([made]))  # noqa: S314 - our own text
    assert '<script>alert("1")</script>' in str(root[0][1].get("name"))


def test_clusterloader2s_suite_can_be_asked_for() -> None:
    """For tools that look for it."""
    assert 'testsuite name="ClusterLoaderV2"' in junit.to_xml([MADE.result], junit.CLUSTERLOADER2_SUITE)


# ----------------------------------------------------------------------------------------
# CSV and words


def test_csv_has_a_row_for_each_pod_and_nothing_where_nothing_is_known() -> None:
    """Times by both clocks."""
    rows = list(csv.DictReader("".join(csv_tables.pods(MADE.pods)).splitlines()))
    assert len(rows) == len(MADE.pods)
    assert float(rows[3]["seen.running"]) == MADE.pods[3].seen["running"]
    assert not rows[3]["seen.gone"]


def test_csv_has_a_row_for_each_moment() -> None:
    """A gap is empty, not 0."""
    made = sample_results.sample_run(200, gap=(3, 6)).result
    assert made.series is not None
    rows = list(csv.DictReader("".join(csv_tables.series(made.series)).splitlines()))
    assert len(rows) == len(made.series.columns["pending"])
    assert not rows[4]["pending"]
    assert float(rows[7]["running"]) == made.series.columns["running"][7]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "no data"),
        (0, "0 s"),
        (0.000618, "0.62 ms"),
        (0.0619, "61.9 ms"),
        (0.276, "276 ms"),
        (0.9999, "1 s"),
        (1.384, "1.38 s"),
        (28.61, "28.6 s"),
        (59.97, "1m 0s"),
        (90, "1m 30s"),
        (3780, "1h 3m"),
        (-1.5, "-1.5 s"),
    ],
)
def test_durations_are_written_in_three_digits(seconds: float | None, text: str) -> None:
    """In the unit that fits."""
    assert numbers.duration(seconds) == text


def test_nothing_known_is_never_written_as_zero() -> None:
    """In any of the ways in which numbers are written."""
    assert {numbers.duration(None), numbers.rate(None), numbers.share(None), numbers.count(None)} == {"no data"}


def test_a_sparkline_shows_peaks_zeros_and_holes() -> None:
    """The largest of each part; a blank is not a 0."""
    assert report_view.spark([0, 0, 4, None, 8, 8], 6) == "▁▁▄ ██"
    assert report_view.spark([0, 9, 0, 0], 2) == "█▁"
    assert report_view.spark([1, 2], 4) == "▄▄██"
    assert report_view.spark([0, 0], 2) == "▁▁"
    assert report_view.spark([], 3) == "   "
