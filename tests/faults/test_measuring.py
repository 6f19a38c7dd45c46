"""Measurement of Runs when daemons are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cli, daemon_testbed, measured_wave
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed; delete all managed objects afterwards."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def test_a_daemon_that_is_killed_in_the_middle_of_a_thousand_objects(testbed: DaemonTestbed) -> None:
    """Exactly a thousand Jobs are created, and the Result is complete and contains the gap."""
    measured_wave.assert_survives_a_kill(testbed, 1000, "50/s")
