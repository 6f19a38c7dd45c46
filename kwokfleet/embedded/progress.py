"""What long work reports while it goes on; the command line decides how to draw it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class ProgressPhase(StrEnum):
    """Where one subject (a binary, a component) stands."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    BUILDING = "building"
    STARTING = "starting"
    NOTE = "note"
    """Something worth a line that changes nothing."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """One step forward."""

    subject: str
    phase: ProgressPhase
    detail: str = ""
    done: int = 0
    total: int = 0
    """0: not known."""
    usual_s: int = 0
    """How long this phase usually takes; 0: not known."""


ProgressReporter: TypeAlias = Callable[[ProgressUpdate], None]


def discard(_update: ProgressUpdate) -> None:
    """Report to nobody."""
