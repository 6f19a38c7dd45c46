"""CEL, as strict as kwok compiles it: whether an expression compiles, and what it yields.

kwok gives Pods and Nodes to CEL as Go types of which it registered only a few, so an expression
that is fine anywhere else (`self.status.conditions.exists(c, c.type == "Ready")`) fails to compile
there, and one such Stage stops all Stages of its kind. A parser alone cannot see that; this reads
an expression once, from left to right, and carries the type of what it has read. In doubt a type
is `dyn`, which agrees with everything: what is reported here is really refused by kwok.
"""

import functools
from dataclasses import dataclass

from kwokfleet.documents import problems
from kwokfleet.stagelint import cel_types

MAX_LENGTH = 100_000
"""Characters that cel-go reads before it gives up."""
MAX_DEPTH = 60
"""How deep an expression may nest. cel-go stops at 250; no Stage comes near."""
METRIC = "Metric"
"""What stands for the kind in expressions of Metrics and ResourceUsages: they are about a node, a pod, a container."""


@dataclass(frozen=True, slots=True)
class CelAnalysis:
    """What kwok would make of an expression."""

    problem: str = ""
    """Why it does not compile; empty if it does."""
    result_type: str = "dyn"
    """The type of its result: `bool`, `string`, `[string]`, ...; `dyn` if only running it tells."""
    unchecked_key: str = ""
    """A value that it reads without asking whether it is there; at run time its absence is an error."""
    checks_presence: bool = False
    """Whether it asks if something is there, by has() or `in`."""
    null_time: bool = False
    """Whether it compares a time with null: kwok gives CEL a zero time for one that is not set."""


class _InvalidError(Exception):
    """The expression does not compile."""


