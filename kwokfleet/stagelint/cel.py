"""CEL type checker with the types that kwok registers.

kwok passes Pods and Nodes to CEL as Go types, of which it registers only a few. So an expression that is valid
elsewhere (`self.status.conditions.exists(c, c.type == "Ready")`) does not compile in kwok, and one such Stage
stops all Stages of its kind. The checker is a one-pass parser that computes types. An unknown type is `dyn`,
which is compatible with every type: there are no false errors.
"""

import functools
from dataclasses import dataclass

from kwokfleet.documents import problems
from kwokfleet.stagelint import cel_types

MAX_LENGTH = 100_000
"""Length limit of cel-go, in characters."""
MAX_DEPTH = 60
"""Nesting limit. The limit of cel-go is 250; Stages need far less."""
METRIC = "Metric"
"""Pseudo-kind for expressions of Metrics and ResourceUsages, with the variables node, pod and container."""


@dataclass(frozen=True, slots=True)
class CelAnalysis:
    """Result of checking one expression."""

    problem: str = ""
    """Compile error; empty if the expression compiles."""
    result_type: str = "dyn"
    """Type of the result: `bool`, `string`, `[string]`, ...; `dyn` if unknown before evaluation."""
    unchecked_key: str = ""
    """Key that is read without a presence check; its absence is an error at run time."""
    checks_presence: bool = False
    """Whether the expression uses has() or `in`."""
    null_time: bool = False
    """Whether a time is compared with null. kwok passes an unset time as zero time, never as null."""


class _InvalidError(Exception):
    """The expression does not compile."""


