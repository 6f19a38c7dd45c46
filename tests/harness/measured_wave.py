"""A fleet with one measured wave of Jobs, and the status and result of its only Run."""

import time
from typing import Any

from kwokfleet.measure import result_store
from kwokfleet.measure.result import Clock
from tests.harness import waiting
from tests.harness.daemon_testbed import DaemonTestbed

Manifest = dict[str, Any]
WAVE = """
  lifecycles:
    - name: job
      pod: {{create: 10ms..50ms, ready: 10ms..200ms{complete}}}
  waves:
    - name: load
      count: {count}
      arrivals: {{rate: {rate}}}
      namespace: {name}
      lifecycle: job
      expect: {expect}
      template:
        apiVersion: batch/v1
        kind: Job
        spec:
          template:
            spec:
              restartPolicy: Never
              containers: [{{name: main, image: busybox, resources: {{requests: {{cpu: 100m}}}}}}]
"""
COMPLETES = ", complete: {after: 1s..2s}"
JUDGED_S = 180


def write_fleet(
    testbed: DaemonTestbed, count: int, rate: str = "50/s", expect: str = "{failures: 0}", complete: str = COMPLETES
) -> None:
    """Write a fleet with a wave of Jobs."""
    wave = WAVE.format(name=testbed.name, count=count, rate=rate, expect=expect, complete=complete)
    (testbed.files / "fleet.yaml").write_text(testbed.text(4) + wave)


def run_status(testbed: DaemonTestbed) -> Manifest:
    """Return the Ledger entry of the only Run."""
    waves = (testbed.fleet().get("status") or {}).get("waves") or [{}]
    return next(iter(waves[0].get("runs") or ()), {})


def wait_for_verdict(testbed: DaemonTestbed) -> str:
    """Wait for the verdict of the only Run; return it."""
    return str(waiting.until(lambda: run_status(testbed).get("verdict"), deadline_s=JUDGED_S))


def stored_result(testbed: DaemonTestbed) -> result_store.StoredResult:
    """Return the stored result of the only Run."""
    [stored] = result_store.ResultStore(testbed.program.data_dir / "results").find(testbed.name)
    return stored


def condition(testbed: DaemonTestbed, kind: str) -> tuple[str, str]:
    """Return the status and message of a fleet's condition."""
    conditions = testbed.fleet()["status"]["conditions"]
    return next((condition["status"], condition["message"]) for condition in conditions if condition["type"] == kind)


def assert_survives_a_kill(testbed: DaemonTestbed, count: int, rate: str) -> None:
    """Kill a daemon during a Run: the next one finishes it, and its Result has the measurement gap."""
    write_fleet(testbed, count, rate)
    jobs = ("jobs", "-n", testbed.name, "-l", "kwokfleet.dev/wave=load")
    with testbed.run(kwok=True) as daemon:
        waiting.until(lambda: len(testbed.cluster.get(*jobs)["items"]) > count // 3)
        daemon.kill()
    killed = time.time()
    before = {job["metadata"]["uid"] for job in testbed.cluster.get(*jobs)["items"]}
    assert len(before) < count
    with testbed.run(kwok=True):
        assert wait_for_verdict(testbed) == "Passed"
    after = testbed.cluster.get(*jobs)["items"]
    assert len(after) == count
    assert before <= {job["metadata"]["uid"] for job in after}
    result, pods = stored_result(testbed).result(), list(stored_result(testbed).pods())
    assert (result.state, result.objects.created, result.objects.completed) == ("Done", count, count)
    assert sorted(pod.index for pod in pods if pod.index is not None) == list(range(count))
    [gap] = result.gaps
    assert (gap.why, gap.start.timestamp() <= killed <= gap.end.timestamp()) == ("kwokfleet was not running", True)
    by_watch = result.latency("podStartup", "pods", Clock.WATCH)
    by_api = result.latency("podStartup", "pods", Clock.API)
    assert by_watch is not None
    assert by_api is not None
    assert by_watch.count + by_watch.missing == by_api.count == count
    assert by_watch.missing > 0
