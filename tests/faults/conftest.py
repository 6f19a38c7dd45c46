"""What tests of faults share: a fleet, a faulty way to the cluster, and others' objects that must not change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cli, control_plane, faulty_proxy, foreign_objects, sync_testbed
from tests.harness.control_plane import ControlPlane


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[ControlPlane]:
    """Keep a control plane of these tests' own, in which nothing changes anybody's nodes but a test."""
    yield from control_plane.running("faults", foreign_objects.QUIET)


@pytest.fixture
def untouched(cluster: ControlPlane) -> Iterator[None]:
    """Check after the test that not a byte of anybody else's objects has changed."""
    with foreign_objects.assert_unchanged(cluster):
        yield


@pytest.fixture
def scene(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, untouched: None
) -> Iterator[sync_testbed.SyncTestbed]:
    """Give a test a fleet file and the session's cluster, with nothing of ours in it and something of others."""
    yield from sync_testbed.opened(cluster, kwokfleet, tmp_path)


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[faulty_proxy.FaultyProxy]:
    """Stand between kwokfleet and the cluster."""
    with faulty_proxy.proxy_to(cluster) as made:
        yield made


@pytest.fixture
def through(proxy: faulty_proxy.FaultyProxy, tmp_path: Path) -> dict[str, str]:
    """Return the variables that lead a command through the proxy."""
    return {"KUBECONFIG": proxy.kubeconfig(tmp_path / "through.json")}
