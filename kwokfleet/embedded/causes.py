"""Known causes of failure, matched against the last lines of a program's output.

The line with the cause is often followed by fifty lines of stack trace.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_LINE_LENGTH = 400


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A known cause of failure: the pattern of its line, a name, and the next step."""

    pattern: str
    what: str
    hint: str


DISK = r"no space left on device|disk quota exceeded"
PORT = r"address already in use"


def find_cause(causes: Sequence[FailureCause], lines: Sequence[str]) -> tuple[FailureCause, str] | None:
    """Return the first cause that matches a line, with that line."""
    matches = ((cause, line) for cause in causes for line in lines if re.search(cause.pattern, line))
    cause, line = next(matches, (None, ""))
    return (cause, line.strip()[:_MAX_LINE_LENGTH]) if cause else None
