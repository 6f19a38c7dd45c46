"""Measurement of Runs by a daemon: stored Results, gates, gaps."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from kwokfleet.kube import objects
from kwokfleet.measure.result import Clock, PodTimes, Result
from tests.harness import cli, daemon_testbed, faulty_proxy, measured_wave, waiting, watch
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.measured_wave import condition, run_status, stored_result, wait_for_verdict, write_fleet

Manifest = dict[str, Any]
States = dict[str, list[tuple[float, Manifest]]]
"""Times and states of each pod, by UID."""
MILESTONES = {"scheduling": "scheduled", "podStartup": "running", "ready": "ready", "completion": "over"}
"""Latencies of pods, and the milestones at their end."""
PERCENTILES = (50, 90, 95, 99)
SILENCE_S = 3


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed; delete the managed objects at the end."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


# ----------------------------------------------------------------------------------------
# independent calculation


def seconds(text: str | None) -> float | None:
    """Return an API timestamp in Unix seconds."""
    return datetime.fromisoformat(text).timestamp() if text else None


def condition_since(pod: Manifest, kind: str) -> float | None:
    """Return since when a condition of a pod is True, or None."""
    true_conditions = (
        condition
        for condition in pod["status"].get("conditions") or ()
        if (condition["type"], condition["status"]) == (kind, "True")
    )
    return next((seconds(condition["lastTransitionTime"]) for condition in true_conditions), None)


def container_time(pod: Manifest, what: str) -> float | None:
    """Return a timestamp of the state of a pod's container."""
    states = (part for status in pod["status"].get("containerStatuses") or () for part in status["state"].values())
    return next((seconds(part.get(what)) for part in states if part.get(what)), None)


REACHED: dict[str, Callable[[Manifest], bool]] = {
    "created": lambda _pod: True,
    "scheduled": lambda pod: bool(pod["spec"].get("nodeName")),
    "running": lambda pod: pod["status"]["phase"] == "Running",
    "ready": lambda pod: condition_since(pod, "Ready") is not None,
    "over": lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"},
}
WRITTEN: dict[str, Callable[[Manifest], float | None]] = {
    "scheduled": lambda pod: condition_since(pod, "PodScheduled"),
    "running": lambda pod: container_time(pod, "startedAt"),
    "ready": lambda pod: condition_since(pod, "Ready"),
    "over": lambda pod: container_time(pod, "finishedAt"),
}


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile by ClusterLoader2's formula."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def result_percentiles(result: Result, name: str, clock: Clock) -> dict[int, float | None]:
    """Return the percentiles of a latency in a Result."""
    latency = result.latency(name, "pods", clock)
    assert latency is not None
    return {percent: getattr(latency, f"p{percent}") for percent in PERCENTILES}


def assert_api_percentiles(result: Result, states: States) -> None:
    """Check the percentiles of API timestamps: they are identical."""
    for name, milestone in MILESTONES.items():
        latencies = []
        for pod_states in states.values():
            born = seconds(pod_states[0][1]["metadata"]["creationTimestamp"])
            at = next(when for _, pod in pod_states if REACHED[milestone](pod) and (when := WRITTEN[milestone](pod)))
            assert born is not None
            latencies.append(max(0.0, at - born))
        expected = {percent: percentile(latencies, percent) for percent in PERCENTILES}
        assert result_percentiles(result, name, Clock.API) == pytest.approx(expected, abs=1e-6), name


def assert_watch_percentiles(result: Result, pods: dict[str, PodTimes], states: States) -> None:
    """Check that the percentiles follow from the measured times, and agree with a second watch.

    A percentile differs by no more than the largest difference of one value: with the times of two watches,
    all percentiles are as close as the pair that differs most.
    """
    for name, milestone in MILESTONES.items():
        measured = {uid: pods[uid].seen[milestone] - pods[uid].seen["created"] for uid in states}
        observed = {
            uid: next(at for at, pod in pod_states if REACHED[milestone](pod)) - pod_states[0][0]
            for uid, pod_states in states.items()
        }
        percentiles = result_percentiles(result, name, Clock.WATCH)
        expected = {percent: percentile(list(measured.values()), percent) for percent in PERCENTILES}
        assert percentiles == pytest.approx(expected, abs=2e-6), name
        largest_difference = max(abs(measured[uid] - observed[uid]) for uid in states)
        for percent, value in percentiles.items():
            assert value is not None
            assert abs(value - percentile(list(observed.values()), percent)) <= largest_difference + 2e-6


