"""The YAML parser's graph of nodes into plain values, with what is wrong on the way.

A scalar that YAML 1.1 and 1.2 read differently is a mistake, as is everything else a reader could be
surprised by: a key given twice, a tag, a reference to itself, aliases that multiply.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml.cyaml import CParser  # type: ignore[attr-defined]  # imported there to be used from there
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 100
"""Levels of nesting in one document; Kubernetes objects need about 15."""
MAX_VALUES = 1_000_000
"""Values in one document after its aliases are expanded."""

Value = None | bool | int | float | str | list[Any] | dict[str, Any]
"""What a document is made of."""

_PLAIN = "?"
"""The tag given to a scalar without quotes and without a tag: its text decides."""
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = {f"{_TAG}{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq")}

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = frozenset("-+.0123456789~nNtTfFyYoO")
"""The first letter of every scalar that may be something else than a text."""
_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TRAPS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"(?:yes|Yes|YES|on|On|ON|no|No|NO|off|Off|OFF)"),
        "is a truth value to some YAML readers and a text to others",
        "write true or false, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+"),
        "is octal to some YAML readers and decimal to others",
        "drop the leading zero, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0o[0-7]+"),
        "is a number to some YAML readers and a text to others",
        "write it in decimal, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0b[01_]+"),
        "is a number to some YAML readers and a text to others",
        "write it in decimal, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"),
        "is a number to base 60 to some YAML readers and a text to others",
        "put it in quotes",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(?:\.[0-9_]*)?"),
        "is a number to some YAML readers and a text to others",
        "drop the underscores, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
        "is not a finite number",
        "write a number, or put it in quotes",
    ),
)


class _Composer(CParser):  # type: ignore[misc]  # a compiled class without types
    """The C parser, told to leave the meaning of scalars to us."""

    def resolve(self, kind: type[Node], _value: str | None, implicit: tuple[bool, bool]) -> str:
        """Return the tag of a node that has none."""
        if kind is ScalarNode:
            return _PLAIN if implicit[0] else f"{_TAG}str"
        return f"{_TAG}map" if kind is MappingNode else f"{_TAG}seq"

    def descend_resolver(self, _node: Node, _index: object) -> None:
        """Do nothing: no resolver looks at paths."""

    def ascend_resolver(self) -> None:
        """Do nothing: no resolver looks at paths."""


def compose(text: str) -> Iterator[Node]:
    """Yield the top node of each document in a text."""
    composer = _Composer(text)
    while composer.check_node():
        yield composer.get_node()


class ExpansionGuard:
    """Whether a graph of nodes is a tree of bearable size once its aliases are expanded."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.open: set[int] = set()

    def check(self, node: Node, depth: int = 0) -> tuple[Node, str, str] | None:  # noqa: PLR0911  # one per trouble
        """Return the first node that must not be expanded, and why."""
        if isinstance(node, ScalarNode):
            return None
        if id(node) in self.open:
            return node, "an alias that contains itself", "remove the alias"
        if depth > MAX_DEPTH:
            return node, f"nested more than {MAX_DEPTH} deep", "nest less"
        if id(node) in self.sizes:
            return None
        self.open.add(id(node))
        size = 1
        for child in child_nodes(node):
            trouble = self.check(child, depth + 1)
            if trouble is not None:
                return trouble
            size += self.sizes.get(id(child), 1)
            if size > MAX_VALUES:
                what = f"more than {MAX_VALUES:,} values once its aliases are expanded"
                return node, what, "use fewer aliases of aliases, or split the file"
        self.open.discard(id(node))
        self.sizes[id(node)] = size
        return None


