"""Errors of `run` and `up` before anything is started."""

from pathlib import Path

import pytest

from tests.harness.rejected_commands import run_rejected


@pytest.mark.parametrize("address", ["8265", "127.0.0.1", "127.0.0.1:99999", "localhost:http", "127.0.0.1:²"])
@pytest.mark.parametrize("command", ["run", "up"])
def test_an_invalid_address_is_an_error(tmp_path: Path, command: str, address: str) -> None:
    """A port alone would listen on all addresses."""
    assert address in run_rejected(tmp_path, command, "--listen", address)


@pytest.mark.parametrize("command", ["run", "up"])
def test_a_missing_path_is_an_error(tmp_path: Path, command: str) -> None:
    """Before a cluster is started."""
    assert "flets: no such file or directory" in run_rejected(tmp_path, command, "flets")


def test_two_sources_are_an_error(tmp_path: Path) -> None:
    """Folder and git exclude each other."""
    assert "--git-path" in run_rejected(tmp_path, "run", ".", "--git-url", "https://git.example.org/fleets.git")


def test_a_duration_without_a_unit_is_an_error(tmp_path: Path) -> None:
    """The error names the option."""
    for option in ("--interval", "--git-interval"):
        assert f"{option} 5: " in run_rejected(tmp_path, "run", option, "5")


def test_an_unreadable_secret_is_an_error(tmp_path: Path) -> None:
    """The daemon must not serve without it."""
    (tmp_path / "empty").touch()
    for option in ("--token-file", "--hook-secret-file"):
        assert "cannot read no-such-file" in run_rejected(tmp_path, "run", option, "no-such-file")
        assert "empty is empty" in run_rejected(tmp_path, "run", option, "empty")
