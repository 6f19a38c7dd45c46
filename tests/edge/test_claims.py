"""Who looks after kwok: one at a time, and the books of one that was killed are nobody's."""

from pathlib import Path

import pytest

from kwokfleet import errors, keeper
from kwokfleet.edge import kwok


def test_a_claim_is_seen_while_it_lasts(tmp_path: Path) -> None:
    """Not before, not after, and looking takes it from nobody."""
    assert not kwok.is_claimed(tmp_path / "nowhere")
    with kwok.claim(tmp_path):
        assert kwok.is_claimed(tmp_path)
        with pytest.raises(errors.NotOursError, match="another kwokfleet"):
            kwok.claim(tmp_path)
    assert not kwok.is_claimed(tmp_path)
    kwok.claim(tmp_path).close()


def test_the_books_of_one_that_was_killed_tell_nothing(tmp_path: Path) -> None:
    """They say that kwok is ready, and nothing runs."""
    with kwok.claim(tmp_path):
        keeper.write_status(tmp_path, [])
        assert keeper.read_status(tmp_path) == []
    assert (tmp_path / keeper.STATUS_FILE).exists()
    assert keeper.read_status(tmp_path) is None
