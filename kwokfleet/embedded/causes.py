"""Known reasons why a program failed, found in what it wrote last.

A compiler or a component says what went wrong somewhere above fifty lines of trace. This finds the
line, and puts a name and a next step to it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WIDEST_LINE = 400


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One way to fail."""

    pattern: str
    what: str
    hint: str


DISK = r"no space left on device|disk quota exceeded"
PORT = r"address already in use"


def find_cause(causes: Sequence[FailureCause], lines: Sequence[str]) -> tuple[FailureCause, str] | None:
    """Return the first known cause that *lines* show, with the line that shows it."""
    for cause in causes:
        for line in lines:
            if re.search(cause.pattern, line):
                return cause, line.strip()[:_WIDEST_LINE]
    return None