def child_nodes(node: Node) -> Iterator[Node]:
    """Yield keys and values of a mapping, or entries of a list."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, SequenceNode):
        yield from node.value


class ValueBuilder:
    """Makes plain values of nodes and gathers what is wrong with them."""

    def __init__(self) -> None:
        self.wrong: list[tuple[Node, str, str, str]] = []
        """Nodes, what is wrong with them, what to do, and the rule."""
        self.made: dict[int, Value] = {}
        """Values of anchored nodes: an alias shares its anchor's value, and its Problems."""

    def value(self, node: Node) -> Value:
        """Return the plain value of *node*."""
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) not in self.made:
            self._tag(node)
            made: Value = (
                self._mapping(node) if isinstance(node, MappingNode) else [self.value(each) for each in node.value]
            )
            self.made[id(node)] = made
        return self.made[id(node)]

    def _mapping(self, node: Node) -> dict[str, Any]:
        made: dict[str, Any] = {}
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
                what = f"{key!r} is given twice, first in line {lines[key]}"
                self.wrong.append((key_node, what, "keep one of the two", "yaml-duplicate-key"))
                continue
            lines[key] = key_node.start_mark.line + 1
            made[key] = self.value(value_node)
        return {**merged, **made} if merged else made

    def _merged(self, node: Node) -> dict[str, Any]:
        """Return what a `<<` key brings in; of a list, the first that has a key wins."""
        brought: dict[str, Any] = {}
        for source in reversed(node.value if isinstance(node, SequenceNode) else [node]):
            if not isinstance(source, MappingNode):
                self.wrong.append((source, "'<<' needs a mapping", "give an alias of one", "yaml-merge"))
                continue
            made = self.value(source)
            brought |= made if isinstance(made, dict) else {}
        return brought

    def _key(self, node: Node) -> str | None:
        if not isinstance(node, ScalarNode):
            self.wrong.append(
                (
                    node,
                    "a key that is itself a list or mapping",
                    "use a text as key; put {{variables}} in quotes",
                    "yaml-key",
                )
            )
            return None
        key = self._scalar(node)
        if isinstance(key, str):
            return key
        self.wrong.append((node, f"the key {node.value!r} is not a text", "put it in quotes", "yaml-key"))
        return None

    def _scalar(self, node: ScalarNode) -> Value:
        text: str = node.value
        if node.ctag.suffix != _PLAIN and self._tag(node) in {None, "str"}:
            return text
        return self._plain(node, text)

    def _plain(self, node: ScalarNode, text: str) -> Value:
        """Return what a scalar without quotes means, by the rules both YAML versions share."""
        if text and text[0] not in _SPECIAL:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if _INT.fullmatch(text) or _HEX.fullmatch(text):
            return self._number(node, text)
        for pattern, what, hint in _TRAPS:
            if pattern.fullmatch(text):
                self.wrong.append((node, f"{text} {what}", hint, "yaml-trap"))
                return text
        return self._number(node, text) if _FLOAT.fullmatch(text) else text

    def _number(self, node: ScalarNode, text: str) -> int | float | str:
        if len(text) > 40:  # noqa: PLR2004  # longer than any number that means something; int() is quadratic
            self.wrong.append((node, "a number of more than 40 digits", "write a shorter one", "yaml-number"))
            return text
        if _HEX.fullmatch(text):
            return int(text, 16)
        if _INT.fullmatch(text):
            return int(text)
        number = float(text)
        if not math.isfinite(number):
            self.wrong.append((node, f"{text} is not a finite number", "write a smaller one", "yaml-number"))
        return number

    def _tag(self, node: Node) -> str | None:
        tag = str(node.ctag.suffix)
        if tag not in _KNOWN_TAGS:
            shown = tag.replace(_TAG, "!!")
            self.wrong.append((node, f"the tag {shown} means nothing here", "remove it", "yaml-tag"))
            return None
        return _KNOWN_TAGS[tag]


def is_merge_key(node: Node) -> bool:
    """Return whether a key is the `<<` that brings in another mapping."""
    return isinstance(node, ScalarNode) and node.value == "<<" and node.ctag.suffix == _PLAIN


def mapping_entries(node: Node) -> dict[str, tuple[Node, Node]]:
    """Return keys and values of a mapping by the keys' texts; what is merged in comes last."""
    found: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        if isinstance(key, ScalarNode):
            found.setdefault(str(key.value), (key, value))
    for key, value in node.value:
        if is_merge_key(key):
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                found |= {**mapping_entries(source), **found} if isinstance(source, MappingNode) else {}
    return found
