"""Formatter for Fleet files: `kwokfleet fmt`.

Normalizes indentation, trailing whitespace and the final newline. Order, quotes, anchors, flow style and
comments stay. The result is parsed again and rejected if a value or a comment changed.
"""

import re
from collections import Counter
from types import SimpleNamespace

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kwokfleet.documents import parser
from kwokfleet.documents.problems import Problem

_COMMENT = re.compile(r"(?:^|\s)#(.*)")


def should_format(path: str, text: str) -> bool:
    """Return whether a file holds kwokfleet or kwok documents, or is an invalid kwokfleet file."""
    documents, yaml_problems = parser.parse(path, text)
    versions = [document.value.get("apiVersion") for document in documents if isinstance(document.value, dict)]
    supported = any(str(version).startswith(("kwokfleet.dev/", "kwok.x-k8s.io/")) for version in versions)
    return supported or (bool(yaml_problems) and "kwokfleet.dev/" in text)


def format_text(path: str, text: str) -> str | Problem:
    """Return the formatted text, or the Problem that prevents formatting."""
    before, yaml_problems = parser.parse(path, text)
    if yaml_problems:
        return yaml_problems[0]
    source = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        result = _round_trip(source)
    except (YAMLError, AttributeError, ValueError, RecursionError) as error:
        what = f"cannot format the file ({str(error).splitlines()[0]})"
        return Problem(path, 1, 1, "", what, "the file was not changed", rule="not-formatted")
    after, yaml_problems = parser.parse(path, result)
    same_values = [document.value for document in before] == [document.value for document in after]
    if yaml_problems or not same_values or _comments(source) != _comments(result):
        what = "cannot format the file without losing a comment or a value"
        hint = "the file was not changed; put each comment on a separate line"
        return Problem(path, 1, 1, "", what, hint, rule="not-formatted")
    return result


def _round_trip(text: str) -> str:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.encoding = None  # type: ignore[assignment]  # str, not bytes
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    documents = list(yaml.load_all(text))
    if not any(document is not None for document in documents):
        return _strip_trailing_space(text)
    yaml.explicit_start = text.lstrip("\n").startswith("---")
    pieces: list[str] = []  # pure modules do not import io
    yaml.dump_all(documents, SimpleNamespace(write=pieces.append, flush=lambda: None))
    return _indent_comments(_strip_trailing_space("".join(pieces)))


def _indent_comments(text: str) -> str:
    """Indent each comment line like the next content line.

    A comment at the indentation of an enclosing block stays: it may be a disabled line at the end of that block.
    """
    lines = text.split("\n")
    scalar_lines = parser.multiline_scalar_lines(text)
    next_indents = _next_indents(lines, scalar_lines)
    levels: list[int] = [0]
    for number, line in enumerate(lines):
        stripped = line.lstrip()
        column = len(line) - len(stripped)
        if number in scalar_lines or not stripped:
            continue
        if not stripped.startswith("#"):
            item_column = column + len(stripped) - len(stripped.lstrip("- ")) if stripped.startswith("- ") else column
            levels = [*(level for level in levels if level < column), column, item_column]
        elif column not in {*levels, next_indents[number]}:
            lines[number] = " " * next_indents[number] + stripped
    return "\n".join(lines)


def _next_indents(lines: list[str], scalar_lines: set[int]) -> list[int]:
    """Return, for each line, the indentation of the next line that is neither empty nor a comment."""
    indents = [0] * len(lines)
    indent = 0
    for number in range(len(lines) - 1, -1, -1):
        stripped = lines[number].lstrip()
        if stripped and not stripped.startswith("#") and number not in scalar_lines:
            indent = len(lines[number]) - len(stripped)
        indents[number] = indent
    return indents


def _strip_trailing_space(text: str) -> str:
    scalar_lines = parser.multiline_scalar_lines(text)
    lines = [line if number in scalar_lines else line.rstrip() for number, line in enumerate(text.split("\n"))]
    while lines and not lines[-1]:
        lines.pop()
    if lines and lines[-1] == "...":
        lines.pop()
    return "\n".join(lines) + "\n" if lines else ""


def _comments(text: str) -> Counter[str]:
    """Return everything after a `#`. A `#` inside a string is counted too, before and after formatting alike."""
    return Counter(match[1].strip() for match in _COMMENT.finditer(text))
