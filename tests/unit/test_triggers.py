"""What asked for a pass, as an Event tells it."""

import pytest

from kwokfleet.core import triggers
from kwokfleet.core.triggers import Why


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("files", "files have changed"),
        ("asked+cluster", "somebody asked for it, the cluster has changed"),
        ("fleets+leading+start", "the daemon has started"),
        ("news+time", "it was time"),
    ],
)
def test_what_asked_for_a_pass_is_told_in_words(why: str, words: str) -> None:
    """Of all that asks at a start, the start is what people want to know."""
    assert triggers.because(why) == words


def test_there_are_words_for_everything_that_asks_for_a_pass() -> None:
    """Nobody reads an empty reason."""
    assert all(triggers.because(each) for each in Why if each is not Why.NEWS)
