"""What `run` and `up` refuse before anything is started: each with what is wrong, and what to do next."""

from pathlib import Path

import pytest

from tests.harness.rejected_commands import run_rejected


@pytest.mark.parametrize("address", ["8265", "127.0.0.1", "127.0.0.1:99999", "localhost:http", "127.0.0.1:²"])
@pytest.mark.parametrize("command", ["run", "up"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, command: str, address: str) -> None:
    """A port alone would be every address of this machine, and one that is too high some other port."""
    assert address in run_rejected(tmp_path, command, "--listen", address)


@pytest.mark.parametrize("command", ["run", "up"])
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, command: str) -> None:
    """Before a cluster is started for it."""
    assert "flets: no such file or directory" in run_rejected(tmp_path, command, "flets")


def test_two_sources_are_refused(tmp_path: Path) -> None:
    """Nobody could tell which one is meant."""
    assert "--git-path" in run_rejected(tmp_path, "run", ".", "--git-url", "https://git.example.org/fleets.git")


def test_a_duration_without_its_unit_is_refused_by_its_own_name(tmp_path: Path) -> None:
    """The option that was typed is the one that is named."""
    for option in ("--interval", "--git-interval"):
        assert f"{option} 5: " in run_rejected(tmp_path, "run", option, "5")


def test_a_secret_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Rather than serving without one."""
    (tmp_path / "empty").touch()
    for option in ("--token-file", "--hook-secret-file"):
        assert "cannot read no-such-file" in run_rejected(tmp_path, "run", option, "no-such-file")
        assert "empty is empty" in run_rejected(tmp_path, "run", option, "empty")
