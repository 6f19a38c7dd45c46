"""The lock and the status file of a Supervisor."""

from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.kwok import process, supervisor


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    """`is_locked` does not take the lock."""
    assert not process.is_locked(tmp_path / "nowhere")
    with process.lock_folder(tmp_path):
        assert process.is_locked(tmp_path)
        with pytest.raises(errors.NotOursError, match="another kwokfleet"):
            process.lock_folder(tmp_path)
    assert not process.is_locked(tmp_path)
    process.lock_folder(tmp_path).close()


def test_the_status_file_of_a_killed_supervisor_is_ignored(tmp_path: Path) -> None:
    """It may say that kwok is ready."""
    with process.lock_folder(tmp_path):
        supervisor.write_status(tmp_path, [])
        assert supervisor.read_status(tmp_path) == []
    assert (tmp_path / supervisor.STATUS_FILE).exists()
    assert supervisor.read_status(tmp_path) is None
