"""Fixtures for tests with a real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cli, fleet_folder, in_process_sync, kwok
from tests.harness.control_plane import ControlPlane


@pytest.fixture(scope="module")
def kinds(session_cluster: ControlPlane) -> ControlPlane:
    """Return the session's control plane with kwok's CRDs."""
    kwok.install_crds(session_cluster)
    return session_cluster


@pytest.fixture
def fleets(
    kwokfleet: cli.Cli, cluster: ControlPlane, tmp_path: Path, kinds: ControlPlane
) -> Iterator[fleet_folder.FleetFolder]:
    """Return an empty fleet folder; delete the managed objects at the end."""
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    yield fleet_folder.FleetFolder(cluster, program, tmp_path / "fleets")
    in_process_sync.delete_managed_objects(cluster)
