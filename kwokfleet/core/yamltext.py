"""Manifests as YAML text, quickly: what `render` prints.

A YAML library takes minutes for 10,000 nodes. Manifests need little of YAML (mappings, lists,
scalars, in block style), and nodes of one pool share most of their parts, whose text is kept.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kwokfleet.core.objects import Manifest

_PLAIN = re.compile(r"[A-Za-z/_](?:[A-Za-z0-9/_.+@=()~-]|:(?=[^\s,\[\]{}])| (?=[A-Za-z0-9/_(]))*")
_AMOUNT = re.compile(r"[0-9]+(?:[KMGTPE]i|[mk])")
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_MULTILINE = re.compile(r"[!-~][\n -~]*[!-~]\n")
"""Texts that a block keeps as they are: no odd characters, no space at either end, one line end at the last."""
_MOST_KEPT = 4000


def document(manifest: Manifest) -> str:
    """Return one manifest as YAML, without a separator."""
    return Writer().document(manifest)


class Writer:
    """Writes manifests one after the other, and remembers the text of what they share."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}
        """Lines that hold a key and a text: most come up again and again."""
        self._kept: dict[tuple[int, str], tuple[object, str]] = {}
        """Text of parts, with the part itself: a freed part's id would come to name another."""

    def document(self, manifest: Manifest) -> str:
        """Return a manifest as YAML, without a separator."""
        return self._mapping(manifest, "")

    def _mapping(self, part: Mapping[str, Any], pad: str) -> str:
        pieces = []
        lines = self._lines
        for key, value in part.items():
            pieces.append(pad)
            if type(value) is str:
                pieces.append(lines.get((key, value)) or self._line(key, value, pad))
            elif type(value) is dict and value:
                pieces.append(f"{_scalar(key)}:\n{self._keep(value, pad + '  ')}")
            elif type(value) is list and value:
                pieces.append(f"{_scalar(key)}:\n{self._keep(value, pad)}")
            else:
                pieces.append(f"{_scalar(key)}:{self._tail(value, pad)}")
        return "".join(pieces)

    def _line(self, key: str, value: str, pad: str) -> str:
        if "\n" in value:
            return f"{_scalar(key)}:{_block(value, pad + '  ')}"
        if len(self._lines) > _MOST_KEPT:
            self._lines.clear()
        line = self._lines[key, value] = f"{_scalar(key)}: {_scalar(value)}\n"
        return line

    def _tail(self, value: Any, pad: str) -> str:  # noqa: ANN401  # any part of a manifest
        """Return what follows a key or a dash."""
        if isinstance(value, str):
            return _block(value, pad + "  ") if "\n" in value else f" {_scalar(value)}\n"
        if isinstance(value, Mapping):
            return "\n" + self._keep(value, pad + "  ") if value else " {}\n"
        if isinstance(value, list | tuple):
            return "\n" + self._keep(value, pad) if value else " []\n"
        return f" {json.dumps(value)}\n"

    def _keep(self, part: Any, pad: str) -> str:  # noqa: ANN401  # any part of a manifest
        found = self._kept.get((id(part), pad))
        if found is not None:
            return found[1]
        text = self._mapping(part, pad) if isinstance(part, Mapping) else self._sequence(part, pad)
        if len(self._kept) > _MOST_KEPT:
            self._kept.clear()
        self._kept[id(part), pad] = (part, text)
        return text

    def _sequence(self, part: Iterable[Any], pad: str) -> str:
        pieces = []
        for value in part:
            if isinstance(value, Mapping) and value:
                pieces.append(f"{pad}- {self._mapping(value, pad + '  ')[len(pad) + 2 :]}")
            elif isinstance(value, list | tuple) and value:
                pieces.append(f"{pad}- {self._sequence(value, pad + '  ')[len(pad) + 2 :]}")
            else:
                pieces.append(f"{pad}-{self._tail(value, pad)}")
        return "".join(pieces)


def _block(value: str, pad: str) -> str:
    """Return a text of several lines as a block, where that keeps it exactly."""
    if not _MULTILINE.fullmatch(value):
        return f" {_quoted(value)}\n"
    lines = (f"{pad}{line}\n" if line else "\n" for line in value[:-1].split("\n"))
    return " |\n" + "".join(lines)


@functools.lru_cache(maxsize=_MOST_KEPT)
def _scalar(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return value if _AMOUNT.fullmatch(value) else _quoted(value)


def _quoted(value: str) -> str:
    """Return a text in quotes; what YAML would not take as it is, is escaped as in JSON."""
    plain = value.isprintable() and value.isascii()
    return json.dumps(value, ensure_ascii=not plain)
