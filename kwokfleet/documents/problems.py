"""What is wrong in a file, as data: a finding inside one document, a Problem at a line of a file.

A rule knows only the value it looks at, so it speaks of a place *inside* it (`Finding.field_path`); who
has the file's text turns that into `path:line:column`. Nothing here stops anything: all findings of
all files are gathered, and whoever asked decides.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

FieldPath = tuple[str | int, ...]
"""The way from a document's top to a value: `("spec", "nodePools", 0, "replicas")`."""


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """It cannot be used: nothing that depends on it is changed."""
    WARNING = "warning"
    """It can be used, and is probably not what was meant."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a place inside one document."""

    field_path: FieldPath
    what: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    rule: str = "invalid-value"
    """A stable name for the kind of mistake: what reports and searches go by."""
    at_key: bool = False
    """Whether the key is wrong, not the value under it."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something wrong in a file, for people to read and editors to jump to."""

    path: str
    line: int
    column: int
    field: str
    what: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    rule: str = "invalid-value"

    def __str__(self) -> str:
        """Return the one-line form: `path:line:column: field: what, what to do`."""
        place = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        said = f"{self.what}, {self.hint}" if self.hint else self.what
        return ": ".join(part for part in (place, self.field, said) if part)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return those that make their file unusable."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def format_path(where: FieldPath) -> str:
    """Return a place as people write it: `spec.nodePools[0].labels["a.b/c"]`."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "").replace("-", "").isalnum():
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that *name* was probably meant to be."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the advice for a name that is not one of *known*."""
    close = closest_name(name, known)
    if close:
        return f"did you mean {close!r}?"
    return "use one of " + ", ".join(sorted(known)) if known else "remove it"
