"""Validation results: Finding (at a field of one document) and Problem (at a line of a file).

A rule returns Findings with a field path inside the document. `Document.problem` adds the file, line and column.
Rules never raise: all Problems of all files are collected first.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

FieldPath = tuple[str | int, ...]
"""Path of a field in a document: `("spec", "nodePools", 0, "replicas")`."""


class Severity(StrEnum):
    """Severity of a Finding or Problem."""

    ERROR = "error"
    """The document is not used."""
    WARNING = "warning"
    """The document is used, but probably does not do what its author intended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake at a field of one document."""

    field_path: FieldPath
    what: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    rule: str = "invalid-value"
    """Stable identifier of the rule, for reports and searches."""
    at_key: bool = False
    """Whether to report the position of the key instead of its value."""


def warning(field_path: FieldPath, what: str, hint: str, rule: str, *, at_key: bool = False) -> Finding:
    """Return a Finding of severity warning."""
    return Finding(field_path, what, hint, Severity.WARNING, rule, at_key)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake at a line of a file."""

    path: str
    line: int
    column: int
    field: str
    what: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    rule: str = "invalid-value"

    def __str__(self) -> str:
        """Return the one-line form: `path:line:column: field: what; hint`."""
        position = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        return f"{position}: {self.message}"

    @property
    def message(self) -> str:
        """The text without the position: `field: what; hint`."""
        text = f"{self.what}; {self.hint}" if self.hint else self.what
        return f"{self.field}: {text}" if self.field else text


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return the Problems of severity error."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def format_path(path: FieldPath) -> str:
    """Return a field path as text: `spec.nodePools[0].labels["a.b/c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "").replace("-", "").isalnum():
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to *name*, if any is similar."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the hint for a name that is not one of *known*."""
    close = closest_name(name, known)
    if close:
        return f"did you mean {close!r}?"
    return "use one of " + ", ".join(sorted(known)) if known else "remove it"
