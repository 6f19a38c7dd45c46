"""Who looks after kwok: one at a time, and the books of one that was killed are nobody's."""

from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.kwok import process, supervisor


def test_a_claim_is_seen_while_it_lasts(tmp_path: Path) -> None:
    """Not before, not after, and looking takes it from nobody."""
    assert not process.is_locked(tmp_path / "nowhere")
    with process.lock_folder(tmp_path):
        assert process.is_locked(tmp_path)
        with pytest.raises(errors.NotOursError, match="another kwokfleet"):
            process.lock_folder(tmp_path)
    assert not process.is_locked(tmp_path)
    process.lock_folder(tmp_path).close()


def test_the_books_of_one_that_was_killed_tell_nothing(tmp_path: Path) -> None:
    """They say that kwok is ready, and nothing runs."""
    with process.lock_folder(tmp_path):
        supervisor.write_status(tmp_path, [])
        assert supervisor.read_status(tmp_path) == []
    assert (tmp_path / supervisor.STATUS_FILE).exists()
    assert supervisor.read_status(tmp_path) is None