@functools.lru_cache(maxsize=4096)
def analyze(text: str, kind: str = "") -> CelAnalysis:
    """Return what kwok makes of an expression about objects of a *kind* (`Pod`, `Node`, or any other; METRIC)."""
    try:
        reader = _Reader(_tokens(text), kind)
        yields = reader.whole()
    except _InvalidError as exc:
        return CelAnalysis(problem=str(exc))
    return CelAnalysis(
        result_type=yields,
        unchecked_key="" if reader.checks_presence else reader.unchecked_key,
        checks_presence=reader.checks_presence,
        null_time=reader.null_time,
    )


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return the (type, text) of each token."""
    if len(text) > MAX_LENGTH:
        raise _InvalidError(f"it is longer than {MAX_LENGTH} characters")
    found, at = [], 0
    while at < len(text):
        match = cel_types.TOKEN.match(text, at)
        if match is None:
            raise _InvalidError(f"{text[at : at + 12]!r} is not CEL")
        at = match.end()
        group = match.lastgroup or ""
        if match["bytes"]:
            group = "bytes"
        if group != "space":
            found.append(("string" if group == "raw" else group, match.group()))
    if not found:
        raise _InvalidError("it is empty")
    return found


class _Reader:
    """Reads one expression; every method that reads something returns its type."""

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
        """Whether what was read last is a field (`a.b`): all that has() takes."""
        self.checks_presence = False
        self.unchecked_key = ""
        self.null_time = False

    def whole(self) -> str:
        found = self.expression()
        if self.at < len(self.tokens):
            raise self.unexpected()
        return found

    # ---- tokens ----

    def peek(self, ahead: int = 0) -> str:
        token = self.at + ahead
        return self.tokens[token][1] if token < len(self.tokens) else ""

    def takes(self, mark: str) -> bool:
        """Step over *mark* if it is next; a string that looks like it is not it."""
        found = self.peek() == mark and self.tokens[self.at][0] in ("mark", "name")
        self.at += found
        return found

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
            return _InvalidError("it ends too early")
        return _InvalidError(f"{self.peek()[:40]!r} is out of place")

    # ---- grammar ----

    def expression(self) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _InvalidError(f"it nests more than {MAX_DEPTH} deep")
        found = self.binary(1)
        if self.takes("?"):
            self.must_be_bool(found, "the condition before '?'")
            then = self.binary(1)
            self.expect(":")
            found = self.same(then, self.expression(), "?:")
            self.selected = False
        self.depth -= 1
        return found

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
        found = self.member()
        self.selected = False
        if sign == "!" and not twice:
            self.must_be_bool(found, "what '!' negates")
        elif _shape(found) and found not in ("int", "double", "duration") and not twice:
            raise _InvalidError(f"'-' does not go with {_said(found)}")
        return found

    def member(self) -> str:
        found = self.primary()
        while True:
            if self.takes("."):
                name = self.name()
                found = self.method(found, name) if self.takes("(") else self.field(found, name)
            elif self.takes("["):
                found = self.item(found, self.expression())
                self.expect("]")
                self.selected = False
            elif found == "dyn" and self.tokens[self.at - 1][0] == "name" and self.takes("{"):
                self.message()
            else:
                return found

    def primary(self) -> str:
        if self.at >= len(self.tokens):
            raise self.unexpected()
        group, text = self.tokens[self.at]
        self.selected = False
        if group not in ("mark", "name"):
            self.at += 1
            if group in ("int", "uint") and int(text.rstrip("uU"), 0 if "x" in text else 10) >= 2**64:
                raise _InvalidError(f"the number {text[:24]} is too big")
            return group
        if self.takes("("):
            found = self.expression()
            self.expect(")")
            self.selected = False
            return found
        if self.takes("["):
            return self.listed("]")
        if self.takes("{"):
            return self.listed("}")
        self.takes(".")
        return self.named(self.name() if self.peek() not in ("true", "false") else self.literal())

    def literal(self) -> str:
        self.at += 1
        return "true"

    def listed(self, end: str) -> str:
        """Read the items of a list or the entries of a map; a comma may follow the last."""
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
        """Read the fields of `google.protobuf.Duration{seconds: 1}`."""
        while not self.takes("}"):
            self.name()
            self.expect(":")
            self.expression()
            if not self.takes(","):
                self.expect("}")
                return

    def arguments(self) -> list[str]:
        found: list[str] = []
        if self.takes(")"):
            return found
        while True:
            found.append(self.expression())
            if self.takes(")"):
                return found
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
        raise _InvalidError(f"kwok knows no name {name!r}, {problems.suggestion(name, [*self.names])}")

    def call(self, name: str) -> str:
        if name == "has":
            before = self.unchecked_key
            arguments = self.arguments()
            if len(arguments) != 1 or not self.selected:
                raise _InvalidError("has() takes one field, as in has(self.metadata.labels)")
            self.unchecked_key, self.checks_presence, self.selected = before, True, False
            return "bool"
        if name not in self.globals:
            raise _InvalidError(f"kwok knows no function {name!r}, {problems.suggestion(name, [*self.globals, 'has'])}")
        arguments = self.arguments()
        self.selected = False
        if (name in ("Now", "Rand")) != (not arguments):
            raise _InvalidError(f"{name}() takes {'nothing' if arguments else 'an argument'}")
        if name == "SinceSecond" and arguments[0] not in ("Pod", "Node", "dyn", "null"):
            raise _InvalidError("SinceSecond() takes a Pod or a Node, nothing else")
        return self.globals[name]

    def method(self, target: str, name: str) -> str:
        if name in cel_types.MACROS and (found := self.macro(target, name)):
            return found
        if name not in self.methods:
            known = [*self.methods, *cel_types.MACROS]
            raise _InvalidError(f"kwok knows no method {name!r}, {problems.suggestion(name, known)}")
        self.arguments()
        self.selected = False
        if name in ("contains", "startsWith", "endsWith", "matches") and _shape(target) not in ("string", ""):
            raise _InvalidError(f"{name}() is for a string, not for {_said(target)}")
        if name == "SinceSecond" and target not in ("Pod", "Node", "dyn", "null"):
            raise _InvalidError("SinceSecond() is for a Pod or a Node, nothing else")
        return self.methods[name]

    def macro(self, target: str, name: str) -> str:
        """Read `list.all(x, ...)`, where x stands for each item in turn."""
        if _shape(target) not in ("[", "{", "") or target in ("opaque", "ResourceList"):
            raise _InvalidError(f"{name}() goes over a list or map, not over {_said(target)}")
        variable = self.name()
        self.expect(",")
        hidden, self.names = self.names, self.names | {variable: _each(target)}
        parts = self.arguments()
        self.names, self.selected = hidden, False
        if len(parts) + 1 not in cel_types.MACROS[name]:
            raise _InvalidError(f"{name}() takes {cel_types.MACROS[name][0]} arguments")
        if name != "map" or len(parts) > 1:
            self.must_be_bool(parts[0], f"what {name}() asks of each item")
        return {"filter": target, "map": "dyn"}.get(name, "bool")

    def field(self, target: str, name: str) -> str:
        self.selected = True
        if target == "opaque":
            raise _InvalidError(f"kwok cannot read the field {name!r} here: it did not register that type with CEL")
        if target.startswith("{"):
            if name not in cel_types.ALWAYS_THERE:
                self.unchecked_key = self.unchecked_key or name
            return target[1:-1]
        if target in cel_types.TYPES:
            if name not in cel_types.TYPES[target]:
                raise _InvalidError(
                    f"{target} has no field {name!r}, {problems.suggestion(name, [*cel_types.TYPES[target]])}"
                )
            return cel_types.TYPES[target][name]
        if target != "dyn":
            raise _InvalidError(f"{_said(target)} has no field {name!r}")
        return "dyn"

    def item(self, target: str, key: str) -> str:
        if _shape(target) not in ("[", "{", "") or target == "opaque":
            raise _InvalidError(f"{_said(target)} cannot be read with [ ]")
        wanted = "int" if target.startswith("[") else "string"
        if target not in ("dyn", "null") and key in cel_types.PLAIN and key != wanted:
            raise _InvalidError(f"[ ] takes {wanted} here, not {key}")
        if target.startswith("{") or target == "ResourceList":
            self.unchecked_key = self.unchecked_key or self.peek(-1)
        return _each(target) if target.startswith("[") else target[1:-1] if target.startswith("{") else "dyn"

    def combined(self, sign: str, left: str, right: str) -> str:
        if sign in ("&&", "||"):
            self.must_be_bool(left, f"the left of {sign}")
            self.must_be_bool(right, f"the right of {sign}")
            return "bool"
        if sign == "in":
            self.checks_presence = True
            if _shape(right) not in ("[", "{", "") or right == "opaque":
                raise _InvalidError(f"'in' looks into a list or map, not into {_said(right)}")
            self.same(left, "string" if right.startswith("{") else _each(right), "in")
            return "bool"
        if sign not in cel_types.ARITHMETIC:
            self.null_time |= {left, right} == {"timestamp", "null"}
            self.same(left, right, sign)
            return "bool"
        if not _shape(left) or not _shape(right) or (left[0] == right[0] == "[" and sign == "+"):
            return "dyn"
        if (left, right) not in cel_types.ARITHMETIC[sign]:
            raise _InvalidError(f"{sign!r} does not go with {_said(left)} and {_said(right)}")
        return cel_types.ARITHMETIC[sign][left, right]

    def must_be_bool(self, found: str, what: str) -> None:
        if _shape(found) not in ("bool", ""):
            raise _InvalidError(f"{what} must be true or false, and is {_said(found)}")

    def same(self, left: str, right: str, sign: str) -> str:
        if _shape(left) and _shape(right) and _shape(left) != _shape(right):
            raise _InvalidError(f"{sign!r} does not go with {_said(left)} and {_said(right)}")
        if "null" in (left, right) and sign in ("==", "!=") and {left[0], right[0]} & set("[{"):
            raise _InvalidError(f"{sign!r} does not go with a list or map and null")
        return left if left == right else "dyn"


def _each(target: str) -> str:
    """Return the type of an item of a list, or of a key of a map."""
    return target[1:-1] if target.startswith("[") else "string" if target.startswith("{") else "dyn"


def _shape(found: str) -> str:
    """Return the part of a type that two values must share to be compared; empty if only running it tells."""
    return found if found in cel_types.PLAIN or found in cel_types.TYPES else found[0] if found[0] in "[{" else ""


def _said(found: str) -> str:
    return {"[": "a list", "{": "a map"}.get(found[0], found)
