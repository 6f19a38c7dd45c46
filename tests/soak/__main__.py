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
        wrong = soak(Path(name).resolve(), minutes * 60)
    for each in wrong:
        print(f"wrong: {each}")
    print("all is well" if not wrong else f"{len(wrong)} things are wrong")
    sys.exit(1 if wrong else 0)


def soak(folder: Path, duration_s: float) -> list[str]:
    """Run for some seconds; return the problems."""
    print("a control plane, a fleet and pods", flush=True)
    with soak_cluster.opened(folder) as lab:
        with soak_cluster.running_supervisor(lab) as process:
            lab.settle()
            seen = _act(lab, process, duration_s)
            lab.wish = soak_cluster.FleetSettings()
            lab.sync()
            lab.settle()
            waiting.until(lambda: lab.running_pods() == soak_cluster.PODS, deadline_s=soak_cluster.SETTLE_S)
            wrong = [*samples.verdict(seen), *lab.complaints()]
        left = soak_cluster.remaining_processes(lab.program.data_dir / "kwok")
        for line in (f"{len(seen)} actions", *samples.summary(seen), f"processes left: {len(left)}"):
            print(line)
        return [*wrong, *(f"still runs: {each}" for each in left)]


def _act(lab: soak_cluster.SoakCluster, process: psutil.Process, duration_s: float) -> list[samples.Sample]:
    """Run all actions equally often; take a sample after each."""
    began = time.monotonic()
    seen: list[samples.Sample] = []
    actions = [lab.edit_stage, lab.edit_stage, lab.resize, lab.reshard, lab.change_lease, lab.restart, lab.kill]
    turn: list[int] = []
    while time.monotonic() - began < duration_s:
        turn = turn or lab.chance.sample(range(len(actions)), len(actions))
        at = time.monotonic()
        said = actions[turn.pop()]()
        lab.settle()
        now = time.monotonic()
        seen.append(lab.sample(process, now - began))
        passed = f"{int(now - began) // 60}:{int(now - began) % 60:02} of {duration_s / 60:g} min"
        print(f"{passed:>16} #{len(seen):<4} {said:<36} {now - at:5.1f} s  {seen[-1]}", flush=True)
    return seen


if __name__ == "__main__":
    main()
