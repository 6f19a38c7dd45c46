"""Runs measured by a daemon: what is on the shelf is what happened, and everybody is told what it came to."""

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
"""By UID: every state of a pod, and when it was received."""
MILESTONES = {"scheduling": "scheduled", "podStartup": "running", "ready": "ready", "completion": "over"}
"""The latencies of pods, and the times that they end at."""
PERCENTILES = (50, 90, 95, 99)
SILENCE_S = 3


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Give a test a folder, and leave nothing of ours in the cluster."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


# ----------------------------------------------------------------------------------------
# reckoned by somebody else


def seconds(text: str | None) -> float | None:
    """Return what a timestamp of the API means."""
    return datetime.fromisoformat(text).timestamp() if text else None


def since(pod: Manifest, kind: str) -> float | None:
    """Return since when a condition of a pod has been True, None if it is not."""
    found = (each for each in pod["status"].get("conditions") or () if (each["type"], each["status"]) == (kind, "True"))
    return next((seconds(each["lastTransitionTime"]) for each in found), None)


def container(pod: Manifest, what: str) -> float | None:
    """Return when the only container began or ended, as its state says."""
    states = (part for each in pod["status"].get("containerStatuses") or () for part in each["state"].values())
    return next((seconds(part.get(what)) for part in states if part.get(what)), None)


REACHED: dict[str, Callable[[Manifest], bool]] = {
    "created": lambda _pod: True,
    "scheduled": lambda pod: bool(pod["spec"].get("nodeName")),
    "running": lambda pod: pod["status"]["phase"] == "Running",
    "ready": lambda pod: since(pod, "Ready") is not None,
    "over": lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"},
}
WRITTEN: dict[str, Callable[[Manifest], float | None]] = {
    "scheduled": lambda pod: since(pod, "PodScheduled"),
    "running": lambda pod: container(pod, "startedAt"),
    "ready": lambda pod: since(pod, "Ready"),
    "over": lambda pod: container(pod, "finishedAt"),
}


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile as ClusterLoader2 has it."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def of_result(result: Result, name: str, clock: Clock) -> dict[int, float | None]:
    """Return the percentiles that a Result has."""
    found = result.latency(name, "pods", clock)
    assert found is not None
    return {percent: getattr(found, f"p{percent}") for percent in PERCENTILES}


def assert_api_percentiles(result: Result, states: States) -> None:
    """Assert that timestamps of the API, read off by us, come to the very same numbers."""
    for name, milestone in MILESTONES.items():
        found = []
        for seen in states.values():
            born = seconds(seen[0][1]["metadata"]["creationTimestamp"])
            at = next(when for _, pod in seen if REACHED[milestone](pod) and (when := WRITTEN[milestone](pod)))
            assert born is not None
            found.append(max(0.0, at - born))
        expected = {percent: percentile(found, percent) for percent in PERCENTILES}
        assert of_result(result, name, Clock.API) == pytest.approx(expected, abs=1e-6), name


def assert_watch_percentiles(result: Result, pods: dict[str, PodTimes], states: States) -> None:
    """Assert that its times come to its percentiles; and that ours, received elsewhere, differ no more than they do.

    A percentile moves no further than the value that moved most: if each pod's latency is known by two
    watches, all percentiles lie as close together as the two that differ most.
    """
    for name, milestone in MILESTONES.items():
        theirs = {uid: pods[uid].seen[milestone] - pods[uid].seen["created"] for uid in states}
        ours = {
            uid: next(at for at, pod in seen if REACHED[milestone](pod)) - seen[0][0] for uid, seen in states.items()
        }
        told = of_result(result, name, Clock.WATCH)
        expected = {percent: percentile(list(theirs.values()), percent) for percent in PERCENTILES}
        assert told == pytest.approx(expected, abs=2e-6), name
        apart = max(abs(theirs[uid] - ours[uid]) for uid in states)
        for percent, value in told.items():
            assert value is not None
            assert abs(value - percentile(list(ours.values()), percent)) <= apart + 2e-6


def assert_times_are_of_these_events(pods: dict[str, PodTimes], states: States) -> None:
    """Assert that each time belongs to the event that it should.

    A watch brings events in the order of their versions, so the times at which it received them must rise in that
    order, over all pods and milestones; one that was taken from another event would fall out of the line.
    None can lie before the second in which the API server wrote what it tells of.
    """
    line = []
    for uid, seen in states.items():
        for milestone, is_so in REACHED.items():
            state = next(pod for _, pod in seen if is_so(pod))
            line.append((int(state["metadata"]["resourceVersion"]), pods[uid].seen[milestone]))
        for milestone, at in pods[uid].api.items():
            if milestone in pods[uid].seen:
                assert pods[uid].seen[milestone] >= at
    times = [at for _, at in sorted(line)]
    assert times == sorted(times)


def test_a_run_is_measured_as_somebody_else_would(testbed: DaemonTestbed) -> None:
    """Another watch, another formula: API percentiles are the same, those of the watch as close as two watches are."""
    write_fleet(testbed, 60)
    selector = f"kwokfleet.dev/fleet={testbed.name}"
    with watch.watching(testbed.cluster, "/api/v1/pods", selector) as other, testbed.run(kwok=True) as daemon:
        assert wait_for_verdict(testbed) == "Passed"
        served = daemon.text(f"/api/v1/results/{testbed.name}/load/0")
        lines = daemon.text(f"/api/v1/results/{testbed.name}/load/0/pods").splitlines()
        [short] = daemon.get(f"/api/v1/results?fleet={testbed.name}")
    result, pods = stored_result(testbed).result(), {each.uid: each for each in stored_result(testbed).pods()}
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
    assert {each.pool for each in pods.values()} == {"pool"}
    assert sorted(each.index for each in pods.values() if each.index is not None) == list(range(60))
    assert all("event" in each.api for each in pods.values())
    assert result.series is not None
    assert any(value for value in result.series.columns["utilisation/pool/cpu"])
    assert (json.loads(served)["run"], len(lines), short["state"]) == ("0", 60, "Done")


