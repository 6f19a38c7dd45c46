"""Commands for Runs (cancel, retry, run), stored in an annotation of the Fleet in the cluster.

The annotation has the latest commands, `NUMBER ACTION WAVE [RUN]`, separated by commas. Numbers only grow. The
Ledger stores the last number applied to each Wave, so each command is applied once, across leader changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

MAX_COMMANDS = 20
"""Commands kept in the annotation. The daemon applies each within seconds."""
_MAX_WORDS = 4


class RunAction(StrEnum):
    """Action of a RunCommand."""

    CANCEL = "cancel"
    RETRY = "retry"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """One command for the Runs of a Wave."""

    number: int
    action: RunAction
    wave: str
    run: str = ""
    """Empty: all Runs that the action fits."""

    def __str__(self) -> str:
        """Return the text for the annotation."""
        return f"{self.number} {self.action} {self.wave} {self.run}".rstrip()


def parse(text: str) -> list[RunCommand]:
    """Return the commands of an annotation, sorted by number. Invalid parts are skipped."""
    commands = (_parse_command(part.split()) for part in text.split(","))
    return sorted((command for command in commands if command), key=lambda command: command.number)


def _parse_command(words: list[str]) -> RunCommand | None:
    try:
        number, action, wave, run = (*words, "")[:_MAX_WORDS]
        return RunCommand(int(number), RunAction(action), wave, run)
    except ValueError:
        return None


def with_command(text: str, action: RunAction, wave: str, run: str = "", *, above: int = 0) -> str:
    """Return the annotation with a command added. Its number is above all others and above *above*."""
    commands = parse(text)
    number = max((above, *(command.number for command in commands))) + 1
    return ",".join(str(command) for command in (*commands, RunCommand(number, action, wave, run))[-MAX_COMMANDS:])


def by_fleet(fleets: Iterable[Manifest]) -> dict[str, list[RunCommand]]:
    """Return the commands of each Fleet in the cluster."""
    annotated = ((fleet["metadata"]["name"], fleet["metadata"].get("annotations") or {}) for fleet in fleets)
    return {
        name: parse(annotations[objects.RUN_COMMANDS])
        for name, annotations in annotated
        if objects.RUN_COMMANDS in annotations
    }
