"""Linter for kwok Stages.

kwok compiles a Stage at its first object and does not report errors. An expression that does not compile fails
all objects of its kind, then crashes kwok; a Stage without selector is dropped; a jitter below the delay replaces
the delay. The rules follow the source of kwok v0.8.0. ERROR: kwok breaks, or the Stage does not work. WARNING:
the Stage works, but probably not as intended.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.stagelint import expression_rules, schema, step_rules

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")
_GROUP = re.compile(r"(?:[a-z0-9][a-z0-9.-]*/)?v[0-9]+(?:(?:alpha|beta)[0-9]+)?")
_LASTING = re.compile(r"\.metadata\.(?:labels|annotations)[^|]*$")
"""Requirements that a status patch cannot change."""
_ALWAYS_NEW = re.compile(r"\{\{[^}]*\b(?:Now|now|uuidv4|rand\w+)\b")


def check(stage: Mapping[str, Any], where: FieldPath = ()) -> list[Finding]:
    """Return the Findings of one Stage, in field order. *where* is the path of the Stage."""
    findings = [
        *schema.check(stage, schema.STAGE, ()),
        *_identity(stage),
        *_selector(stage),
        *_not_negative(stage, ("spec", "weight")),
        *expression_rules.check_value_from(stage, ("spec", "weightFrom"), "weight"),
        *_delay(stage),
        *step_rules.check(stage),
        *_loop(stage),
    ]
    return [replace(finding, field_path=(*where, *finding.field_path)) for finding in findings]


def check_set(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> list[Finding]:
    """Return the Findings across Stages of one kwok. Each Stage comes with its path."""
    return [*_duplicate_names(stages), *_never_chosen(stages)]


def _identity(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Check apiVersion, kind, name and resourceRef."""
    for key, expected in (("apiVersion", schema.API_VERSION), ("kind", "Stage")):
        if schema.get(stage, key) != expected:
            what = f"must be {expected} for a kwok Stage"
            yield Finding((key,), what, f"set {key}: {expected}", rule="stage-wrong-kind")
    name = schema.text(stage, "metadata", "name")
    if not name:
        yield Finding(("metadata", "name"), "a name is required", "add metadata.name", rule="stage-missing-name")
    elif not _NAME.fullmatch(name):
        hint = "use lower-case letters, digits, '-' and '.'"
        yield Finding(("metadata", "name"), f"{name!r} is not a valid Kubernetes name", hint, rule="stage-bad-name")
    yield from _resource(schema.kind(stage), schema.text(stage, "spec", "resourceRef", "apiGroup") or "v1")


def _resource(kind: str, group: str) -> Iterator[Finding]:
    kind_path, group_path = ("spec", "resourceRef", "kind"), ("spec", "resourceRef", "apiGroup")
    if not kind:
        what, hint = "the kind of the objects is required", "add kind, for example Pod or Node"
        yield Finding(kind_path, what, hint, rule="stage-missing-kind")
    elif not _KIND.fullmatch(kind):
        close = problems.closest_name(kind, ["Node", "Pod"])
        hint = f"did you mean {close!r}?" if close else "use the kind of the objects, for example Deployment"
        yield Finding(kind_path, f"{kind!r} is not a valid kind, so no object matches", hint, rule="stage-bad-kind")
    if not _GROUP.fullmatch(group):
        what, hint = (
            f"{group!r} is not a valid API version, so no object matches",
            "use v1, or GROUP/VERSION like apps/v1",
        )
        yield Finding(group_path, what, hint, rule="stage-bad-api-group")
    elif kind in ("Node", "Pod") and group != "v1":
        what = f"must be v1 for {kind}, got {group}: no object matches"
        yield Finding(group_path, what, "set apiGroup: v1", rule="stage-bad-api-group")


def _selector(stage: Mapping[str, Any]) -> Iterator[Finding]:
    where: FieldPath = ("spec", "selector")
    if schema.get(stage, *map(str, where)) is None:
        path = where if "selector" in schema.mapping(stage, "spec") else ("spec",)
        what, hint = "a selector is required: kwok silently drops the Stage", "use selector: {} to match all objects"
        yield Finding(path, what, hint, rule="stage-null-selector")
    for index, requirement in schema.maps(stage, *map(str, where), "matchExpressions"):
        yield from _requirement_form(requirement, (*where, "matchExpressions", index))
    for path, language, content in schema.requirements(stage):
        if language == "jq":
            yield from expression_rules.check_jq_requirement(content, path)
        elif language == "cel":
            yield from expression_rules.check_cel_expression(content, path, stage, "condition")
        else:
            what = f"jq or cel is required: {expression_rules.OUTAGE}"
            hint = "add jq: {key, operator, values} or cel: {expression}"
            yield Finding(path, what, hint, rule="stage-bad-requirement")


