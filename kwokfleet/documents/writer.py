"""Manifests as YAML text, quickly: what `render` prints.

A YAML library takes minutes for 10,000 nodes. Manifests need little of YAML (mappings, lists,
scalars, in block style), and nodes of one pool share most of their parts, whose text is kept.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kwokfleet.kube.objects import Manifest

_PLAIN = re.compile(r"[A-Za-z/_](?:[A-Za-z0-9/_.+@=()~-]|:(?=[^\s,\[\]{}])| (?=[A-Za-z0-9/_(]))*")
_AMOUNT = re.compile(r"[0-9]+(?:[KMGTPE]i|[mk])")
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_MULTILINE = re.compile(r"[!-~][\n -~]*[!-~]\n")
"""Texts that a block keeps as they are: no odd characters, no space at either end, one line end at the last."""
_MOST_KEPT = 4000
_LAST_OF_FOUR_DIGITS = "\uffff"


def to_yaml(manifest: Manifest) -> str:
    """Return one manifest as YAML, without a separator."""
    return YamlWriter().document(manifest)


class YamlWriter:
    """Writes manifests one after the other, and remembers the text of what they share."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}
        """Lines that hold a key and a text: most come up again and again."""
        self._names: dict[str, str] = {}
        self._values: set[str] = set()
        self._kept: dict[tuple[int, str], tuple[object, str]] = {}
        """Text of parts, with the part itself: a freed part's id would come to name another."""
        self._seen: set[int] = set()

    def document(self, manifest: Manifest) -> str:
        """Return a manifest as YAML, without a separator."""
        return self._mapping(manifest, "")

    def _mapping(self, part: Mapping[str, Any], pad: str) -> str:
        pieces: list[str] = []
        lines, names = self._lines, self._names
        for key, value in part.items():
            kind = type(value)
            if kind is str:
                pieces += (pad, lines.get((key, value)) or self._line(key, value, pad))
            elif kind is dict and value:
                pieces += (pad, names.get(key) or self._name(key), "\n", self._keep(value, pad + "  "))
            elif kind is list and value:
                pieces += (pad, names.get(key) or self._name(key), "\n", self._keep(value, pad))
            else:
                pieces += (pad, names.get(key) or self._name(key), self._tail(value, pad))
        return "".join(pieces)

    def _name(self, key: str) -> str:
        if len(self._names) > _MOST_KEPT:
            self._names.clear()
        name = self._names[key] = f"{_scalar(key)}:"
        return name

    def _line(self, key: str, value: str, pad: str) -> str:
        name = self._names.get(key) or self._name(key)
        if "\n" in value:
            return f"{name}{_block(value, pad + '  ')}"
        line = f"{name} {_scalar(value)}\n"
        # A value that was never seen is probably one of many: a name, an address.
        if value in self._values:
            if len(self._lines) > _MOST_KEPT:
                self._lines.clear()
            self._lines[key, value] = line
        else:
            if len(self._values) > _MOST_KEPT:
                self._values.clear()
            self._values.add(value)
        return line

    def _tail(self, value: Any, pad: str) -> str:  # noqa: ANN401  # any part of a manifest
        """Return what follows a key or a dash."""
        if isinstance(value, str):
            return _block(value, pad + "  ") if "\n" in value else f" {_scalar(value)}\n"
        if isinstance(value, Mapping):
            return "\n" + self._keep(dict(value), pad + "  ") if value else " {}\n"
        if isinstance(value, list | tuple):
            return "\n" + self._keep(list(value), pad) if value else " []\n"
        return f" {json.dumps(value)}\n"

    def _keep(self, part: dict[str, Any] | list[Any], pad: str) -> str:
        """Return the text of a part; one that is seen again is kept, most come up once."""
        mark = id(part)
        if mark in self._seen:
            found = self._kept.get((mark, pad))
            if found is not None:
                return found[1]
            text = self._mapping(part, pad) if type(part) is dict else self._sequence(part, pad)
            if len(self._kept) > _MOST_KEPT:
                self._kept.clear()
            self._kept[mark, pad] = (part, text)
            return text
        self._seen.add(mark)
        return self._mapping(part, pad) if type(part) is dict else self._sequence(part, pad)

    def _sequence(self, part: Iterable[Any], pad: str) -> str:
        pieces: list[str] = []
        for value in part:
            if type(value) is dict and value:
                pieces += (pad, "- ", self._mapping(value, pad + "  ")[len(pad) + 2 :])
            elif type(value) is list and value:
                pieces += (pad, "- ", self._sequence(value, pad + "  ")[len(pad) + 2 :])
            else:
                pieces += (pad, "-", self._tail(value, pad))
        return "".join(pieces)


def _block(value: str, pad: str) -> str:
    """Return a text of several lines as a block, where that keeps it exactly."""
    if not _MULTILINE.fullmatch(value):
        return f" {_quoted(value)}\n"
    lines = (f"{pad}{line}\n" if line else "\n" for line in value[:-1].split("\n"))
    return " |\n" + "".join(lines)


def _scalar(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return value if _AMOUNT.fullmatch(value) else _quoted(value)


def _quoted(value: str) -> str:
    """Return a text in quotes; what YAML would not take as it is, is escaped as in JSON."""
    if not (value.isprintable() and value.isascii()):
        return json.dumps(value) if max(value) <= _LAST_OF_FOUR_DIGITS else _escaped(value)
    if "'" not in value and ('"' in value or "\\" in value):
        return f"'{value}'"
    return json.dumps(value)


def _escaped(value: str) -> str:
    """Return a text in quotes that holds characters which JSON writes as two and YAML as one."""
    pieces = (f"\\U{ord(char):08x}" if char > _LAST_OF_FOUR_DIGITS else json.dumps(char)[1:-1] for char in value)
    return f'"{"".join(pieces)}"'
