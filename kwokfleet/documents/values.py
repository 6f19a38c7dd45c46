"""Builds plain values from the node graph of the YAML parser, and reports ambiguous YAML.

Errors: scalars that YAML 1.1 and 1.2 resolve differently, duplicate keys, tags, recursive aliases, and
aliases that expand to too many values.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml.cyaml import CParser  # type: ignore[attr-defined]  # re-exported by ruamel
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 100
"""Nesting levels of one document. Kubernetes objects need about 15."""
MAX_VALUES = 1_000_000
"""Values of one document with aliases expanded."""

Value = None | bool | int | float | str | list[Any] | dict[str, Any]
"""Any value of a document."""

_PLAIN = "?"
"""Tag of an unquoted, untagged scalar: its text decides the type."""
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = {f"{_TAG}{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq")}

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = frozenset("-+.0123456789~nNtTfFyYoO")
"""First characters of plain scalars that may be other than strings."""
_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_EITHER_NUMBER = "is a number in one YAML version and a string in the other"
_DECIMAL = "write it in decimal, or put it in quotes"
_TRAPS = {
    r"yes|Yes|YES|on|On|ON|no|No|NO|off|Off|OFF": (
        "is a boolean in YAML 1.1 and a string in YAML 1.2", "write true or false, or put it in quotes"
    ),
    r"[-+]?0[0-9_]+": (
        "is octal in YAML 1.1 and decimal in YAML 1.2", "remove the leading zero, or put it in quotes"
    ),
    r"[-+]?0o[0-7]+": (_EITHER_NUMBER, _DECIMAL),
    r"[-+]?0b[01_]+": (_EITHER_NUMBER, _DECIMAL),
    r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?": (
        "is a base-60 number in YAML 1.1 and a string in YAML 1.2", "put it in quotes"
    ),
    r"[-+]?[0-9][0-9]*_[0-9_]*(?:\.[0-9_]*)?": (_EITHER_NUMBER, "remove the underscores, or put it in quotes"),
    r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)": ("is not a finite number", "use a finite number, or put it in quotes"),
}  # fmt: skip
"""Message and hint for ambiguous plain scalars, by pattern. The first match counts."""
_AMBIGUOUS = [(re.compile(pattern), what, hint) for pattern, (what, hint) in _TRAPS.items()]


class _Composer(CParser):  # type: ignore[misc]  # a compiled class without types
    """C parser that does not resolve scalars."""

    def resolve(self, kind: type[Node], _value: str | None, implicit: tuple[bool, bool]) -> str:
        """Return the tag of an untagged node."""
        if kind is ScalarNode:
            return _PLAIN if implicit[0] else f"{_TAG}str"
        return f"{_TAG}map" if kind is MappingNode else f"{_TAG}seq"

    def descend_resolver(self, _node: Node, _index: object) -> None:
        """Do nothing: no resolver uses paths."""

    def ascend_resolver(self) -> None:
        """Do nothing: no resolver uses paths."""


def compose(text: str) -> Iterator[Node]:
    """Yield the top node of each document."""
    composer = _Composer(text)
    while composer.check_node():
        yield composer.get_node()


class ExpansionGuard:
    """Rejects node graphs that are recursive, too deep, or too large with aliases expanded."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.open: set[int] = set()

    def check(self, node: Node, depth: int = 0) -> tuple[Node, str, str] | None:  # noqa: PLR0911  # one per violation
        """Return the first node that violates a limit, with message and hint."""
        if isinstance(node, ScalarNode):
            return None
        if id(node) in self.open:
            return node, "the alias contains itself", "remove the alias"
        if depth > MAX_DEPTH:
            return node, f"is nested more than {MAX_DEPTH} levels deep", "reduce the nesting"
        if id(node) in self.sizes:
            return None
        self.open.add(id(node))
        size = 1
        for child in child_nodes(node):
            violation = self.check(child, depth + 1)
            if violation is not None:
                return violation
            size += self.sizes.get(id(child), 1)
            if size > MAX_VALUES:
                what = f"has more than {MAX_VALUES:,} values with aliases expanded"
                return node, what, "use fewer nested aliases, or split the file"
        self.open.discard(id(node))
        self.sizes[id(node)] = size
        return None


