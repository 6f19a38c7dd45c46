"""CPU time of `kwokfleet --version` and `--help`, compared with kubectl."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kwokfleet import settings
from kwokfleet.embedded import binaries, progress
from tests.bench import table

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 10


def run() -> table.Result:
    """Measure the CPU time of whole processes."""
    kubectl = binaries.ensure(settings.from_environment(os.environ), progress.discard).path("kubectl")
    kwokfleet = str(Path(sys.executable).with_name("kwokfleet"))
    contestants: dict[str, Callable[[], float]] = {
        "python -c pass": lambda: _cpu_s(sys.executable, "-c", "pass"),
        "kubectl --help": lambda: _cpu_s(str(kubectl), "--help"),
        "kwokfleet --version": lambda: _cpu_s(kwokfleet, "--version"),
        "kwokfleet --help": lambda: _cpu_s(kwokfleet, "--help"),
        "kwokfleet cluster up --help": lambda: _cpu_s(kwokfleet, "cluster", "up", "--help"),
    }
    return table.Result(
        "CPU time of a question",
        "s of CPU",
        table.measure_in_turn(ROUNDS, contestants),
        peers=("kubectl --help",),
        goal="--version and --help under 0.3 s of CPU",
    )


def _cpu_s(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
