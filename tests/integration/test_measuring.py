"""Runs measured by a daemon: what is on the shelf is what happened, and everybody is told what it came to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.core.result import PodTimes, Result
from kwokfleet.edge import shelf
from tests.harness import cli, labs, waiting, watch
from tests.harness.control_plane import ControlPlane
from tests.harness.labs import Lab

Manifest = dict[str, Any]
WAVE = """
  lifecycles:
    - name: job
      pod: {{create: 10ms..50ms, ready: 10ms..200ms, complete: {{after: 1s..2s}}}}
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


@pytest.fixture
def lab(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[Lab]:
    """Give a test a folder, and leave nothing of ours in the cluster."""
    yield from labs.opened(cluster, kwokfleet, tmp_path)


def save(lab: Lab, count: int, rate: str = "50/s", expect: str = "{failures: 0}") -> None:
    """Write a fleet with a wave of Jobs."""
    wave = WAVE.format(name=lab.name, count=count, rate=rate, expect=expect)
    (lab.files / "fleet.yaml").write_text(lab.text(4) + wave)


def run(lab: Lab) -> Manifest:
    """Return what the Ledger says of the only Run."""
    waves = (lab.fleet().get("status") or {}).get("waves") or [{}]
    return next(iter(waves[0].get("runs") or ()), {})


def kept(lab: Lab) -> tuple[Result, list[PodTimes]]:
    """Return what is on the shelf of the only Run, once it has been judged."""
    waiting.until(lambda: run(lab).get("verdict"), deadline_s=120)
    [found] = shelf.Shelf(lab.program.data_dir / "results").find(lab.name)
    return found.result(), list(found.pods())


def test_a_run_is_measured(lab: Lab) -> None:
    save(lab, 40)
    with watch.watching(lab.cluster, "/api/v1/pods", f"kwokfleet.dev/fleet={lab.name}"), lab.run(kwok=True) as daemon:
        made, pods = kept(lab)
        print(made.model_dump_json(indent=1, exclude={"series"})[:12000])
        print(pods[0])
        print(lab.fleet()["status"]["conditions"], run(lab))
        print(lab.told())
        print(
            [
                line
                for line in daemon.text("/metrics").splitlines()
                if "gate_passed" in line or "wave_obj" in line or "run_latency" in line
            ]
        )
        print(daemon.lines[-10:])
        print(daemon.get("/api/v1/results"))
        assert 0
