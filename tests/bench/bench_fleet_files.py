"""CPU of the commands that need only files: whole processes, with the interpreter itself as the measure.

The last two rows are one process that renders again and again, as the daemon does: the whole fleet
at first, and after one pool of twenty has changed.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from kwokfleet.render import desired
from kwokfleet.source import loader as source
from tests.bench import table

ROUNDS = 7
ROOT = Path(__file__).parents[2]
POOLS, NODES_EACH = 20, 500
NOW = datetime(2026, 3, 2, tzinfo=UTC)

WAVE = """\
  lifecycles:
    - {name: short, pod: {create: 0.1s..0.5s, ready: 10s..11s, complete: args}}
  waves:
    - name: load
      count: 10000
      arrivals: {poisson: 100/s}
      lifecycle: short
      vary: {gpus: {choice: [2, 4, 6, 8]}, seconds: {exponential: {mean: 60}, integer: true}}
      template:
        apiVersion: batch/v1
        kind: Job
        spec:
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: main
                  image: busybox
                  args: [sleep, "{{seconds}}s"]
                  resources: {requests: {cpu: 5m, nvidia.com/gpu: "{{gpus}}"}}
"""


def fleet(first_pool: int = NODES_EACH) -> str:
    """Return a Fleet of 10,000 nodes in 20 pools and a wave of 10,000 jobs."""
    head = "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: big}\nspec:\n  nodePools:\n"
    pools = [
        f"    - name: pool-{number}\n      replicas: {NODES_EACH if number else first_pool}\n"
        "      resources: {cpu: 32, memory: 256Gi, pods: 110}\n"
        "      spread: {topology.kubernetes.io/zone: [a, b, c]}\n"
        for number in range(POOLS)
    ]
    return head + "".join(pools) + WAVE


def cpu(*command: str) -> float:
    """Return the CPU seconds of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run(command, cwd=ROOT, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run() -> table.Result:
    """Measure each command in turn."""
    kwokfleet = str(Path(sys.executable).with_name("kwokfleet"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "big.yaml"
        file.write_text(fleet())
        samples = table.measure_in_turn(
            ROUNDS,
            {
                "python -c pass": lambda: cpu(sys.executable, "-c", "pass"),
                "validate fleets/": lambda: cpu(kwokfleet, "validate", "fleets"),
                "validate 10,000 nodes and jobs": lambda: cpu(kwokfleet, "validate", folder),
                "render 10,000 nodes, plan 10,000 jobs": lambda: cpu(kwokfleet, "render", folder),
                "the same, with each job's manifest": lambda: cpu(kwokfleet, "render", folder, "--waves"),
                "the same, as JSON": lambda: cpu(kwokfleet, "render", folder, "--waves", "-o", "json"),
                "first render, in a process": lambda: _renders(file)[0],
                "second render, 1 pool of 20 changed": lambda: _renders(file)[1],
            },
        )
        peak = _peak_mb(kwokfleet, folder)
    goal = (
        "goals: render at most 1.0 s and 200 MB; validate fleets/ under 0.5 s; a second render in proportion. "
        f"Peak memory of `render` now: {peak:.0f} MB"
    )
    return table.Result("Fleet files: CPU", "s", samples, ("python -c pass",), goal)


def _renders(file: Path) -> tuple[float, float]:
    """Return the CPU seconds to render a fleet, and to render it again with one changed pool."""
    loader, renderer = source.Loader(), desired.Renderer()
    file.write_text(fleet())
    whole = loader.load(file).tree
    begun = time.process_time()
    renderer.desired(whole, NOW)
    first = time.process_time() - begun
    file.write_text(fleet(NODES_EACH + 1))
    changed = loader.load(file).tree
    begun = time.process_time()
    renderer.desired(changed, NOW)
    second = time.process_time() - begun
    file.write_text(fleet())
    return first, second


def _peak_mb(*command: str) -> float:
    """Return the peak memory of `render`, measured in a separate process."""
    script = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command[0], "render", *command[1:]], check=True, capture_output=True, text=True
    )
    unit = 1024 if sys.platform == "linux" else 1024 * 1024
    return int(done.stdout) / unit
