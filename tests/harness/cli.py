"""Runs the `kwokfleet` program in another process, with its own home and data folders."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import settings
from kwokfleet.embedded import cluster, progress, state
from tests.harness import control_plane, fork_server

TIMEOUT_S = fork_server.TIMEOUT_S


@dataclass(frozen=True)
class Cli:
    """Runs `kwokfleet` without touching the user's folders."""

    data_dir: Path
    environment: dict[str, str]
    fresh: bool = False
    """Whether each command starts a new Python instead of a fork of a preloaded one."""

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "kwokfleet", *arguments],
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        if not self.fresh:
            return fork_server.run(list(arguments), self.environment | variables)
        with self.start(*arguments, **variables) as process:
            try:
                out, err = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ok(self, *arguments: str, **variables: str) -> str:
        """Run a command that must succeed; return its standard output."""
        done = self.run(*arguments, **variables)
        assert done.returncode == 0, f"kwokfleet {' '.join(arguments)} gave {done.returncode}: {done.stderr}"
        return done.stdout

    def where(self, name: str = "default") -> state.ClusterFolder:
        """Return a cluster's folder."""
        return state.cluster_folder(self.data_dir, name)

    def log_tails(self) -> list[tuple[str, str]]:
        """Return the log tails of every cluster of this test."""
        return [
            tail for name in state.cluster_names(self.data_dir) for tail in control_plane.log_tails(self.where(name))
        ]


def isolated(folder: Path) -> Iterator[Cli]:
    """Create the folders of one test; stop its clusters at the end."""
    data_dir = folder / "data"
    home = folder / "home"
    home.mkdir()
    # The cache of binaries is shared by all tests.
    config = settings.from_environment(os.environ)
    environment = dict(os.environ) | {
        "HOME": str(home),
        "KWOKFLEET_DATA_DIR": str(data_dir),
        "KWOKFLEET_CACHE_DIR": str(config.cache_dir),
    }
    for name in (
        "XDG_DATA_HOME",
        "XDG_CACHE_HOME",
        "KUBECONFIG",
        "KWOKFLEET_LOG_LEVEL",
        "KWOKFLEET_LOG_FORMAT",
    ):
        environment.pop(name, None)
    try:
        yield Cli(data_dir, environment)
    finally:
        config = settings.from_environment(environment)
        for name in state.cluster_names(data_dir):
            cluster.down(config, name, progress.discard)