def child_nodes(node: Node) -> Iterator[Node]:
    """Yield the keys and values of a mapping, or the items of a list."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, SequenceNode):
        yield from node.value


class ValueBuilder:
    """Builds plain values from nodes, and collects errors."""

    def __init__(self) -> None:
        self.errors: list[tuple[Node, str, str, str]] = []
        """Node, message, hint and rule."""
        self.values: dict[int, Value] = {}
        """Values by node id. An alias shares the value and the errors of its anchor."""

    def value(self, node: Node) -> Value:
        """Return the plain value of *node*."""
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) not in self.values:
            self._tag(node)
            self.values[id(node)] = (
                self._mapping(node) if isinstance(node, MappingNode) else [self.value(item) for item in node.value]
            )
        return self.values[id(node)]

    def _mapping(self, node: Node) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if is_merge_key(key_node):
                merged |= self._merged(value_node)
                continue
            key = self._key(key_node)
            if key is None:
                continue
            if key in lines:
                what = f"duplicate key {key!r}, first in line {lines[key]}"
                self.errors.append((key_node, what, "remove one of them", "yaml-duplicate-key"))
                continue
            lines[key] = key_node.start_mark.line + 1
            entries[key] = self.value(value_node)
        return {**merged, **entries} if merged else entries

    def _merged(self, node: Node) -> dict[str, Any]:
        """Return the entries of a `<<` key. In a list, the first mapping with a key wins."""
        merged: dict[str, Any] = {}
        for source in reversed(node.value if isinstance(node, SequenceNode) else [node]):
            if not isinstance(source, MappingNode):
                self.errors.append((source, "'<<' must refer to a mapping", "use an alias of a mapping", "yaml-merge"))
                continue
            value = self.value(source)
            merged |= value if isinstance(value, dict) else {}
        return merged

    def _key(self, node: Node) -> str | None:
        key_type, hint = "a list or mapping", "use a string; put {{variables}} in quotes"
        if isinstance(node, ScalarNode):
            key = self._scalar(node)
            if isinstance(key, str):
                return key
            key_type, hint = node.value, "put it in quotes"
        self.errors.append((node, f"a key must be a string, got {key_type}", hint, "yaml-key"))
        return None

    def _scalar(self, node: ScalarNode) -> Value:
        text: str = node.value
        if node.ctag.suffix != _PLAIN and self._tag(node) in {None, "str"}:
            return text
        return self._plain(node, text)

    def _plain(self, node: ScalarNode, text: str) -> Value:
        """Resolve an unquoted scalar by the rules that YAML 1.1 and 1.2 share."""
        if text and text[0] not in _SPECIAL:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if _INT.fullmatch(text) or _HEX.fullmatch(text):
            return self._number(node, text)
        for pattern, what, hint in _AMBIGUOUS:
            if pattern.fullmatch(text):
                self.errors.append((node, f"{text} {what}", hint, "yaml-trap"))
                return text
        return self._number(node, text) if _FLOAT.fullmatch(text) else text

    def _number(self, node: ScalarNode, text: str) -> int | float | str:
        if len(text) > 40:  # noqa: PLR2004  # no meaningful number is longer; int() is quadratic
            self.errors.append((node, "the number has more than 40 digits", "use a shorter number", "yaml-number"))
            return text
        if _HEX.fullmatch(text):
            return int(text, 16)
        if _INT.fullmatch(text):
            return int(text)
        number = float(text)
        if not math.isfinite(number):
            self.errors.append((node, f"{text} is not a finite number", "use a smaller number", "yaml-number"))
        return number

    def _tag(self, node: Node) -> str | None:
        tag = str(node.ctag.suffix)
        if tag not in _KNOWN_TAGS:
            short_tag = tag.replace(_TAG, "!!")
            self.errors.append((node, f"the tag {short_tag} is not supported", "remove the tag", "yaml-tag"))
            return None
        return _KNOWN_TAGS[tag]


def is_merge_key(node: Node) -> bool:
    """Return whether a key is the merge key `<<`."""
    return isinstance(node, ScalarNode) and node.value == "<<" and node.ctag.suffix == _PLAIN


def mapping_entries(node: Node) -> dict[str, tuple[Node, Node]]:
    """Return the key and value nodes of a mapping by key. Merged entries come last."""
    entries: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        if isinstance(key, ScalarNode):
            entries.setdefault(str(key.value), (key, value))
    for key, value in node.value:
        if is_merge_key(key):
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                entries |= {**mapping_entries(source), **entries} if isinstance(source, MappingNode) else {}
    return entries