def _requirement_form(requirement: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    """Check that a requirement uses one of its three forms, and not the deprecated one."""
    deprecated = [name for name in ("key", "operator", "values") if requirement.get(name) is not None]
    is_jq, is_cel = isinstance(requirement.get("jq"), Mapping), isinstance(requirement.get("cel"), Mapping)
    if is_cel and (is_jq or schema.text(requirement, "key")):
        what, hint = "kwok ignores cel because jq is set", "make it a separate requirement"
        yield Finding((*where, "cel"), what, hint, rule="stage-two-languages")
    if is_jq and deprecated:
        what = f"kwok ignores {deprecated[0]} because jq is set"
        hint = "remove it, or make it a separate requirement"
        yield Finding((*where, deprecated[0]), what, hint, rule="stage-two-languages")
    elif deprecated:
        hint = "use jq: {key: ..., operator: ..., values: [...]}"
        what = "this form of a requirement is deprecated"
        yield warning((*where, deprecated[0]), what, hint, "stage-bare-requirement")


def _not_negative(stage: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    value = schema.number(stage, *map(str, where))
    if value is not None and value < 0:
        what = f"must be 0 or more, got {value}: the API server rejects the Stage"
        yield Finding(where, what, "use 0 or more", rule="stage-negative")


def _delay(stage: Mapping[str, Any]) -> Iterator[Finding]:
    where: FieldPath = ("spec", "delay")
    for name in ("durationMilliseconds", "jitterDurationMilliseconds"):
        yield from _not_negative(stage, (*where, name))
    delay = schema.mapping(stage, "spec", "delay")
    base, jitter = schema.number(delay, "durationMilliseconds"), schema.number(delay, "jitterDurationMilliseconds")
    jitter_path = (*where, "jitterDurationMilliseconds")
    if base is not None and jitter is not None and 0 <= jitter < base:
        what = f"must be at least durationMilliseconds ({base}), got {jitter}: kwok waits only {jitter} ms"
        hint = "increase it (it is the maximum delay), or remove it"
        yield Finding(jitter_path, what, hint, rule="stage-jitter-below-duration")
    elif jitter is not None and schema.mapping(delay, "durationFrom") and not delay.get("jitterDurationFrom"):
        what = f"limits durationFrom to {jitter} ms: the jitter is the maximum delay"
        yield warning(jitter_path, what, "remove it, or add jitterDurationFrom", "stage-jitter-caps-duration")
    yield from expression_rules.check_value_from(stage, (*where, "durationFrom"), "delay")
    yield from expression_rules.check_value_from(stage, (*where, "jitterDurationFrom"), "delay")


def _loop(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn about a Stage that matches again after it played, changes the object each time, and has no delay."""
    if schema.get(stage, "spec", "selector") is None or schema.mapping(stage, "spec", "delay"):
        return
    if not all(_LASTING.match(schema.text(content, "key")) for _, _, content in schema.requirements(stage)):
        return
    actions = schema.actions(stage)
    changing = [
        action
        for action in actions
        if action.operation == "patch" and _ALWAYS_NEW.search(schema.text(action.content, "template"))
    ]
    if changing and not any(action.operation in ("delete", "finalizers") for action in actions):
        what = "endless loop: the Stage matches again after it played, changes the object each time and has no delay"
        hint = "add a delay, or a requirement that is not met afterwards"
        yield warning(changing[0].at("template"), what, hint, "stage-hot-loop")


def _duplicate_names(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> Iterator[Finding]:
    seen: set[str] = set()
    for where, stage in stages:
        name = schema.text(stage, "metadata", "name")
        if name and name in seen:
            what = f"duplicate Stage name {name!r}: in a cluster, one replaces the other"
            yield Finding((*where, "metadata", "name"), what, "rename one of them", rule="stage-duplicate-name")
        seen.add(name)


def _never_chosen(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find Stages of weight 0 whose objects all match a Stage with a weight."""
    weighted = [other for _, other in stages if (schema.number(other, "spec", "weight") or 0) > 0]
    for where, stage in stages:
        if schema.get(stage, "spec", "weightFrom") or schema.number(stage, "spec", "weight"):
            continue
        other = next((other for other in weighted if _implies(stage, other)), None)
        if other is not None:
            name = schema.text(other, "metadata", "name")
            what = (
                f"the Stage is never chosen: its weight is 0, and Stage {name!r} with a weight matches the same objects"
            )
            hint = "set a weight, or narrow the selector of the other Stage"
            yield Finding((*where, "spec", "weight"), what, hint, rule="stage-zero-weight")


def _implies(stage: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether *other* certainly matches every object that *stage* matches."""
    if any(schema.get(one, "spec", "selector") is None for one in (stage, other)):
        return False
    if any(
        schema.text(stage, "spec", "resourceRef", name) != schema.text(other, "spec", "resourceRef", name)
        for name in ("apiGroup", "kind")
    ):
        return False
    requirements = _requirements(stage)
    return all(any(_stronger(own, required) for own in requirements) for required in _requirements(other))


def _requirements(stage: Mapping[str, Any]) -> list[tuple[str, str, frozenset[str]]]:
    """Return the requirements of a selector, as (key, operator, values)."""
    requirements = [
        (f".metadata.{of}[{name}]", "In", frozenset({str(value)}))
        for of, field in (("labels", "matchLabels"), ("annotations", "matchAnnotations"))
        for name, value in schema.mapping(stage, "spec", "selector", field).items()
    ]
    for _, language, content in schema.requirements(stage):
        key = schema.text(content, "key" if language == "jq" else "expression")
        key = re.sub(r"\s+", "", key).replace(".[", "[").replace('"', "")
        requirements.append((key, schema.text(content, "operator"), frozenset(schema.texts(content, "values"))))
    return requirements


def _stronger(own: tuple[str, str, frozenset[str]], required: tuple[str, str, frozenset[str]]) -> bool:
    """Return whether a value that meets *own* certainly meets *required*."""
    if own[0] != required[0]:
        return False
    one_result = "[]" not in own[0]
    match own[1], required[1]:
        case ("In", "Exists") | ("DoesNotExist", "NotIn"):
            return True
        case "In", "In":
            return own[2] <= required[2]
        case "In", "NotIn":
            return one_result and not own[2] & required[2]
        case "NotIn", "NotIn":
            return required[2] <= own[2]
    return own[1:] == required[1:]
