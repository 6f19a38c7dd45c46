"""What a Stage does when it plays: the rules about steps, `next`, patches, events, finalizers, templates."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, Severity
from kwokfleet.stagelint import gotemplate, schema
from kwokfleet.stagelint.schema import StageAction

PATCH_TYPES = ("json", "merge", "strategic")
APPLY_TYPES = ("apply", "merge", "strategic")
EVENT_TYPES = ("Normal", "Warning")
SUBRESOURCES = {"Node": ("status",), "Pod": ("ephemeralcontainers", "resize", "status")}
"""The subresources that can be patched, for the kinds of which all are known."""

_CUSTOM_GROUP = re.compile(r"[^/]*\.[^/]*(?<!\.k8s\.io)/.*")


def check(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield all that is wrong in what a Stage does."""
    yield from _steps_or_next(stage)
    yield from _each_step(stage)
    checks = {"event": _event, "finalizers": _finalizers, "patch": _patch, "apply": _apply}
    for action in schema.actions(stage):
        if action.operation in checks:
            yield from checks[action.operation](action, stage)


def _steps_or_next(stage: Mapping[str, Any]) -> Iterator[Finding]:
    spec = schema.mapping(stage, "spec")
    steps, after = schema.get(spec, "steps"), schema.mapping(spec, "next")
    where: FieldPath = ("spec", "next")
    if steps and after:
        yield Finding(
            where, "kwok ignores next beside steps", "move what it does into steps", rule="stage-steps-and-next"
        )
    elif after:
        yield Finding(
            where,
            "next is deprecated",
            "write steps: one entry each for what it does",
            Severity.WARNING,
            "stage-next-deprecated",
            at_key=True,
        )
    if after.get("patches") and after.get("statusTemplate"):
        hint = "make it one of the patches"
        yield Finding(
            (*where, "statusTemplate"),
            "kwok ignores statusTemplate beside patches",
            hint,
            rule="stage-template-ignored",
        )
    if not steps and not schema.actions(stage):
        place: FieldPath = where if after else ("spec",)
        yield Finding(
            place,
            "the Stage does nothing, and keeps the objects it matches from other Stages",
            "add steps",
            rule="stage-no-steps",
        )


