"""What asked for a pass, as an Event tells it."""

import pytest

from kwokfleet.daemon import trigger
from kwokfleet.daemon.trigger import Why


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ({Why.FILES}, "files have changed"),
        ({Why.CLUSTER, Why.ASKED}, "somebody asked for it, the cluster has changed"),
        ({Why.FLEETS, Why.START}, "the daemon has begun its work"),
        ({Why.CLUSTER, Why.LEADING}, "the daemon has begun its work"),
        ({Why.NEWS, Why.TIME}, "it was time"),
    ],
)
def test_what_asked_for_a_pass_is_told_in_words(why: set[Why], words: str) -> None:
    """Of all that asks as a daemon begins, or takes over, that is what people want to know."""
    assert trigger.because(why) == words


def test_there_are_words_for_everything_that_asks_for_a_pass() -> None:
    """Nobody reads an empty reason."""
    assert all(trigger.because({each}) for each in Why if each is not Why.NEWS)