def assert_times_are_of_these_events(pods: dict[str, PodTimes], states: States) -> None:
    """Check that each time belongs to its event.

    A watch delivers events in the order of their resourceVersion, so the receive times must rise in that
    order, over all pods and milestones. No event is received before its API timestamp.
    """
    by_version = []
    for uid, pod_states in states.items():
        for milestone, is_reached in REACHED.items():
            state = next(pod for _, pod in pod_states if is_reached(pod))
            by_version.append((int(state["metadata"]["resourceVersion"]), pods[uid].seen[milestone]))
        for milestone, at in pods[uid].api.items():
            if milestone in pods[uid].seen:
                assert pods[uid].seen[milestone] >= at
    times = [at for _, at in sorted(by_version)]
    assert times == sorted(times)


def test_a_result_agrees_with_an_independent_measurement(testbed: DaemonTestbed) -> None:
    """API percentiles are identical; watch percentiles are as close as two watches are."""
    write_fleet(testbed, 60)
    selector = f"kwokfleet.dev/fleet={testbed.name}"
    with watch.watching(testbed.cluster, "/api/v1/pods", selector) as other, testbed.run(kwok=True) as daemon:
        assert wait_for_verdict(testbed) == "Passed"
        served = daemon.text(f"/api/v1/results/{testbed.name}/load/0")
        lines = daemon.text(f"/api/v1/results/{testbed.name}/load/0/pods").splitlines()
        [summary] = daemon.get(f"/api/v1/results?fleet={testbed.name}")
    result, pods = stored_result(testbed).result(), {pod.uid: pod for pod in stored_result(testbed).pods()}
    states: States = {}
    for at, _, pod in other.events:
        states.setdefault(pod["metadata"]["uid"], []).append((at, pod))
    assert states.keys() == pods.keys()
    assert (len(pods), result.state, result.gaps, result.troubles) == (60, "Done", (), ())
    for counts in (result.objects, result.pods):
        assert (counts.total, counts.created, counts.scheduled, counts.completed, counts.failed) == (60, 60, 60, 60, 0)
    assert_api_percentiles(result, states)
    assert_watch_percentiles(result, pods, states)
    assert_times_are_of_these_events(pods, states)
    assert {pod.pool for pod in pods.values()} == {"pool"}
    assert sorted(pod.index for pod in pods.values() if pod.index is not None) == list(range(60))
    assert all("event" in pod.api for pod in pods.values())
    assert result.series is not None
    assert any(value for value in result.series.columns["utilisation/pool/cpu"])
    assert (json.loads(served)["run"], len(lines), summary["state"]) == ("0", 60, "Done")


def test_failed_gates_are_reported_and_the_watches_end(testbed: DaemonTestbed) -> None:
    """In the Ledger, a condition, an Event and a metric; the Fleet stays Ready."""
    before = open_watches(testbed, "jobs")
    write_fleet(testbed, 10, expect="{podStartup: {p50: 1ms}, failures: 0, completion: {p99: 10m}}")
    with testbed.run(kwok=True) as daemon:
        assert wait_for_verdict(testbed) == "Failed"
        status, message = condition(testbed, "GatesPassed")
        assert (status, "podStartup.p50" in message, "failures" in message) == ("False", True, False)
        assert condition(testbed, "Ready")[0] == "True"
        waiting.until(lambda: "RunFailed" in testbed.event_reasons())
        metrics = daemon.text("/metrics")
        gates = dict(re.findall(rf'gate_passed{{fleet="{testbed.name}",gate="(.*?)",wave="load"}} (\S+)', metrics))
        assert gates == {"podStartup.p50": "0.0", "failures": "1.0", "completion.p99": "1.0"}
        assert f'kwokfleet_wave_objects_submitted_total{{fleet="{testbed.name}",wave="load"}} 10.0' in metrics
        assert re.search(rf'run_latency_seconds{{clock="watch",fleet="{testbed.name}".*quantile="0.99"', metrics)
        assert "Failed" in testbed.program.run("get", "runs").stdout
        waiting.until(lambda: open_watches(testbed, "jobs") == before)
    with testbed.run() as daemon:  # gates are evaluated once: the next daemon measures nothing
        daemon.wait_synced()
        waiting.until(lambda: f'gate_passed{{fleet="{testbed.name}"' in daemon.text("/metrics"))
        assert condition(testbed, "GatesPassed") == (status, message)
        assert open_watches(testbed, "jobs") == before


def open_watches(testbed: DaemonTestbed, resource: str) -> int:
    """Return the number of open watches on a resource."""
    text = testbed.cluster.kubectl("get", "--raw", "/metrics")
    pattern = rf'apiserver_longrunning_requests{{[^}}]*resource="{resource}"[^}}]*verb="WATCH"[^}}]*}} (\d+)'
    return sum(int(count) for count in re.findall(pattern, text))