def test_gates_that_fail_are_told_and_nothing_is_watched_any_longer(testbed: DaemonTestbed) -> None:
    """In the Ledger, as a condition, an Event and a metric; the Fleet is Ready all the same."""
    before = watched(testbed, "jobs")
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
        waiting.until(lambda: watched(testbed, "jobs") == before)
    with testbed.run() as daemon:  # it is judged once: who comes next has nothing to measure
        daemon.wait_synced()
        waiting.until(lambda: f'gate_passed{{fleet="{testbed.name}"' in daemon.text("/metrics"))
        assert condition(testbed, "GatesPassed") == (status, message)
        assert watched(testbed, "jobs") == before


def watched(testbed: DaemonTestbed, resource: str) -> int:
    """Return how many watches on a resource the API server serves."""
    text = testbed.cluster.kubectl("get", "--raw", "/metrics")
    pattern = rf'apiserver_longrunning_requests{{[^}}]*resource="{resource}"[^}}]*verb="WATCH"[^}}]*}} (\d+)'
    return sum(int(count) for count in re.findall(pattern, text))


def through(testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy) -> dict[str, str]:
    """Return the environment of a daemon whose requests are noted."""
    return {"KUBECONFIG": proxy.kubeconfig(testbed.folder / "through.json")}


def is_silent(proxy: faulty_proxy.FaultyProxy) -> bool:
    """Return whether the daemon asks nothing for a while but about leases, its own and those of the nodes."""
    before = len(proxy.requests)
    time.sleep(SILENCE_S)
    ours = [each for each in proxy.requests[before:] if each.headers["user-agent"].startswith("kwokfleet/")]
    return not [each.path for each in ours if "/leases" not in each.path]


def test_a_connection_that_breaks_leaves_a_gap_and_after_a_run_there_is_silence(testbed: DaemonTestbed) -> None:
    """What was seen before and after is measured; when nobody looked is in the Result, and why."""
    write_fleet(testbed, 100, "20/s")
    with faulty_proxy.proxy_to(testbed.cluster) as proxy, testbed.run(kwok=True, through=through(testbed, proxy)):
        waiting.until(lambda: run_status(testbed).get("submitted", 0) > 30)
        proxy.rule = lambda asked: (
            faulty_proxy.Reset() if asked.is_watch and objects.RUN in unquote(asked.path) else None
        )
        proxy.reset_all()
        waiting.until(lambda: len(proxy.faults) > 2)
        proxy.rule = faulty_proxy.pass_through
        assert wait_for_verdict(testbed) == "Passed"
        waiting.until(lambda: is_silent(proxy))
    result = stored_result(testbed).result()
    assert (result.objects.created, result.objects.completed) == (100, 100)
    assert result.gaps
    assert {each.why.partition(" 127")[0] for each in result.gaps} != {"kwokfleet was not running"}
    assert all(result.start < each.start < each.end for each in result.gaps)


def test_a_daemon_that_is_killed_leaves_a_gap_and_no_object_is_lost(testbed: DaemonTestbed) -> None:
    """The next one finishes the Run: each object once, the Result complete, and when nobody looked is in it."""
    measured_wave.assert_survives_a_kill(testbed, 300, "60/s")


def test_a_wave_that_vanishes_is_not_measured_any_longer(testbed: DaemonTestbed) -> None:
    """What was measured until then stays, and says so."""
    write_fleet(testbed, 5, complete=", complete: {after: 1h}")
    with testbed.run(kwok=True) as daemon:
        waiting.until(lambda: run_status(testbed).get("state") == "Done")
        (testbed.files / "fleet.yaml").write_text(testbed.text(4))
        waiting.until(lambda: stored_result(testbed).result().state == "Cancelled")
        assert stored_result(testbed).result().objects.created == 5
        waiting.until(lambda: "RunCancelled" in testbed.event_reasons())
        assert f'gate_passed{{fleet="{testbed.name}"' not in daemon.text("/metrics")


def test_a_run_that_is_cancelled_and_retried_is_measured_whole(testbed: DaemonTestbed) -> None:
    """Until it is retried its Result says Cancelled; then it has everything, and when nobody looked."""
    write_fleet(testbed, 40, "8/s")
    with testbed.run(kwok=True):
        waiting.until(lambda: run_status(testbed).get("submitted", 0) > 10)
        testbed.program.ok("wave", "cancel", testbed.name, "load")
        assert wait_for_verdict(testbed) == "Measured"
        before = stored_result(testbed).result()
        assert (before.state, before.gates, before.objects.created < 40) == ("Cancelled", (), True)
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        waiting.until(lambda: run_status(testbed).get("verdict") == "Passed", deadline_s=measured_wave.JUDGED_S)
    result = stored_result(testbed).result()
    assert (result.state, result.objects.created, result.objects.completed) == ("Done", 40, 40)
    assert [gap.why for gap in result.gaps] == ["the Run had ended and was retried later"]


def test_a_deadline_ends_what_never_ends(testbed: DaemonTestbed) -> None:
    """Objects that do not complete in time fail that gate; nobody waits for them any longer."""
    write_fleet(testbed, 5, expect="{deadline: 3s}", complete=", complete: {after: 1h}")
    with testbed.run(kwok=True):
        assert wait_for_verdict(testbed) == "Failed"
        assert condition(testbed, "GatesPassed")[1].startswith("failed: load/0: deadline")
    assert (stored_result(testbed).result().state, stored_result(testbed).result().objects.completed) == ("Done", 0)