def _each_step(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what one step holds together, and what comes after a delete."""
    deleted = False
    for index, step in schema.maps(stage, "spec", "steps"):
        where: FieldPath = ("spec", "steps", index)
        does = [word for word in schema.ORDER if step.get(word) not in (None, False)]
        if not does:
            yield Finding(
                where,
                "the step does nothing",
                "give it patch, apply, event, finalizers or delete: true",
                rule="stage-empty-step",
            )
        hidden = [word for word in does if word in ("patch", "apply")] if "delete" in does else []
        if hidden:
            yield Finding(
                (*where, hidden[0]),
                f"kwok skips {hidden[0]} beside delete in one step",
                "put it in a step before",
                rule="stage-delete-hides-action",
            )
        elif len(does) > 1:
            what = f"does {' and '.join(does)} in one step: if one fails, kwok repeats them all"
            yield Finding(where, what, "make each a step of its own", Severity.WARNING, "stage-many-actions")
        late = [word for word in does if word != "event"] if deleted else []
        if late:
            yield Finding(
                (*where, late[0]),
                f"kwok skips {late[0]} after a delete",
                "move it before the delete",
                rule="stage-after-delete",
            )
        deleted = deleted or "delete" in does


def _event(action: StageAction, _: Mapping[str, Any]) -> Iterator[Finding]:
    given = schema.text(action.content, "type")
    if given not in EVENT_TYPES:
        what = (
            f"{given!r} is not a type of event: kwok sends none" if given else "an event without a type is never sent"
        )
        yield Finding(action.at("type"), what, problems.suggestion(given, EVENT_TYPES), rule="stage-bad-event")


def _finalizers(action: StageAction, _: Mapping[str, Any]) -> Iterator[Finding]:
    content = action.content
    if content.get("empty") is True and content.get("remove"):
        yield Finding(
            action.at("remove"),
            "kwok ignores remove beside empty: all are removed",
            "keep one of them",
            Severity.WARNING,
            "stage-finalizers-empty",
        )
    if content.get("empty") is True and content.get("add"):
        what = "kwok removes all finalizers, others' too, before it adds these"
        yield Finding(
            action.at("empty"), what, "use remove with the ones you mean", Severity.WARNING, "stage-finalizers-empty"
        )
    if not (content.get("empty") or content.get("add") or content.get("remove")):
        yield Finding(
            action.path,
            "changes no finalizer",
            "give it add, remove or empty: true",
            Severity.WARNING,
            "stage-empty-step",
        )
    for name in ("add", "remove"):
        for index, item in schema.maps(content, name):
            if not schema.text(item, "value"):
                yield Finding(
                    (*action.at(name), index),
                    "a finalizer needs a value",
                    "write value: example.com/name",
                    rule="stage-empty-finalizer",
                )


def _patch(action: StageAction, stage: Mapping[str, Any]) -> Iterator[Finding]:
    content, kind = action.content, schema.kind(stage)
    given, subresource = schema.text(content, "type"), schema.text(content, "subresource")
    yield from _type(action, PATCH_TYPES)
    yield from _template(action, kind)
    if given == "strategic" and _CUSTOM_GROUP.fullmatch(schema.text(stage, "spec", "resourceRef", "apiGroup")):
        yield Finding(
            action.at("type"),
            "custom resources take no strategic patch: the API server refuses it",
            "use merge",
            rule="stage-strategic-custom",
        )
    known = SUBRESOURCES.get(kind, ())
    if known and subresource and subresource not in known:
        yield Finding(
            action.at("subresource"),
            f"{kind} has no subresource {subresource!r} to patch",
            problems.suggestion(subresource, known),
            rule="stage-bad-subresource",
        )
    root = schema.text(content, "root")
    if known and root == "status" and not subresource:
        what = f"the API server ignores the status in a patch of the {kind} itself"
        yield Finding(action.at("root"), what, "add subresource: status", rule="stage-status-not-patched")
    if subresource == "status" and not root and "status" not in schema.text(content, "template"):
        what = "a patch of the status subresource changes nothing but status, and this one does not name it"
        yield Finding(action.at("template"), what, "add root: status", Severity.WARNING, "stage-status-not-patched")


def _apply(action: StageAction, stage: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _type(action, APPLY_TYPES)
    yield from _template(action, schema.kind(stage))
    template = schema.text(action.content, "template")
    for name in ("apiVersion", "kind"):
        if template and "{{" not in template and not re.search(rf"^\W*{name}\W*:", template, re.MULTILINE):
            yield Finding(
                action.at("template"),
                f"has no {name}: kwok does not know what to apply",
                f"add {name}",
                rule="stage-apply-without-kind",
            )


def _type(action: StageAction, known: tuple[str, ...]) -> Iterator[Finding]:
    given = schema.text(action.content, "type")
    if given and given not in known:
        what = f"{given!r} is not a type of {action.operation}: kwok fails each time the Stage plays"
        yield Finding(action.at("type"), what, problems.suggestion(given, known), rule="stage-bad-patch-type")
    who = action.content.get("impersonation")
    if isinstance(who, Mapping) and not schema.text(who, "username"):
        yield Finding(
            action.at("impersonation"),
            "names nobody: the API server refuses the Stage",
            "add username",
            rule="stage-missing-username",
        )


def _template(action: StageAction, kind: str) -> Iterator[Finding]:
    text = schema.text(action.content, "template")
    if not text.strip():
        place = action.at("template") if "template" in action.content else action.path
        yield Finding(
            place,
            f"the {action.operation} has no template: it changes nothing",
            "add template",
            rule="stage-missing-template",
        )
        return
    fault = gotemplate.first_problem(text, kind)
    if fault:
        what = f"kwok cannot parse the template, line {fault.line}: {fault.what}"
        yield Finding(action.at("template"), what, fault.hint, rule="stage-bad-template")
