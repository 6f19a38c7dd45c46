"""Rules for jq and CEL expressions of a Stage: selector requirements, delays and weights."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.stagelint import cel, jq, schema

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_PLAIN_PATH = re.compile(r"(?:\.[A-Za-z_]\w*|\.?\[[0-9]*\]\??)+")

OUTAGE = "kwok stops all Stages of this kind, then crashes"
_UNREGISTERED_HINT = "use jq, for example jq: {key: '.status.conditions[] | select(.type == \"Ready\") | .status', ...}"
_RESULT_TYPES = {
    "condition": ("bool", "dyn"),
    "delay": ("string", "duration", "int", "uint", "double", "dyn"),
    "weight": ("int", "duration", "uint", "double", "bool", "dyn"),
}
"""Result types of CEL that kwok can use, by purpose."""


def check_jq_requirement(content: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    """Check a jq requirement of a selector."""
    key, operator = schema.text(content, "key"), schema.text(content, "operator")
    values = schema.texts(content, "values")
    yield from _jq(key, (*where, "key"))
    if operator not in jq.OPERATORS:
        what = f"unknown operator {operator!r}: {OUTAGE}" if operator else f"operator is required: {OUTAGE}"
        hint = problems.suggestion(operator, jq.OPERATORS)
        yield Finding((*where, "operator"), what, hint, rule="stage-bad-operator")
    elif operator in ("In", "NotIn") and not schema.get(content, "values"):
        what = f"{operator} requires values: {OUTAGE}"
        yield Finding((*where, "operator"), what, "add values", rule="stage-bad-values")
    elif operator in ("Exists", "DoesNotExist") and schema.get(content, "values"):
        what = f"{operator} does not allow values: {OUTAGE}"
        yield Finding((*where, "values"), what, "remove values", rule="stage-bad-values")
    elif values and all(map(_NUMBER.fullmatch, values)) and _PLAIN_PATH.fullmatch(key):
        what = f"if {key} is a number, it never equals a value: kwok compares strings"
        yield warning((*where, "values"), what, f"use key: {key} | tostring", "stage-number-value")


def check_value_from(stage: Mapping[str, Any], where: FieldPath, used_for: str) -> Iterator[Finding]:
    """Check a durationFrom, jitterDurationFrom or weightFrom."""
    source = schema.get(stage, *map(str, where))
    if not isinstance(source, Mapping):
        return
    deprecated = schema.text(source, "expressionFrom")
    is_jq, is_cel = isinstance(source.get("jq"), Mapping), isinstance(source.get("cel"), Mapping)
    if not (is_jq or is_cel or deprecated):
        yield warning(where, "has no expression, so kwok ignores it", "add jq: {expression: ...}", "stage-empty-from")
    if is_jq:
        yield from _jq(schema.text(source, "jq", "expression"), (*where, "jq", "expression"))
    elif deprecated:
        yield from _jq(deprecated, (*where, "expressionFrom"))
    if deprecated:
        what = "is deprecated, and ignored because jq is set" if is_jq else "is deprecated"
        yield warning((*where, "expressionFrom"), what, "use jq: {expression: ...}", "stage-deprecated-expression")
    if is_cel and where[-1] == "jitterDurationFrom":
        what = "kwok ignores CEL in jitterDurationFrom, so there is no jitter"
        yield Finding((*where, "cel"), what, "use jq", rule="stage-cel-jitter")
    elif is_cel:
        yield from check_cel_expression(source["cel"], (*where, "cel"), stage, used_for)
        if is_jq or deprecated:
            yield Finding(where, "kwok ignores jq because cel is set", "remove one of them", rule="stage-two-languages")


def check_cel_expression(
    content: Mapping[str, Any], where: FieldPath, stage: Mapping[str, Any], used_for: str
) -> Iterator[Finding]:
    """Check one CEL expression and its result type."""
    analysis = cel.analyze(schema.text(content, "expression"), schema.kind(stage))
    path = (*where, "expression")
    if analysis.problem:
        what = f"the CEL expression does not compile ({analysis.problem}): {OUTAGE}"
        hint = _UNREGISTERED_HINT if "did not register" in analysis.problem else "fix the expression"
        yield Finding(path, what, hint, rule="stage-bad-cel")
        return
    if analysis.null_time:
        what = "a time is never null in kwok's CEL, even if it is not set"
        hint = "use has(), for example !has(self.metadata.deletionTimestamp)"
        yield Finding(path, what, hint, rule="stage-cel-null-time")
    if analysis.unchecked_key and used_for != "delay" and not _checked_elsewhere(stage, analysis.unchecked_key):
        what = f"if {analysis.unchecked_key} does not exist, the expression fails and no Stage matches the object"
        yield warning(path, what, "check for it first, with has(...) or 'key' in map", "stage-cel-missing-key")
    yield from _check_result_type(analysis.result_type, path, used_for)


def _checked_elsewhere(stage: Mapping[str, Any], name: str) -> bool:
    """Return whether another requirement checks that *name* exists: kwok stops at the first one that fails."""
    return any(
        jq.reads(schema.text(content, "key"), name.strip("\"'"))
        if language == "jq"
        else cel.analyze(schema.text(content, "expression"), schema.kind(stage)).checks_presence
        for _, language, content in schema.requirements(stage)
    )


def _check_result_type(result_type: str, path: FieldPath, used_for: str) -> Iterator[Finding]:
    """Check that kwok can use the result type of an expression."""
    if result_type not in _RESULT_TYPES[used_for]:
        what = f"the result must be a {used_for}, got {result_type}"
        what += "" if used_for == "delay" else ", so no Stage matches the object"
        yield Finding(path, what, f"return {_RESULT_TYPES[used_for][0]}", rule=f"stage-cel-not-{used_for}")
    elif used_for == "delay" and result_type in ("int", "uint", "double"):
        hint = 'return a string like "10s", or duration("10s")'
        yield warning(path, "kwok interprets a number as nanoseconds", hint, "stage-cel-nanoseconds")


def _jq(expression: str, where: FieldPath) -> Iterator[Finding]:
    problem = jq.compile_error(expression)
    if problem:
        hint = "start a path with a dot: .status.phase" if "/0 is not defined" in problem else "fix the expression"
        yield Finding(where, f"the jq expression does not compile ({problem}): {OUTAGE}", hint, rule="stage-bad-jq")
