"""Soak test: Stage edits, restarts, kills, changes of size and shards in a loop.

It prints every action. It exits with 1 and the reasons if a process, file descriptor or thread leaked, if memory grew,
or if the cluster is not in sync at the end.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.harness import waiting
from tests.soak import samples, soak_cluster


def main() -> None:
    """Run the soak test and exit."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="duration (10)")
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        problems = soak(Path(name).resolve(), minutes * 60)
    for problem in problems:
        print(f"problem: {problem}")
    print("no problems" if not problems else f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


def soak(folder: Path, duration_s: float) -> list[str]:
    """Run for some seconds; return the problems."""
    print("starting a control plane, a fleet and pods", flush=True)
    with soak_cluster.opened(folder) as cluster:
        with soak_cluster.running_supervisor(cluster) as process:
            cluster.settle()
            taken = _act(cluster, process, duration_s)
            cluster.desired = soak_cluster.FleetSettings()
            cluster.sync()
            cluster.settle()
            waiting.until(lambda: cluster.running_pods() == soak_cluster.PODS, deadline_s=soak_cluster.SETTLE_S)
            problems = [*samples.verdict(taken), *cluster.problems()]
        remaining = soak_cluster.remaining_processes(cluster.program.data_dir / "kwok")
        for line in (f"{len(taken)} actions", *samples.summary(taken), f"processes left: {len(remaining)}"):
            print(line)
        return [*problems, *(f"still runs: {process_line}" for process_line in remaining)]


def _act(cluster: soak_cluster.SoakCluster, process: psutil.Process, duration_s: float) -> list[samples.Sample]:
    """Run all actions equally often; take a sample after each."""
    began = time.monotonic()
    taken: list[samples.Sample] = []
    actions = [
        cluster.edit_stage,
        cluster.edit_stage,
        cluster.resize,
        cluster.reshard,
        cluster.change_lease,
        cluster.restart,
        cluster.kill,
    ]
    turn: list[int] = []
    while time.monotonic() - began < duration_s:
        turn = turn or cluster.seeded_random.sample(range(len(actions)), len(actions))
        at = time.monotonic()
        description = actions[turn.pop()]()
        cluster.settle()
        now = time.monotonic()
        taken.append(cluster.sample(process, now - began))
        passed = f"{int(now - began) // 60}:{int(now - began) % 60:02} of {duration_s / 60:g} min"
        print(f"{passed:>16} #{len(taken):<4} {description:<36} {now - at:5.1f} s  {taken[-1]}", flush=True)
    return taken


if __name__ == "__main__":
    main()