@functools.lru_cache(maxsize=4096)
def analyze(text: str, kind: str = "") -> CelAnalysis:
    """Check an expression for objects of *kind*: `Pod`, `Node`, any other kind, or METRIC."""
    try:
        reader = _Reader(_tokens(text), kind)
        result_type = reader.whole()
    except _InvalidError as exc:
        return CelAnalysis(problem=str(exc))
    return CelAnalysis(
        result_type=result_type,
        unchecked_key="" if reader.checks_presence else reader.unchecked_key,
        checks_presence=reader.checks_presence,
        null_time=reader.null_time,
    )


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return the (type, text) of each token."""
    if len(text) > MAX_LENGTH:
        raise _InvalidError(f"the expression is longer than {MAX_LENGTH} characters")
    tokens, at = [], 0
    while at < len(text):
        match = cel_types.TOKEN.match(text, at)
        if match is None:
            raise _InvalidError(f"invalid token {text[at : at + 12]!r}")
        at = match.end()
        group = match.lastgroup or ""
        if match["bytes"]:
            group = "bytes"
        if group != "space":
            tokens.append(("string" if group == "raw" else group, match.group()))
    if not tokens:
        raise _InvalidError("the expression is empty")
    return tokens


class _Reader:
    """Parser of one expression. Grammar methods return the type of the parsed part."""

    def __init__(self, tokens: list[tuple[str, str]], kind: str) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.names: dict[str, str] = {"self": kind if kind in ("Pod", "Node") else "{dyn}"}
        self.globals, self.methods = cel_types.GLOBALS, cel_types.METHODS
        if kind == METRIC:
            self.names = dict(cel_types.METRIC_NAMES)
            self.globals = cel_types.GLOBALS | cel_types.METRIC_GLOBALS
            self.methods = cel_types.METHODS | cel_types.METRIC_METHODS
        self.selected = False
        """Whether the last parsed part is a field selection (`a.b`), the only argument of has()."""
        self.checks_presence = False
        self.unchecked_key = ""
        self.null_time = False

    def whole(self) -> str:
        part_type = self.expression()
        if self.at < len(self.tokens):
            raise self.unexpected()
        return part_type

    # ---- tokens ----

    def peek(self, ahead: int = 0) -> str:
        token = self.at + ahead
        return self.tokens[token][1] if token < len(self.tokens) else ""

    def takes(self, mark: str) -> bool:
        """Consume *mark* if it is the next token. A string literal does not count."""
        is_next = self.peek() == mark and self.tokens[self.at][0] in ("mark", "name")
        self.at += is_next
        return is_next

    def expect(self, mark: str) -> None:
        if not self.takes(mark):
            raise self.unexpected()

    def name(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name" or self.peek() in ("in", "true", "false"):
            raise self.unexpected()
        self.at += 1
        return self.tokens[self.at - 1][1]

    def unexpected(self) -> _InvalidError:
        if self.at >= len(self.tokens):
            return _InvalidError("unexpected end of the expression")
        return _InvalidError(f"unexpected {self.peek()[:40]!r}")

    # ---- grammar ----

    def expression(self) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _InvalidError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        part_type = self.binary(1)
        if self.takes("?"):
            self.must_be_bool(part_type, "the condition of '?:'")
            then = self.binary(1)
            self.expect(":")
            part_type = self.same(then, self.expression(), "?:")
            self.selected = False
        self.depth -= 1
        return part_type

    def binary(self, weakest: int) -> str:
        left = self.unary()
        while self.at < len(self.tokens) and self.tokens[self.at][0] in ("mark", "name"):
            sign = self.peek()
            if cel_types.BINDING.get(sign, 0) < weakest:
                break
            self.at += 1
            left = self.combined(sign, left, self.binary(cel_types.BINDING[sign] + 1))
            self.selected = False
        return left

    def unary(self) -> str:
        sign, start = self.peek(), self.at
        if sign not in ("!", "-") or self.tokens[self.at][0] != "mark":
            return self.member()
        while self.takes(sign):
            pass
        twice = (self.at - start) % 2 == 0
        part_type = self.member()
        self.selected = False
        if sign == "!" and not twice:
            self.must_be_bool(part_type, "the operand of '!'")
        elif _base_type(part_type) and part_type not in ("int", "double", "duration") and not twice:
            raise _InvalidError(f"operator '-' cannot be applied to {_type_name(part_type)}")
        return part_type

    def member(self) -> str:
        part_type = self.primary()
        while True:
            if self.takes("."):
                name = self.name()
                part_type = self.method(part_type, name) if self.takes("(") else self.field(part_type, name)
            elif self.takes("["):
                part_type = self.item(part_type, self.expression())
                self.expect("]")
                self.selected = False
            elif part_type == "dyn" and self.tokens[self.at - 1][0] == "name" and self.takes("{"):
                self.message()
            else:
                return part_type

    def primary(self) -> str:
        if self.at >= len(self.tokens):
            raise self.unexpected()
        group, text = self.tokens[self.at]
        self.selected = False
        if group not in ("mark", "name"):
            self.at += 1
            if group in ("int", "uint") and int(text.rstrip("uU"), 0 if "x" in text else 10) >= 2**64:
                raise _InvalidError(f"the number {text[:24]} is out of range")
            return group
        if self.takes("("):
            part_type = self.expression()
            self.expect(")")
            self.selected = False
            return part_type
        if self.takes("["):
            return self.listed("]")
        if self.takes("{"):
            return self.listed("}")
        self.takes(".")
        if self.takes("true") or self.takes("false"):
            return self.named("true")
        return self.named(self.name())

    def listed(self, end: str) -> str:
        """Parse the items of a list or the entries of a map; a trailing comma is allowed."""
        while not self.takes(end):
            self.expression()
            if end == "}":
                self.expect(":")
                self.expression()
            if not self.takes(","):
                self.expect(end)
                break
        self.selected = False
        return "dyn"

    def message(self) -> None:
        """Parse the fields of a message: `google.protobuf.Duration{seconds: 1}`."""
        while not self.takes("}"):
            self.name()
            self.expect(":")
            self.expression()
            if not self.takes(","):
                self.expect("}")
                return

    def arguments(self) -> list[str]:
        argument_types: list[str] = []
        if self.takes(")"):
            return argument_types
        while True:
            argument_types.append(self.expression())
            if self.takes(")"):
                return argument_types
            self.expect(",")

    # ---- meaning ----

    def named(self, name: str) -> str:
        if self.takes("("):
            return self.call(name)
        if name in ("true", "null"):
            return "bool" if name == "true" else "null"
        if name in cel_types.RESERVED:
            raise _InvalidError(f"{name!r} is a reserved word")
        if name in self.names:
            return self.names[name]
        if name in cel_types.TYPE_NAMES or name in ("google", "v1"):
            return "dyn"
        raise _InvalidError(f"unknown variable {name!r}, {problems.suggestion(name, [*self.names])}")

    def call(self, name: str) -> str:
        if name == "has":
            before = self.unchecked_key
            arguments = self.arguments()
            if len(arguments) != 1 or not self.selected:
                raise _InvalidError("has() takes one field, for example has(self.metadata.labels)")
            self.unchecked_key, self.checks_presence, self.selected = before, True, False
            return "bool"
        if name not in self.globals:
            raise _InvalidError(f"unknown function {name!r}, {problems.suggestion(name, [*self.globals, 'has'])}")
        arguments = self.arguments()
        self.selected = False
        if (name in ("Now", "Rand")) != (not arguments):
            raise _InvalidError(f"{name}() takes {'no arguments' if arguments else 'an argument'}")
        if name == "SinceSecond" and arguments[0] not in ("Pod", "Node", "dyn", "null"):
            raise _InvalidError("SinceSecond() takes only a Pod or a Node")
        return self.globals[name]

    def method(self, target: str, name: str) -> str:
        if name in cel_types.MACROS and (part_type := self.macro(target, name)):
            return part_type
        if name not in self.methods:
            known = [*self.methods, *cel_types.MACROS]
            raise _InvalidError(f"unknown method {name!r}, {problems.suggestion(name, known)}")
        self.arguments()
        self.selected = False
        if name in ("contains", "startsWith", "endsWith", "matches") and _base_type(target) not in ("string", ""):
            raise _InvalidError(f"{name}() requires a string, got {_type_name(target)}")
        if name == "SinceSecond" and target not in ("Pod", "Node", "dyn", "null"):
            raise _InvalidError("SinceSecond() requires a Pod or a Node")
        return self.methods[name]

    def macro(self, target: str, name: str) -> str:
        """Parse `list.all(x, ...)`, where x is the loop variable."""
        if _base_type(target) not in ("[", "{", "") or target in ("opaque", "ResourceList"):
            raise _InvalidError(f"{name}() requires a list or map, got {_type_name(target)}")
        variable = self.name()
        self.expect(",")
        outer_names, self.names = self.names, self.names | {variable: _item_type(target)}
        parts = self.arguments()
        self.names, self.selected = outer_names, False
        if len(parts) + 1 not in cel_types.MACROS[name]:
            raise _InvalidError(f"{name}() takes {cel_types.MACROS[name][0]} arguments")
        if name != "map" or len(parts) > 1:
            self.must_be_bool(parts[0], f"the condition of {name}()")
        return {"filter": target, "map": "dyn"}.get(name, "bool")

    def field(self, target: str, name: str) -> str:
        self.selected = True
        if target == "opaque":
            raise _InvalidError(f"kwok did not register the type with field {name!r} in CEL")
        if target.startswith("{"):
            if name not in cel_types.ALWAYS_THERE:
                self.unchecked_key = self.unchecked_key or name
            return target[1:-1]
        if target in cel_types.TYPES:
            fields = cel_types.TYPES[target]
            if name not in fields:
                raise _InvalidError(f"{target} has no field {name!r}, {problems.suggestion(name, [*fields])}")
            return fields[name]
        if target != "dyn":
            raise _InvalidError(f"{_type_name(target)} has no field {name!r}")
        return "dyn"

    def item(self, target: str, key: str) -> str:
        if _base_type(target) not in ("[", "{", "") or target == "opaque":
            raise _InvalidError(f"{_type_name(target)} cannot be indexed with []")
        expected = "int" if target.startswith("[") else "string"
        if target not in ("dyn", "null") and key in cel_types.PLAIN and key != expected:
            raise _InvalidError(f"the index must be {expected}, got {key}")
        if target.startswith("{") or target == "ResourceList":
            self.unchecked_key = self.unchecked_key or self.peek(-1)
        return _item_type(target) if target.startswith("[") else target[1:-1] if target.startswith("{") else "dyn"

    def combined(self, sign: str, left: str, right: str) -> str:
        if sign in ("&&", "||"):
            self.must_be_bool(left, f"the left operand of {sign}")
            self.must_be_bool(right, f"the right operand of {sign}")
            return "bool"
        if sign == "in":
            self.checks_presence = True
            if _base_type(right) not in ("[", "{", "") or right == "opaque":
                raise _InvalidError(f"'in' requires a list or map, got {_type_name(right)}")
            self.same(left, "string" if right.startswith("{") else _item_type(right), "in")
            return "bool"
        if sign not in cel_types.ARITHMETIC:
            self.null_time |= {left, right} == {"timestamp", "null"}
            self.same(left, right, sign)
            return "bool"
        if not _base_type(left) or not _base_type(right) or (left[0] == right[0] == "[" and sign == "+"):
            return "dyn"
        if (left, right) not in cel_types.ARITHMETIC[sign]:
            raise _InvalidError(f"operator {sign!r} cannot be applied to {_type_name(left)} and {_type_name(right)}")
        return cel_types.ARITHMETIC[sign][left, right]

    def must_be_bool(self, part_type: str, what: str) -> None:
        if _base_type(part_type) not in ("bool", ""):
            raise _InvalidError(f"{what} must be bool, got {_type_name(part_type)}")

    def same(self, left: str, right: str, sign: str) -> str:
        if _base_type(left) and _base_type(right) and _base_type(left) != _base_type(right):
            raise _InvalidError(f"operator {sign!r} cannot be applied to {_type_name(left)} and {_type_name(right)}")
        if "null" in (left, right) and sign in ("==", "!=") and {left[0], right[0]} & set("[{"):
            raise _InvalidError(f"operator {sign!r} cannot compare a list or map with null")
        return left if left == right else "dyn"


def _item_type(target: str) -> str:
    """Return the type of the items of a list, or of the keys of a map."""
    return target[1:-1] if target.startswith("[") else "string" if target.startswith("{") else "dyn"


def _base_type(part_type: str) -> str:
    """Return the part of a type that comparable values share; empty if unknown before evaluation."""
    if part_type in cel_types.PLAIN or part_type in cel_types.TYPES:
        return part_type
    return part_type[0] if part_type[0] in "[{" else ""


def _type_name(part_type: str) -> str:
    return {"[": "a list", "{": "a map"}.get(part_type[0], part_type)
