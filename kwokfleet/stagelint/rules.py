"""The linter for kwok Stages: what would stop kwok, stop a Stage, or not do what it seems to say.

kwok compiles a Stage when the first object comes by, and reports to nobody. One expression that
does not compile fails every object of its kind and then crashes the process; a Stage without a
selector is dropped; a jitter below the delay replaces the delay. Each rule here is such a trap, read
from the source of kwok v0.8.0. ERROR: it breaks kwok, or the Stage never does what it says.
WARNING: it works, and probably not as meant.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, Severity
from kwokfleet.stagelint import expression_rules, schema, step_rules

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")
_GROUP = re.compile(r"(?:[a-z0-9][a-z0-9.-]*/)?v[0-9]+(?:(?:alpha|beta)[0-9]+)?")
_LASTING = re.compile(r"\.metadata\.(?:labels|annotations)[^|]*$")
"""A requirement that no patch of a status changes."""
_ALWAYS_NEW = re.compile(r"\{\{[^}]*\b(?:Now|now|uuidv4|rand\w+)\b")


def check(stage: Mapping[str, Any], where: FieldPath = ()) -> list[Finding]:
    """Return all that is wrong in one Stage, in the order of its fields; *where* is the place of the Stage itself."""
    found = [
        *schema.check(stage, schema.STAGE, ()),
        *_identity(stage),
        *_selector(stage),
        *_weight(stage),
        *_delay(stage),
        *step_rules.check(stage),
        *_loop(stage),
    ]
    return [_under(where, finding) for finding in found]


def check_set(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> list[Finding]:
    """Return what only shows across Stages that one kwok plays, each given with its place."""
    return [*_names_given_twice(stages), *_never_chosen(stages)]


def _under(where: FieldPath, found: Finding) -> Finding:
    return Finding((*where, *found.field_path), found.what, found.hint, found.severity, found.rule, found.at_key)


def _warning(where: FieldPath, what: str, hint: str, rule: str) -> Finding:
    return Finding(where, what, hint, Severity.WARNING, rule)


def _identity(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what a Stage is, what it is called, and what it is for."""
    for key, wanted in (("apiVersion", schema.API_VERSION), ("kind", "Stage")):
        if schema.get(stage, key) != wanted:
            yield Finding(
                (key,),
                f"must be {wanted}, or it is not a kwok Stage",
                f"write {key}: {wanted}",
                rule="stage-wrong-kind",
            )
    name = schema.text(stage, "metadata", "name")
    if not name:
        yield Finding(("metadata", "name"), "a Stage needs a name", "add metadata.name", rule="stage-missing-name")
    elif not _NAME.fullmatch(name):
        hint = "use lower-case letters, digits, '-' and '.'"
        yield Finding(
            ("metadata", "name"), f"{name!r} is not a name that Kubernetes takes", hint, rule="stage-bad-name"
        )
    yield from _resource(schema.kind(stage), schema.text(stage, "spec", "resourceRef", "apiGroup") or "v1")


def _resource(kind: str, group: str) -> Iterator[Finding]:
    where: FieldPath = ("spec", "resourceRef")
    if not kind:
        yield Finding(
            (*where, "kind"),
            "the kind of object the Stage is for is missing",
            "add kind: Pod, Node or another",
            rule="stage-missing-kind",
        )
    elif not _KIND.fullmatch(kind):
        hint = (
            problems.suggestion(kind, ["Node", "Pod"])
            if problems.closest_name(kind, ["Node", "Pod"])
            else "write it as in the object's own kind"
        )
        yield Finding(
            (*where, "kind"), f"{kind!r} is not a kind: kwok finds no such objects", hint, rule="stage-bad-kind"
        )
    if not _GROUP.fullmatch(group):
        hint = "write v1, or group/version such as apps/v1"
        yield Finding(
            (*where, "apiGroup"),
            f"{group!r} is not an API version: kwok finds no such objects",
            hint,
            rule="stage-bad-api-group",
        )
    elif kind in ("Node", "Pod") and group != "v1":
        yield Finding(
            (*where, "apiGroup"),
            f"{kind} is of v1: kwok finds none in {group}",
            "write apiGroup: v1",
            rule="stage-bad-api-group",
        )


