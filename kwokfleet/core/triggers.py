"""What asks a daemon for a pass, in one word and in a few."""

from enum import StrEnum


class Why(StrEnum):
    """What asked for a pass."""

    START = "start"
    FILES = "files"
    CLUSTER = "cluster"
    TIME = "time"
    ASKED = "asked"
    FLEETS = "fleets"
    """A Fleet in the cluster, which people write orders on, has changed."""
    RETRY = "retry"
    DONE = "done"
    """Something was done: is anything left?"""
    LEADING = "leading"
    KWOK = "kwok"
    NEWS = "news"
    """Only that something is to be told: no pass is needed."""


_WORDS = {
    Why.START: "the daemon has started",
    Why.FILES: "files have changed",
    Why.CLUSTER: "the cluster has changed",
    Why.TIME: "it was time",
    Why.ASKED: "somebody asked for it",
    Why.FLEETS: "a Fleet object has changed",
    Why.RETRY: "tried again",
    Why.DONE: "after other changes",
    Why.LEADING: "the daemon leads now",
    Why.KWOK: "kwok has changed",
}


def because(why: str) -> str:
    """Return in words what asked for a pass, of which *why* has the single words; what began it all says enough."""
    asked = [Why(each) for each in why.split("+")]
    if Why.START in asked:
        return _WORDS[Why.START]
    return ", ".join(_WORDS[each] for each in asked if each in _WORDS)
