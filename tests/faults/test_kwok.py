"""kwok, looked after, while the API server is away: it waits for it, and nobody restarts it in a loop."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kwokfleet.kwok import shard
from tests.harness import cli, control_plane, supervised_kwok, waiting
from tests.harness.control_plane import ControlPlane

AWAY_S = 60
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}}}
spec: {{nodePools: [{{name: pool, replicas: 20, taint: false}}]}}
"""


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Name a fleet, and remove what is left of it in the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


@contextmanager
def server_away(cluster: ControlPlane, program: cli.Cli) -> Iterator[None]:
    """Kill the API server for the time of the block, and no less than a minute."""
    operator = cli.Cli(control_plane.STATE, program.environment | {"KWOKFLEET_DATA_DIR": str(control_plane.STATE)})
    os.kill(int(cluster.where.pid_file("kube-apiserver").read_text()), signal.SIGKILL)
    until = time.monotonic() + AWAY_S
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        operator.ok("cluster", "up", "--name", cluster.where.name)


def drives_again(kept: supervised_kwok.SupervisedKwok, name: str) -> None:
    """Wait until a new pod runs and every node has a lease of the living process."""
    supervised_kwok.run_pod(kept.cluster, name, "after", f"{name}-pool-7")
    waiting.until(lambda: supervised_kwok.phase(kept.cluster, name, "after") == "Running", deadline_s=120)
    waiting.until(lambda: kept.status().state is shard.ShardState.READY, deadline_s=120)
    waiting.until(lambda: list(kept.leases().values()) == [kept.status().identity] * 20, deadline_s=120)


def test_kwok_outlives_an_api_server_that_is_away(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, name: str
) -> None:
    """The same process comes back by itself, also where its leases have expired meanwhile."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration="16s") as kept:
        kept.sync(FLEET.format(name=name))
        kept.wait_ready()
        before = kept.status()
        with server_away(cluster, kwokfleet):
            pass
        drives_again(kept, name)
        assert (kept.status().pid, kept.status().identity) == (before.pid, before.identity)
        assert kept.status().restarts == 0


def test_a_kwok_that_is_killed_while_the_api_server_is_away_is_not_restarted_in_a_loop(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, name: str
) -> None:
    """The next one is started when the server is back and the leases of the dead one are gone: it drives at once."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration="600s") as kept:
        kept.sync(FLEET.format(name=name))
        kept.wait_ready()
        before = kept.status()
        with server_away(cluster, kwokfleet):
            os.kill(before.pid, signal.SIGKILL)
            waiting.until(lambda: "API server is away" in kept.status().why)
        drives_again(kept, name)
        assert kept.status().identity != before.identity
        assert kept.status().restarts == 1
