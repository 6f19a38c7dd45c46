"""What long work reports while it goes on; the command line decides how to draw it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """Where one subject (a binary, a component) stands."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    BUILDING = "building"
    STARTING = "starting"
    NOTE = "note"
    """Something worth a line that changes nothing."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Update:
    """One step forward."""

    subject: str
    phase: Phase
    detail: str = ""
    done: int = 0
    total: int = 0
    """0: not known."""
    usual_s: int = 0
    """How long this phase usually takes; 0: not known."""


Report: TypeAlias = Callable[[Update], None]


def silent(_update: Update) -> None:
    """Report to nobody."""
