"""What asks a daemon for a pass, in one word and in a few."""

from collections.abc import Iterable
from enum import StrEnum


class Why(StrEnum):
    """What asked for a pass."""

    START = "start"
    FILES = "files"
    CLUSTER = "cluster"
    TIME = "time"
    ASKED = "asked"
    HTTP = "http"
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
    Why.START: "the daemon has begun its work",
    Why.FILES: "files have changed",
    Why.CLUSTER: "the cluster has changed",
    Why.TIME: "it was time",
    Why.ASKED: "somebody asked for it",
    Why.HTTP: "somebody asked for it over HTTP",
    Why.FLEETS: "a Fleet object has changed",
    Why.RETRY: "tried again",
    Why.DONE: "after other changes",
    Why.LEADING: "the daemon has begun its work",
    Why.KWOK: "kwok has changed",
}


def word(why: Iterable[Why]) -> str:
    """Return what asked for a pass, as logs and programs have it."""
    return "+".join(sorted(why))


def because(why: Iterable[Why]) -> str:
    """Return in words what asked for a pass; a beginning, alone or after another daemon, says enough."""
    asked = sorted(why)
    for each in (Why.START, Why.LEADING):
        if each in asked:
            return _WORDS[each]
    return ", ".join(_WORDS[each] for each in asked if each in _WORDS)
