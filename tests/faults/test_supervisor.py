"""The Supervisor without an API server: kwok reconnects, and is not restarted in a loop."""

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
    """Return the name of a new fleet; delete its objects at the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


@contextmanager
def without_api_server(cluster: ControlPlane, program: cli.Cli) -> Iterator[None]:
    """Kill the API server for the block, and at least a minute."""
    operator = cli.Cli(control_plane.STATE, program.environment | {"KWOKFLEET_DATA_DIR": str(control_plane.STATE)})
    os.kill(int(cluster.where.pid_file("kube-apiserver").read_text()), signal.SIGKILL)
    until = time.monotonic() + AWAY_S
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        operator.ok("cluster", "up", "--name", cluster.where.name)


def wait_until_driving(supervised: supervised_kwok.SupervisedKwok, name: str) -> None:
    """Wait until a new pod runs and every node has a lease of the current process."""
    supervised_kwok.run_pod(supervised.cluster, name, "after", f"{name}-pool-7")
    waiting.until(lambda: supervised_kwok.phase(supervised.cluster, name, "after") == "Running", deadline_s=120)
    waiting.until(lambda: supervised.status().state is shard.ShardState.READY, deadline_s=120)
    waiting.until(lambda: list(supervised.leases().values()) == [supervised.status().identity] * 20, deadline_s=120)


def test_kwok_survives_an_outage_of_the_api_server(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, name: str
) -> None:
    """The same process reconnects, also after its leases expired."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration="16s") as supervised:
        supervised.sync(FLEET.format(name=name))
        supervised.wait_ready()
        before = supervised.status()
        with without_api_server(cluster, kwokfleet):
            pass
        wait_until_driving(supervised, name)
        assert (supervised.status().pid, supervised.status().identity) == (before.pid, before.identity)
        assert supervised.status().restarts == 0


def test_a_kwok_killed_during_an_outage_starts_after_it(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, name: str
) -> None:
    """It starts once, after the leases of the dead process are released."""
    with supervised_kwok.running(cluster, tmp_path, name, leaseDuration="600s") as supervised:
        supervised.sync(FLEET.format(name=name))
        supervised.wait_ready()
        before = supervised.status()
        with without_api_server(cluster, kwokfleet):
            os.kill(before.pid, signal.SIGKILL)
            waiting.until(lambda: "no response from the API server" in supervised.status().why)
        wait_until_driving(supervised, name)
        assert supervised.status().identity != before.identity
        assert supervised.status().restarts == 1
