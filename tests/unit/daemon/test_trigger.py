"""What asked for a pass, as an Event tells it."""

import pytest

from kwokfleet.daemon import trigger
from kwokfleet.daemon.trigger import PassReason


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ({PassReason.FILES}, "files changed"),
        ({PassReason.CLUSTER, PassReason.ASKED}, "requested by a user, the cluster changed"),
        ({PassReason.FLEETS, PassReason.START}, "the daemon started"),
        ({PassReason.CLUSTER, PassReason.LEADING}, "the daemon started"),
        ({PassReason.NEWS, PassReason.TIME}, "scheduled time reached"),
    ],
)
def test_what_asked_for_a_pass_is_told_in_words(why: set[PassReason], words: str) -> None:
    """Of all that asks as a daemon begins, or takes over, that is what people want to know."""
    assert trigger.describe(why) == words


def test_there_are_words_for_everything_that_asks_for_a_pass() -> None:
    """Nobody reads an empty reason."""
    assert all(trigger.describe({each}) for each in PassReason if each is not PassReason.NEWS)
