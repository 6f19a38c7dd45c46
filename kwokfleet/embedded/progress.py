"""Progress updates of downloads, builds and starts. The command line displays them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class ProgressPhase(StrEnum):
    """Phase of one subject: a binary or a component."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    BUILDING = "building"
    STARTING = "starting"
    NOTE = "note"
    """A message; the phase of the subject does not change."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """Progress of one subject."""

    subject: str
    phase: ProgressPhase
    detail: str = ""
    done: int = 0
    total: int = 0
    """0: unknown."""
    usual_s: int = 0
    """Usual duration of this phase; 0: unknown."""


ProgressReporter: TypeAlias = Callable[[ProgressUpdate], None]


def discard(_update: ProgressUpdate) -> None:
    """Ignore an update."""


def waiting(report: ProgressReporter, subject: str, activity: str) -> Callable[[str], None]:
    """Return a callback for `locks.exclusive` that reports the process that holds the lock."""
    return lambda holder: report(ProgressUpdate(subject, ProgressPhase.NOTE, f"waiting for {holder}, which {activity}"))
