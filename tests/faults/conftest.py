"""Fixtures of fault tests: a fleet, a faulty proxy, and foreign objects that must not change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cli, control_plane, faulty_proxy, foreign_objects, sync_testbed
from tests.harness.control_plane import ControlPlane


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[ControlPlane]:
    """Run a separate control plane without controllers that change nodes."""
    yield from control_plane.running("faults", foreign_objects.QUIET)


@pytest.fixture
def untouched(cluster: ControlPlane) -> Iterator[None]:
    """Check that the test does not change foreign objects."""
    with foreign_objects.assert_unchanged(cluster):
        yield


@pytest.fixture
def testbed(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, untouched: None
) -> Iterator[sync_testbed.SyncTestbed]:
    """Return a fleet file and a cluster with foreign objects only."""
    yield from sync_testbed.opened(cluster, kwokfleet, tmp_path)


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[faulty_proxy.FaultyProxy]:
    """Return a faulty proxy to the cluster."""
    with faulty_proxy.proxy_to(cluster) as faulty:
        yield faulty


@pytest.fixture
def through(proxy: faulty_proxy.FaultyProxy, tmp_path: Path) -> dict[str, str]:
    """Return the variables that make a command use the proxy."""
    return {"KUBECONFIG": proxy.kubeconfig(tmp_path / "through.json")}
