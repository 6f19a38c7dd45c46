"""Fast YAML writer for manifests, used by `render`.

A YAML library needs minutes for 10,000 nodes. Manifests use a small part of YAML (mappings, lists and
scalars in block style), and the nodes of a pool share most values: their text is cached.
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
"""Strings that a literal block preserves: printable ASCII, no space at either end, one final newline."""
_MAX_CACHED = 4000
_MAX_SHORT_ESCAPE = "\uffff"


def to_yaml(manifest: Manifest) -> str:
    """Return one manifest as YAML, without a separator."""
    return YamlWriter().document(manifest)


class YamlWriter:
    """Writes manifests, and caches the text of shared values."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}
        """Text of `key: value` lines; most occur repeatedly."""
        self._names: dict[str, str] = {}
        self._values: set[str] = set()
        self._parts: dict[tuple[int, str], tuple[object, str]] = {}
        """Text by id and indentation, with the part itself: the id of a freed part may be reused."""
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
                pieces += (pad, names.get(key) or self._name(key), "\n", self._cached(value, pad + "  "))
            elif kind is list and value:
                pieces += (pad, names.get(key) or self._name(key), "\n", self._cached(value, pad))
            else:
                pieces += (pad, names.get(key) or self._name(key), self._tail(value, pad))
        return "".join(pieces)

    def _name(self, key: str) -> str:
        if len(self._names) > _MAX_CACHED:
            self._names.clear()
        name = self._names[key] = f"{_scalar(key)}:"
        return name

    def _line(self, key: str, value: str, pad: str) -> str:
        name = self._names.get(key) or self._name(key)
        if "\n" in value:
            return f"{name}{_block(value, pad + '  ')}"
        line = f"{name} {_scalar(value)}\n"
        # A value seen for the first time is probably unique, like a name or an address.
        if value in self._values:
            if len(self._lines) > _MAX_CACHED:
                self._lines.clear()
            self._lines[key, value] = line
        else:
            if len(self._values) > _MAX_CACHED:
                self._values.clear()
            self._values.add(value)
        return line

    def _tail(self, value: Any, pad: str) -> str:  # noqa: ANN401  # any part of a manifest
        """Return the text after a key or a `-`."""
        if isinstance(value, str):
            return _block(value, pad + "  ") if "\n" in value else f" {_scalar(value)}\n"
        if isinstance(value, Mapping):
            return "\n" + self._cached(dict(value), pad + "  ") if value else " {}\n"
        if isinstance(value, list | tuple):
            return "\n" + self._cached(list(value), pad) if value else " []\n"
        return f" {json.dumps(value)}\n"

    def _cached(self, part: dict[str, Any] | list[Any], pad: str) -> str:
        """Return the text of a part, cached from its second use on."""
        part_id = id(part)
        if (cached := self._parts.get((part_id, pad))) is not None:
            return cached[1]
        text = self._mapping(part, pad) if type(part) is dict else self._sequence(part, pad)
        if part_id in self._seen:
            if len(self._parts) > _MAX_CACHED:
                self._parts.clear()
            self._parts[part_id, pad] = (part, text)
        self._seen.add(part_id)
        return text

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
    """Return a multi-line string as a literal block if that preserves it, else quoted."""
    if not _MULTILINE.fullmatch(value):
        return f" {_quoted(value)}\n"
    lines = (f"{pad}{line}\n" if line else "\n" for line in value[:-1].split("\n"))
    return " |\n" + "".join(lines)


def _scalar(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return value if _AMOUNT.fullmatch(value) else _quoted(value)


def _quoted(value: str) -> str:
    """Return a quoted string, with escapes as in JSON."""
    if not (value.isprintable() and value.isascii()):
        return json.dumps(value) if max(value) <= _MAX_SHORT_ESCAPE else _escaped(value)
    if "'" not in value and ('"' in value or "\\" in value):
        return f"'{value}'"
    return json.dumps(value)


def _escaped(value: str) -> str:
    """Return a quoted string with characters beyond U+FFFF: one escape in YAML, two in JSON."""
    pieces = (f"\\U{ord(char):08x}" if char > _MAX_SHORT_ESCAPE else json.dumps(char)[1:-1] for char in value)
    return f'"{"".join(pieces)}"'
