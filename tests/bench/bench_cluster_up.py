"""Time to start a cluster: `kwokfleet cluster up` and kwokctl."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kwokfleet import settings
from kwokfleet.embedded import binaries, cluster, kwokctl, ports, progress, state, versions
from tests.bench import table

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


def run() -> table.Result:
    """Measure in turn: kwokctl, kwokctl --wait, kwokfleet."""
    tools = binaries.ensure(settings.from_environment(os.environ), progress.discard)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        contestants: dict[str, Callable[[], float]] = {
            "kwokctl create cluster": lambda: _kwokctl(root / "plain", tools, "0s"),
            "kwokctl create cluster --wait": lambda: _kwokctl(root / "wait", tools, "60s"),
            "kwokfleet cluster up": lambda: _kwokfleet(root / "ours"),
        }
        samples = table.measure_in_turn(ROUNDS, contestants)
    return table.Result(
        "From nothing to a cluster, binaries cached",
        "s",
        samples,
        peers=("kwokctl create cluster", "kwokctl create cluster --wait"),
        goal="at most 1.5 times kwokctl until there is a cluster to use; without --wait kwokctl returns before "
        "the API server is ready, ours waits for every component and the first service account",
    )


def _kwokctl(root: Path, tools: binaries.Binaries, wait: str) -> float:
    """Create the same cluster with kwokctl."""
    where = state.cluster_folder(root, "bench")
    spec = state.Spec(binaries=tuple((name, str(tools.path(name))) for name in versions.COMPONENTS))
    config = root / "kwokctl.json"
    root.mkdir(exist_ok=True)
    config.write_text(json.dumps(kwokctl.configuration(spec, ports.choose(0, frozenset(), str(root)))))
    environment = os.environ | {
        "KWOK_WORKDIR": str(root),
        "PATH": f"{tools.path('kubectl').parent}:{os.environ['PATH']}",
    }
    command = [str(tools.path("kwokctl")), "--name", "bench"]
    create = [*command, "create", "cluster", "--config", str(config), "--kubeconfig", "", "--wait", wait]
    start = time.monotonic()
    subprocess.run(create, env=environment, capture_output=True, check=True, timeout=120)
    took = time.monotonic() - start
    delete = [*command, "delete", "cluster", "--kubeconfig", str(where.root.parent / "none")]
    subprocess.run(delete, env=environment, capture_output=True, check=True, timeout=120)
    return took


def _kwokfleet(root: Path) -> float:
    environment = os.environ | {"KWOKFLEET_DATA_DIR": str(root)}
    command = [sys.executable, "-m", "kwokfleet", "cluster"]
    start = time.monotonic()
    subprocess.run([*command, "up"], env=environment, capture_output=True, check=True, timeout=120)
    took = time.monotonic() - start
    cluster.down(settings.from_environment(environment), "default", progress.discard)
    return took
