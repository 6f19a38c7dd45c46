"""Fleet files in one style, with every comment where it was: what `kwokfleet fmt` writes.

Indentation, blank ends of lines and the last line end are made uniform; order, quotes, anchors and
flow style are the author's. The result is compared with the original, and refused if anything but
its looks had changed: a formatter must not be the one who breaks a file.
"""

import re
from collections import Counter

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kwokfleet.documents import parser
from kwokfleet.documents.problems import Problem

_COMMENT = re.compile(r"(?:^|\s)#(.*)")


class _Text:
    """Somewhere for ruamel.yaml to write to."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        """Take a piece of text."""
        self.parts.append(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: it is all here."""


def should_format(path: str, text: str) -> bool:
    """Return whether a file holds fleet documents or Stages, or cannot be read: others have a style of their own."""
    found, wrong = parser.parse(path, text)
    versions = [each.value.get("apiVersion") for each in found if isinstance(each.value, dict)]
    ours = any(str(version).startswith(("kwokfleet.dev/", "kwok.x-k8s.io/")) for version in versions)
    return ours or (bool(wrong) and "kwokfleet.dev/" in text)


def format_text(path: str, text: str) -> str | Problem:
    """Return the text of a file in the common style, or why it is left as it is."""
    before, wrong = parser.parse(path, text)
    if wrong:
        return wrong[0]
    source = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        made = _round_trip(source)
    except (YAMLError, AttributeError, ValueError, RecursionError) as error:
        what = f"cannot be formatted ({str(error).splitlines()[0]})"
        return Problem(path, 1, 1, "", what, "it is left as it is", rule="not-formatted")
    after, wrong = parser.parse(path, made)
    if (
        wrong
        or [each.value for each in before] != [each.value for each in after]
        or _comments(source) != _comments(made)
    ):
        what = "cannot be formatted without losing a comment or a value"
        return Problem(
            path, 1, 1, "", what, "it is left as it is; move comments to lines of their own", rule="not-formatted"
        )
    return made


def _round_trip(text: str) -> str:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.encoding = None  # type: ignore[assignment]  # texts, not bytes
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    loaded = list(yaml.load_all(text))
    if not any(each is not None for each in loaded):
        return _trimmed(text)
    yaml.explicit_start = text.lstrip("\n").startswith("---")
    written = _Text()
    yaml.dump_all(loaded, written)
    return _indented_comments(_trimmed("".join(written.parts)))


def _indented_comments(text: str) -> str:
    """Return the text with each comment on a line of its own indented like what follows it.

    One that already stands at the level of something around it stays: it may be a line that somebody
    put out of use, at the end of its block.
    """
    lines = text.split("\n")
    inside = parser.multiline_scalar_lines(text)
    following = _following(lines, inside)
    levels: list[int] = [0]
    for number, line in enumerate(lines):
        stripped = line.lstrip()
        column = len(line) - len(stripped)
        if number in inside or not stripped:
            continue
        if not stripped.startswith("#"):
            within = column + len(stripped) - len(stripped.lstrip("- ")) if stripped.startswith("- ") else column
            levels = [*(level for level in levels if level < column), column, within]
        elif column not in {*levels, following[number]}:
            lines[number] = " " * following[number] + stripped
    return "\n".join(lines)


def _following(lines: list[str], inside: set[int]) -> list[int]:
    """Return, for each line, the indentation of the next one that is neither empty nor a comment."""
    found = [0] * len(lines)
    indent = 0
    for number in range(len(lines) - 1, -1, -1):
        stripped = lines[number].lstrip()
        if stripped and not stripped.startswith("#") and number not in inside:
            indent = len(lines[number]) - len(stripped)
        found[number] = indent
    return found


def _trimmed(text: str) -> str:
    inside = parser.multiline_scalar_lines(text)
    lines = [line if number in inside else line.rstrip() for number, line in enumerate(text.split("\n"))]
    while lines and not lines[-1]:
        lines.pop()
    if lines and lines[-1] == "...":
        lines.pop()
    return "\n".join(lines) + "\n" if lines else ""


def _comments(text: str) -> Counter[str]:
    """Return everything that may be a comment; a text with a # counts on both sides."""
    return Counter(match[1].strip() for match in _COMMENT.finditer(text))
