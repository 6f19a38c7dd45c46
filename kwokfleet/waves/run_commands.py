"""Orders about Runs: what somebody wants of a Wave, written on its Fleet in the cluster, for whoever leads.

An annotation holds the last ones, `NUMBER WHAT WAVE [RUN]` each, with commas between them. Numbers only grow;
the Ledger remembers up to which one a Wave has heeded them, so that each is heeded once, whoever leads by then.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

MAX_COMMANDS = 20
"""Orders that are kept: the daemon heeds them within a moment."""
_WORDS = 4


class RunAction(StrEnum):
    """What may be wanted."""

    CANCEL = "cancel"
    RETRY = "retry"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """One thing that somebody wants."""

    number: int
    what: RunAction
    wave: str
    run: str = ""
    """Empty for all that it may be meant for."""

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.number} {self.what} {self.wave} {self.run}".rstrip()


def parse(text: str) -> list[RunCommand]:
    """Return the orders of an annotation, by their numbers; what is none is left out."""
    found = (_read(part.split()) for part in text.split(","))
    return sorted((each for each in found if each), key=lambda each: each.number)


def _read(words: list[str]) -> RunCommand | None:
    try:
        number, what, wave, run = (*words, "")[:_WORDS]
        return RunCommand(int(number), RunAction(what), wave, run)
    except ValueError:
        return None


def with_command(text: str, what: RunAction, wave: str, run: str = "", *, above: int = 0) -> str:
    """Return the annotation with an order added; its number is greater than all before, and than *above*."""
    known = parse(text)
    number = max((above, *(each.number for each in known))) + 1
    return ",".join(str(each) for each in (*known, RunCommand(number, what, wave, run))[-MAX_COMMANDS:])


def by_fleet(fleets: Iterable[Manifest]) -> dict[str, list[RunCommand]]:
    """Return the orders about each Fleet, as the cluster has them."""
    annotated = ((each["metadata"]["name"], each["metadata"].get("annotations") or {}) for each in fleets)
    return {
        name: parse(annotations[objects.RUN_COMMANDS])
        for name, annotations in annotated
        if objects.RUN_COMMANDS in annotations
    }
