"""The expressions of a Stage, jq and CEL: the rules about requirements, delays and weights taken from the object."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, Severity
from kwokfleet.stagelint import cel, jq, schema

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_PLAIN_PATH = re.compile(r"(?:\.[A-Za-z_]\w*|\.?\[[0-9]*\]\??)+")

OUTAGE = "one such Stage stops all Stages of its kind and then crashes kwok"
_TAKES = {
    "condition": ("bool", "dyn"),
    "delay": ("string", "duration", "int", "uint", "double", "dyn"),
    "weight": ("int", "duration", "uint", "double", "bool", "dyn"),
}
"""The results of a CEL expression that kwok can use."""


def check_jq_requirement(content: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    """Check a requirement of a selector that is written in jq."""
    key, operator = schema.text(content, "key"), schema.text(content, "operator")
    values = schema.texts(content, "values")
    yield from _jq(key, (*where, "key"))
    if operator not in jq.OPERATORS:
        what = f"{operator!r} is not an operator: {OUTAGE}" if operator else f"the operator is missing: {OUTAGE}"
        yield Finding(
            (*where, "operator"), what, problems.suggestion(operator, jq.OPERATORS), rule="stage-bad-operator"
        )
    elif operator in ("In", "NotIn") and not schema.get(content, "values"):
        yield Finding((*where, "operator"), f"{operator} needs values: {OUTAGE}", "add values", rule="stage-bad-values")
    elif operator in ("Exists", "DoesNotExist") and schema.get(content, "values"):
        yield Finding(
            (*where, "values"), f"{operator} takes no values: {OUTAGE}", "remove them", rule="stage-bad-values"
        )
    elif values and all(map(_NUMBER.fullmatch, values)) and _PLAIN_PATH.fullmatch(key):
        what = f"if {key} is a number, kwok finds it equal to no value"
        yield _warning((*where, "values"), what, f"write key: {key} | tostring", "stage-number-value")


def check_value_from(stage: Mapping[str, Any], where: FieldPath, used_for: str) -> Iterator[Finding]:
    """Check a durationFrom, jitterDurationFrom or weightFrom."""
    found = schema.get(stage, *map(str, where))
    if not isinstance(found, Mapping):
        return
    old = schema.text(found, "expressionFrom")
    is_jq, is_cel = isinstance(found.get("jq"), Mapping), isinstance(found.get("cel"), Mapping)
    if not (is_jq or is_cel or old):
        yield _warning(where, "has no expression: kwok ignores it", "add jq: {expression: ...}", "stage-empty-from")
    if is_jq:
        yield from _jq(schema.text(found, "jq", "expression"), (*where, "jq", "expression"))
    elif old:
        yield from _jq(old, (*where, "expressionFrom"))
    if old:
        what = "is deprecated, and ignored beside jq" if is_jq else "is deprecated"
        yield _warning((*where, "expressionFrom"), what, "write jq: {expression: ...}", "stage-deprecated-expression")
    if is_cel and where[-1] == "jitterDurationFrom":
        what = "kwok ignores CEL in jitterDurationFrom: there is no jitter"
        yield Finding((*where, "cel"), what, "use jq", rule="stage-cel-jitter")
    elif is_cel:
        yield from check_cel_expression(found["cel"], (*where, "cel"), stage, used_for)
        if is_jq or old:
            yield Finding(where, "kwok ignores jq beside cel here", "keep one of them", rule="stage-two-languages")


def check_cel_expression(
    content: Mapping[str, Any], where: FieldPath, stage: Mapping[str, Any], used_for: str
) -> Iterator[Finding]:
    """Check one CEL expression and, as far as that shows, what it yields."""
    analysis = cel.analyze(schema.text(content, "expression"), schema.kind(stage))
    place = (*where, "expression")
    if analysis.problem:
        what = f"kwok cannot compile this CEL, {analysis.problem}: {OUTAGE}"
        yield Finding(place, what, _cel_hint(analysis.problem), rule="stage-bad-cel")
        return
    if analysis.null_time:
        what = "a time is never null to kwok's CEL, not even one that is not set"
        yield Finding(place, what, "use has(), as in !has(self.metadata.deletionTimestamp)", rule="stage-cel-null-time")
    if analysis.unchecked_key and used_for != "delay" and not _asked_elsewhere(stage, analysis.unchecked_key):
        what = f"if {analysis.unchecked_key} is missing, CEL fails and the object plays no Stage at all"
        yield _warning(place, what, "ask first: has(...) or 'key' in map", "stage-cel-missing-key")
    yield from _yielded(analysis.result_type, place, used_for)


def _asked_elsewhere(stage: Mapping[str, Any], name: str) -> bool:
    """Return whether another requirement rules out that something is missing: kwok stops at the first that fails."""
    return any(
        jq.reads(schema.text(content, "key"), name.strip("\"'"))
        if language == "jq"
        else cel.analyze(schema.text(content, "expression"), schema.kind(stage)).checks_presence
        for _, language, content in schema.requirements(stage)
    )


def _yielded(yields: str, place: FieldPath, used_for: str) -> Iterator[Finding]:
    """Check that kwok can use what an expression yields."""
    if yields not in _TAKES[used_for]:
        what = f"kwok can make no {used_for} of {yields}" + (
            "" if used_for == "delay" else ": the object plays no Stage"
        )
        yield Finding(place, what, f"yield {_TAKES[used_for][0]}", rule=f"stage-cel-not-{used_for}")
    elif used_for == "delay" and yields in ("int", "uint", "double"):
        hint = 'yield a text such as "10s", or duration("10s")'
        yield _warning(place, "kwok takes a number here for nanoseconds", hint, "stage-cel-nanoseconds")


def _jq(expression: str, where: FieldPath) -> Iterator[Finding]:
    problem = jq.compile_error(expression)
    if problem:
        hint = "a path starts with a dot: .status.phase" if "/0 is not defined" in problem else "correct the expression"
        yield Finding(where, f"kwok cannot compile this jq, {problem}: {OUTAGE}", hint, rule="stage-bad-jq")


def _cel_hint(problem: str) -> str:
    if "did not register" in problem:
        return "use jq, as in jq: {key: '.status.conditions[] | select(.type == \"Ready\") | .status', ...}"
    return "correct the expression"


def _warning(where: FieldPath, what: str, hint: str, rule: str) -> Finding:
    return Finding(where, what, hint, Severity.WARNING, rule)
