"""jq expressions of Stages: compile errors, and evaluation on an object.

kwok uses gojq; this module uses libjq, which differs in a few functions. Expressions are untrusted input, and
libjq cannot be interrupted. So length and depth are limited before compilation, modules are rejected, and only
expressions that certainly terminate are evaluated.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_LENGTH = 4_000
"""Compile time of libjq is quadratic: 0.2 s for the worst expression of this length."""
MAX_DEPTH = 100
MAX_RUN_LENGTH = 500
MAX_LOOPS = 2
"""Loops of an evaluated expression. Two loops over the largest pod take less than a second."""

OPERATORS = ("DoesNotExist", "Exists", "In", "NotIn")
UNKNOWN_TO_GOJQ = (
    "debug", "get_jq_origin", "get_prog_origin", "get_search_list", "have_decnum", "have_literal_numbers", "input",
    "input_filename", "input_line_number", "inputs", "keys_unsorted", "lgamma_r", "stderr",
)  # fmt: skip
"""Functions of libjq that gojq, as used by kwok, does not have."""

_SAFE = frozenset({
    "all", "and", "any", "ascii_downcase", "ascii_upcase", "contains", "empty", "endswith", "error", "false", "first",
    "has", "keys", "last", "length", "map", "not", "null", "or", "select", "startswith", "to_entries", "tonumber",
    "tostring", "true", "type", "values",
})  # fmt: skip
_LOOPS = frozenset({"all", "any", "keys", "map", "to_entries"})

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|#[^\n]*', re.DOTALL)
_WORD = r"(?<![.\w$@])({})\b(?!\s*:)"
_LACKS = re.compile(_WORD.format("|".join(UNKNOWN_TO_GOJQ)))
_MODULE = re.compile(r'(?<![.\w$])(?:import|include)\s*"')
_NUMBER = re.compile(r"(?<![\w$@.\\])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DOTTED_BRACKET = re.compile(r'(?<=[\w\]"?])\.\[')
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_POSITION = re.compile(
    r"\s*(?:at <top-level>|at <unknown>|\(Unix shell quoting issues\?\)|, line \d|\(while parsing).*"
)
_UNSAFE_SIGN = re.compile(r"[$@*,{+;]|(?<![=!<>])=(?!=)")


@functools.lru_cache(maxsize=4096)
def compile_error(text: str) -> str:
    """Return the error with which kwok would fail to compile *text*; empty if it compiles."""
    limit_error = _limit_error(text) or _unsupported(_without_strings(text))
    if limit_error:
        return limit_error
    error = _libjq_error(text)
    # gojq accepts `.a.[1:2]` as `.a[1:2]`, libjq does not.
    return error and _libjq_error(_DOTTED_BRACKET.sub("[", text)) and error


def matches(key: str, operator: str, values: Sequence[str], value: Mapping[str, Any]) -> bool | None:
    """Return whether *value* meets a selector requirement; None if the key is not safe to evaluate."""
    results = evaluate(key, value)
    if results is None:
        return None
    if operator in ("Exists", "DoesNotExist"):
        return bool(results) == (operator == "Exists")
    return any(_selector_value(result) in values for result in results) == (operator == "In")


def evaluate(text: str, value: Mapping[str, Any]) -> list[Any] | None:
    """Return the non-null results of *text*, none after an error, like kwok; None if it is not safe to evaluate."""
    if compile_error(text) or not _certainly_terminates(text):
        return None
    try:
        return [result for result in _program(text).input_value(value) if result is not None]
    except (ValueError, TypeError):
        # A jq error, which kwok treats as no result; or a value that is not JSON.
        return []


@functools.lru_cache(maxsize=4096)
def reads(text: str, name: str) -> bool:
    """Return whether a jq or CEL expression reads the field *name*."""
    return re.search(rf"""(?:\.|\[\s*["'])"?{re.escape(name)}\b""", text) is not None


def _limit_error(text: str) -> str:
    """Return why *text* must not be passed to libjq; empty if it may be."""
    if not text.strip():
        return "the expression is empty"
    if len(text) > MAX_LENGTH:
        return f"the expression is longer than {MAX_LENGTH} characters"
    if "\0" in text:
        return "the expression contains a NUL character"
    return f"the expression is nested more than {MAX_DEPTH} levels deep" if _depth(text) > MAX_DEPTH else ""


def _unsupported(bare: str) -> str:
    """Return the first feature of libjq that kwok does not have; empty if there is none."""
    if _MODULE.search(bare):
        return "kwok does not load jq modules"
    lacking = [name for name in _LACKS.findall(bare) if f"def {name}" not in bare]
    if "$__loc__" in bare:
        lacking.append("$__loc__")
    return f"{lacking[0]!r} does not exist in gojq, which kwok uses" if lacking else ""


def _program(text: str) -> Any:  # noqa: ANN401  # libjq's binding has no types
    """Compile *text* with libjq."""
    import jq  # type: ignore[import-not-found]  # noqa: PLC0415  # slow to import

    return jq.compile(text)


def _libjq_error(text: str) -> str:
    """Return the compile error of libjq in short; empty if *text* compiles."""
    # libjq folds constants when it compiles: `"a" * 1000000000` would allocate a gigabyte.
    harmless = _NUMBER.sub("1", text) if "*" in text else text
    try:
        _program(harmless)
    except ValueError as exc:  # also UnicodeEncodeError: a lone surrogate
        return _short(str(exc))
    return ""


def _short(message: str) -> str:
    """Return the first error of libjq's message."""
    first = message.strip().splitlines()[0] if message.strip() else "the expression does not compile"
    first = first.removeprefix("jq: error:").strip()
    return _POSITION.sub("", first).replace("end of file", "the end")[:200] or "the expression does not compile"


def _without_strings(text: str) -> str:
    """Return *text* with empty strings and without comments."""
    return _QUOTED.sub(lambda match: '""' if match[0].startswith('"') else "", text)


def _depth(text: str) -> int:
    """Return the nesting depth of brackets of any type."""
    deepest = depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _certainly_terminates(text: str) -> bool:
    """Return whether an expression is so simple that it terminates quickly on any input."""
    bare = _without_strings(text)
    names = _NAME.findall(bare)
    loops = bare.count("[]") + bare.count("..") + sum(name in _LOOPS for name in names)
    simple = len(text) <= MAX_RUN_LENGTH and "\\(" not in text and not _UNSAFE_SIGN.search(bare)
    return simple and loops <= MAX_LOOPS and all(name in _SAFE for name in names)


def _selector_value(result: object) -> str | None:
    """Return a result in the format of selector values."""
    if isinstance(result, bool):
        return str(result).lower()
    # In kwok a number read from an object equals no value, but a computed number may. Callers ask what
    # could match, so numbers compare equal here.
    return str(result) if isinstance(result, str | int) else None