def _selector(stage: Mapping[str, Any]) -> Iterator[Finding]:
    where: FieldPath = ("spec", "selector")
    if schema.get(stage, *map(str, where)) is None:
        given = "selector" in schema.mapping(stage, "spec")
        what = "kwok drops a Stage without a selector and says nothing"
        yield Finding(
            where if given else ("spec",), what, "write selector: {} to match every object", rule="stage-null-selector"
        )
    for index, found in schema.maps(stage, *map(str, where), "matchExpressions"):
        yield from _written_twice(found, (*where, "matchExpressions", index))
    for place, language, content in schema.requirements(stage):
        if language == "jq":
            yield from expression_rules.check_jq_requirement(content, place)
        elif language == "cel":
            yield from expression_rules.check_cel_expression(content, place, stage, "condition")
        else:
            yield Finding(
                place,
                f"has neither jq nor cel: {expression_rules.OUTAGE}",
                "add jq: {key, operator, values} or cel: {expression}",
                rule="stage-bad-requirement",
            )


def _written_twice(found: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    """Check which of the three spellings of a requirement is used, and that it is one."""
    bare = [name for name in ("key", "operator", "values") if found.get(name) is not None]
    is_jq, is_cel = isinstance(found.get("jq"), Mapping), isinstance(found.get("cel"), Mapping)
    if is_cel and (is_jq or schema.text(found, "key")):
        yield Finding(
            (*where, "cel"),
            "kwok ignores cel beside jq in one requirement",
            "make it a requirement of its own",
            rule="stage-two-languages",
        )
    if is_jq and bare:
        yield Finding(
            (*where, bare[0]),
            f"kwok ignores {bare[0]} beside jq",
            "remove it, or make it a requirement of its own",
            rule="stage-two-languages",
        )
    elif bare and not is_jq:
        yield _warning(
            (*where, bare[0]),
            "this spelling of a requirement is deprecated",
            "write jq: {key: ..., operator: ..., values: [...]}",
            "stage-bare-requirement",
        )


def _weight(stage: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _not_negative(stage, ("spec", "weight"))
    yield from expression_rules.check_value_from(stage, ("spec", "weightFrom"), "weight")


def _not_negative(stage: Mapping[str, Any], where: FieldPath) -> Iterator[Finding]:
    value = schema.number(stage, *map(str, where))
    if value is not None and value < 0:
        yield Finding(
            where, f"must be 0 or more, got {value}", "the API server refuses the Stage", rule="stage-negative"
        )


def _delay(stage: Mapping[str, Any]) -> Iterator[Finding]:
    where: FieldPath = ("spec", "delay")
    for name in ("durationMilliseconds", "jitterDurationMilliseconds"):
        yield from _not_negative(stage, (*where, name))
    delay = schema.mapping(stage, "spec", "delay")
    base, jitter = (
        schema.number(delay, "durationMilliseconds"),
        schema.number(delay, "jitterDurationMilliseconds"),
    )
    if base is not None and jitter is not None and 0 <= jitter < base:
        what = f"is below durationMilliseconds, so kwok waits {jitter} ms, not {base} ms"
        yield Finding(
            (*where, "jitterDurationMilliseconds"),
            what,
            "the jitter is the upper end of the delay: make it larger, or leave it out",
            rule="stage-jitter-below-duration",
        )
    elif jitter is not None and schema.mapping(delay, "durationFrom") and not delay.get("jitterDurationFrom"):
        what = f"a durationFrom above {jitter} ms has no effect: the jitter is the longest that kwok waits"
        yield _warning(
            (*where, "jitterDurationMilliseconds"),
            what,
            "leave it out, or add jitterDurationFrom",
            "stage-jitter-caps-duration",
        )
    yield from expression_rules.check_value_from(stage, (*where, "durationFrom"), "delay")
    yield from expression_rules.check_value_from(stage, (*where, "jitterDurationFrom"), "delay")


def _loop(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of a Stage that undoes nothing of what made it match, changes the object each time, and never waits."""
    if schema.get(stage, "spec", "selector") is None or schema.mapping(stage, "spec", "delay"):
        return
    if not all(_LASTING.match(schema.text(content, "key")) for _, _, content in schema.requirements(stage)):
        return
    done = schema.actions(stage)
    changing = [
        action
        for action in done
        if action.operation == "patch" and _ALWAYS_NEW.search(schema.text(action.content, "template"))
    ]
    if changing and not any(action.operation in ("delete", "finalizers") for action in done):
        what = "the Stage still matches after it has played, changes the object each time and never waits"
        yield _warning(
            changing[0].at("template"),
            what,
            "add a delay, or a requirement that no longer holds afterwards",
            "stage-hot-loop",
        )


def _names_given_twice(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> Iterator[Finding]:
    seen: set[str] = set()
    for where, stage in stages:
        name = schema.text(stage, "metadata", "name")
        if name and name in seen:
            what = f"another Stage is called {name!r} too: in a cluster one replaces the other"
            yield Finding((*where, "metadata", "name"), what, "rename one of them", rule="stage-duplicate-name")
        seen.add(name)


def _never_chosen(stages: Sequence[tuple[FieldPath, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find the Stages of weight 0 that match only where a Stage with a weight matches too."""
    for where, stage in stages:
        if schema.get(stage, "spec", "weightFrom") or schema.number(stage, "spec", "weight"):
            continue
        for _, other in stages:
            if (
                (schema.number(other, "spec", "weight") or 0) > 0
                and _same_kind(stage, other)
                and _implies(stage, other)
            ):
                name = schema.text(other, "metadata", "name")
                what = f"is never chosen: its weight is 0, and where it matches {name!r} with a weight does too"
                yield Finding(
                    (*where, "spec", "weight"),
                    what,
                    "give it a weight, or narrow the other's selector",
                    rule="stage-zero-weight",
                )
                break


def _same_kind(stage: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (
        all(
            schema.text(stage, "spec", "resourceRef", name) == schema.text(other, "spec", "resourceRef", name)
            for name in ("apiGroup", "kind")
        )
        and schema.get(stage, "spec", "selector") is not None
    )


def _implies(stage: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether every object that *stage* matches is surely matched by *other* too."""
    if schema.get(other, "spec", "selector") is None:
        return False
    mine = _needs(stage)
    return all(any(_stronger(need, wanted) for need in mine) for wanted in _needs(other))


def _needs(stage: Mapping[str, Any]) -> list[tuple[str, str, frozenset[str]]]:
    """Return what a selector asks for, as (key, operator, values)."""
    found = [
        (f".metadata.{of}[{name}]", "In", frozenset({str(value)}))
        for of, field in (("labels", "matchLabels"), ("annotations", "matchAnnotations"))
        for name, value in schema.mapping(stage, "spec", "selector", field).items()
    ]
    for _, language, content in schema.requirements(stage):
        key = schema.text(content, "key" if language == "jq" else "expression")
        key = re.sub(r"\s+", "", key).replace(".[", "[").replace('"', "")
        found.append((key, schema.text(content, "operator"), frozenset(schema.texts(content, "values"))))
    return found


def _stronger(need: tuple[str, str, frozenset[str]], wanted: tuple[str, str, frozenset[str]]) -> bool:
    """Return whether what meets *need* surely meets *wanted*."""
    if need[0] != wanted[0]:
        return False
    one_result = "[]" not in need[0]
    match need[1], wanted[1]:
        case ("In", "In") | ("In", "Exists"):
            return wanted[1] == "Exists" or need[2] <= wanted[2]
        case "In", "NotIn":
            return one_result and not need[2] & wanted[2]
        case "NotIn", "NotIn":
            return wanted[2] <= need[2]
        case "DoesNotExist", "NotIn":
            return True
    return need[1:] == wanted[1:]
