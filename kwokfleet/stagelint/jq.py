"""jq in Stages: whether kwok could compile an expression, and what one yields for an object.

kwok compiles jq with gojq; here libjq does it, which knows the same language but for a few
functions. An expression comes from a file that anybody may have written, so it is looked at before
libjq sees it: not too long, not too deep, nothing that reads files or multiplies texts. Running one
is bounded further, since libjq cannot be interrupted: only what plainly ends is run.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_LENGTH = 4_000
"""libjq's time grows with the square of the length: 0.2 s for the worst expression of this size."""
MAX_DEPTH = 100
MAX_RUN_LENGTH = 500
MAX_LOOPS = 2
"""How many loops an expression that is run may hold: two over the largest pod end in a second."""

OPERATORS = ("DoesNotExist", "Exists", "In", "NotIn")
UNKNOWN_TO_GOJQ = (
    "debug", "get_jq_origin", "get_prog_origin", "get_search_list", "have_decnum", "have_literal_numbers", "input",
    "input_filename", "input_line_number", "inputs", "keys_unsorted", "lgamma_r", "stderr",
)  # fmt: skip
"""What libjq defines and gojq, as kwok calls it, does not."""

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
_UNSAFE_SIGN = re.compile(r"[$@*,{+;]|(?<![=!<>])=(?!=)")


@functools.lru_cache(maxsize=4096)
def compile_error(text: str) -> str:
    """Return why kwok could not compile *text*, empty if it could."""
    unfit = _unfit(text) or _unknown(_bare(text))
    if unfit:
        return unfit
    found = _compiled(text)
    # gojq takes `.a.[1:2]` for `.a[1:2]`, libjq does not.
    return found and _compiled(_DOTTED_BRACKET.sub("[", text)) and found


def matches(key: str, operator: str, values: Sequence[str], value: Mapping[str, Any]) -> bool | None:
    """Return whether *value* meets a requirement of a selector, None if running it could take for ever."""
    results = evaluate(key, value)
    if results is None:
        return None
    if operator in ("Exists", "DoesNotExist"):
        return bool(results) == (operator == "Exists")
    return any(_written(result) in values for result in results) == (operator == "In")


def evaluate(text: str, value: Mapping[str, Any]) -> list[Any] | None:
    """Return what *text* yields but for nulls, nothing after an error, as kwok does; None if it is not safe to run."""
    if compile_error(text) or not _plainly_ends(text):
        return None
    try:
        return [result for result in _program(text).input_value(value) if result is not None]
    except (ValueError, TypeError):
        # An error of jq itself, which kwok takes for no result; or a value that is not JSON.
        return []


@functools.lru_cache(maxsize=4096)
def reads(text: str, name: str) -> bool:
    """Return whether an expression, jq or CEL, reads a field called *name*."""
    return re.search(rf"""(?:\.|\[\s*["'])"?{re.escape(name)}\b""", text) is not None


def _unfit(text: str) -> str:
    """Return why *text* is not given to libjq at all."""
    if not text.strip():
        return "it is empty"
    if len(text) > MAX_LENGTH:
        return f"it is longer than {MAX_LENGTH} characters"
    if "\0" in text:
        return "it holds a NUL character"
    return f"it nests more than {MAX_DEPTH} deep" if _depth(text) > MAX_DEPTH else ""


def _unknown(bare: str) -> str:
    """Return what libjq knows and kwok does not."""
    if _MODULE.search(bare):
        return "kwok loads no jq modules"
    lacking = [name for name in _LACKS.findall(bare) if f"def {name}" not in bare]
    if "$__loc__" in bare:
        lacking.append("$__loc__")
    return f"gojq, which kwok uses, has no {lacking[0]!r}" if lacking else ""


def _program(text: str) -> Any:  # noqa: ANN401  # libjq's binding has no types
    """Return *text* as libjq runs it."""
    import jq  # type: ignore[import-not-found]  # noqa: PLC0415  # only who has Stages to check pays for it

    return jq.compile(text)


def _compiled(text: str) -> str:
    """Return what libjq has against *text*, in a few words."""
    # libjq multiplies constants while it compiles: `"a" * 1000000000` would be a gigabyte.
    harmless = _NUMBER.sub("1", text) if "*" in text else text
    try:
        _program(harmless)
    except ValueError as exc:  # a UnicodeEncodeError is one too: half of a surrogate pair
        return _short(str(exc))
    return ""


def _short(message: str) -> str:
    """Return the first complaint of libjq's page."""
    first = message.strip().splitlines()[0] if message.strip() else "it does not compile"
    first = first.removeprefix("jq: error:").strip()
    first = re.sub(
        r"\s*(?:at <top-level>|at <unknown>|\(Unix shell quoting issues\?\)|, line \d|\(while parsing).*", "", first
    )
    return first.replace("end of file", "the end")[:200] or "it does not compile"


def _bare(text: str) -> str:
    """Return *text* with all quoted texts emptied and comments left out."""
    return _QUOTED.sub(lambda match: '""' if match[0].startswith('"') else "", text)


def _depth(text: str) -> int:
    """Return how deep the brackets nest, counted without regard to which closes which."""
    deepest = depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _plainly_ends(text: str) -> bool:
    """Return whether an expression is so simple that it ends soon, whatever it is given."""
    bare = _bare(text)
    names = _NAME.findall(bare)
    loops = bare.count("[]") + bare.count("..") + sum(name in _LOOPS for name in names)
    simple = len(text) <= MAX_RUN_LENGTH and "\\(" not in text and not _UNSAFE_SIGN.search(bare)
    return simple and loops <= MAX_LOOPS and all(name in _SAFE for name in names)


def _written(result: object) -> str | None:
    """Return a result as the values of a selector are written."""
    if isinstance(result, bool):
        return str(result).lower()
    # To kwok a number read from an object equals nothing. Taken as equal here, since one that
    # was counted or parsed does; who relies on this wants to know what could match.
    return str(result) if isinstance(result, str | int) else None