def through_proxy(testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy) -> dict[str, str]:
    """Return the environment of a daemon that uses the proxy."""
    return {"KUBECONFIG": proxy.kubeconfig(testbed.folder / "through.json")}


def is_silent(proxy: faulty_proxy.FaultyProxy) -> bool:
    """Return whether the daemon sends only Lease requests for a while."""
    before = len(proxy.requests)
    time.sleep(SILENCE_S)
    requests = [
        request for request in proxy.requests[before:] if request.headers["user-agent"].startswith("kwokfleet/")
    ]
    return not [request.path for request in requests if "/leases" not in request.path]


def test_a_broken_watch_leaves_a_gap_and_after_the_run_no_requests_are_sent(testbed: DaemonTestbed) -> None:
    """The Result has all objects, and the gap with its reason."""
    write_fleet(testbed, 100, "20/s")
    with (
        faulty_proxy.proxy_to(testbed.cluster) as proxy,
        testbed.run(kwok=True, through=through_proxy(testbed, proxy)),
    ):
        waiting.until(lambda: run_status(testbed).get("submitted", 0) > 30)
        proxy.rule = lambda request: (
            faulty_proxy.Reset() if request.is_watch and objects.RUN in unquote(request.path) else None
        )
        proxy.reset_all()
        waiting.until(lambda: len(proxy.faults) > 2)
        proxy.rule = faulty_proxy.pass_through
        assert wait_for_verdict(testbed) == "Passed"
        waiting.until(lambda: is_silent(proxy))
    result = stored_result(testbed).result()
    assert (result.objects.created, result.objects.completed) == (100, 100)
    assert result.gaps
    assert {gap.why.partition(" 127")[0] for gap in result.gaps} != {"kwokfleet was not running"}
    assert all(result.start < gap.start < gap.end for gap in result.gaps)


def test_a_killed_daemon_leaves_a_gap_and_loses_no_object(testbed: DaemonTestbed) -> None:
    """The next daemon finishes the Run: each object once, and the Result contains the gap."""
    measured_wave.assert_survives_a_kill(testbed, 300, "60/s")


def test_measurement_ends_when_the_wave_is_removed(testbed: DaemonTestbed) -> None:
    """The Result keeps the measured values and has the state Cancelled."""
    write_fleet(testbed, 5, complete=", complete: {after: 1h}")
    with testbed.run(kwok=True) as daemon:
        waiting.until(lambda: run_status(testbed).get("state") == "Done")
        (testbed.files / "fleet.yaml").write_text(testbed.text(4))
        waiting.until(lambda: stored_result(testbed).result().state == "Cancelled")
        assert stored_result(testbed).result().objects.created == 5
        waiting.until(lambda: "RunCancelled" in testbed.event_reasons())
        assert f'gate_passed{{fleet="{testbed.name}"' not in daemon.text("/metrics")


def test_a_cancelled_and_retried_run_is_measured_completely(testbed: DaemonTestbed) -> None:
    """Its Result is Cancelled until the retry; then it is complete and contains the gap."""
    write_fleet(testbed, 40, "2/s")  # 20 s: enough for the command on a busy machine
    with testbed.run(kwok=True):
        waiting.until(lambda: run_status(testbed).get("submitted", 0) > 4)
        testbed.program.ok("wave", "cancel", testbed.name, "load")
        assert wait_for_verdict(testbed) == "Measured"
        before = stored_result(testbed).result()
        assert (before.state, before.gates, before.objects.created < 40) == ("Cancelled", (), True)
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        waiting.until(lambda: run_status(testbed).get("verdict") == "Passed", deadline_s=measured_wave.JUDGED_S)
    result = stored_result(testbed).result()
    assert (result.state, result.objects.created, result.objects.completed) == ("Done", 40, 40)
    assert [gap.why for gap in result.gaps] == ["the Run had ended and was retried later"]


def test_a_deadline_ends_the_measurement(testbed: DaemonTestbed) -> None:
    """Objects that do not complete in time fail the gate."""
    write_fleet(testbed, 5, expect="{deadline: 3s}", complete=", complete: {after: 1h}")
    with testbed.run(kwok=True):
        assert wait_for_verdict(testbed) == "Failed"
        assert condition(testbed, "GatesPassed")[1].startswith("failed: load/0: deadline")
    assert (stored_result(testbed).result().state, stored_result(testbed).result().objects.completed) == ("Done", 0)
