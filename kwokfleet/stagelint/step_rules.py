"""Rules for the actions of a Stage: steps, `next`, patches, events, finalizers, templates."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.stagelint import gotemplate, schema
from kwokfleet.stagelint.schema import StageAction

PATCH_TYPES = ("json", "merge", "strategic")
APPLY_TYPES = ("apply", "merge", "strategic")
EVENT_TYPES = ("Normal", "Warning")
SUBRESOURCES = {"Node": ("status",), "Pod": ("ephemeralcontainers", "resize", "status")}
"""Subresources that can be patched, by kind. Other kinds are not checked."""

_CUSTOM_GROUP = re.compile(r"[^/]*\.[^/]*(?<!\.k8s\.io)/.*")


def check(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the Findings about the actions of a Stage."""
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
        what = "kwok ignores next because steps is set"
        yield Finding(where, what, "move its actions into steps", rule="stage-steps-and-next")
    elif after:
        hint = "use steps, with one entry per action"
        yield warning(where, "next is deprecated", hint, "stage-next-deprecated", at_key=True)
    if after.get("patches") and after.get("statusTemplate"):
        what = "kwok ignores statusTemplate because patches is set"
        yield Finding((*where, "statusTemplate"), what, "add it to patches", rule="stage-template-ignored")
    if not steps and not schema.actions(stage):
        what = "the Stage has no action, and blocks other Stages for the objects it matches"
        yield Finding(where if after else ("spec",), what, "add steps", rule="stage-no-steps")


def _each_step(stage: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the combination of actions in one step, and the actions after a delete."""
    deleted = False
    for index, step in schema.maps(stage, "spec", "steps"):
        where: FieldPath = ("spec", "steps", index)
        operations = [word for word in schema.ORDER if step.get(word) not in (None, False)]
        if not operations:
            hint = "add patch, apply, event, finalizers or delete: true"
            yield Finding(where, "the step has no action", hint, rule="stage-empty-step")
        skipped = [word for word in operations if word in ("patch", "apply")] if "delete" in operations else []
        if skipped:
            what, hint = f"kwok skips {skipped[0]} because the step has delete", "move it to an earlier step"
            yield Finding((*where, skipped[0]), what, hint, rule="stage-delete-hides-action")
        elif len(operations) > 1:
            what = f"the step has {' and '.join(operations)}: if one fails, kwok repeats all of them"
            yield warning(where, what, "use one step per action", "stage-many-actions")
        late = [word for word in operations if word != "event"] if deleted else []
        if late:
            what, hint = f"kwok skips {late[0]} after a delete", "move it before the delete"
            yield Finding((*where, late[0]), what, hint, rule="stage-after-delete")
        deleted = deleted or "delete" in operations


def _event(action: StageAction, _: Mapping[str, Any]) -> Iterator[Finding]:
    event_type = schema.text(action.content, "type")
    if event_type not in EVENT_TYPES:
        what = f"unknown event type {event_type!r}" if event_type else "type is required"
        hint = problems.suggestion(event_type, EVENT_TYPES)
        yield Finding(action.at("type"), f"{what}: kwok sends no event", hint, rule="stage-bad-event")


def _finalizers(action: StageAction, _: Mapping[str, Any]) -> Iterator[Finding]:
    content = action.content
    if content.get("empty") is True and content.get("remove"):
        what = "kwok ignores remove because empty is set: it removes all finalizers"
        yield warning(action.at("remove"), what, "remove one of them", "stage-finalizers-empty")
    if content.get("empty") is True and content.get("add"):
        what = "kwok removes all finalizers, also those of other controllers, before it adds these"
        yield warning(action.at("empty"), what, "use remove with the finalizers to remove", "stage-finalizers-empty")
    if not (content.get("empty") or content.get("add") or content.get("remove")):
        hint = "add add, remove or empty: true"
        yield warning(action.path, "the action changes no finalizer", hint, "stage-empty-step")
    for name in ("add", "remove"):
        for index, item in schema.maps(content, name):
            if not schema.text(item, "value"):
                hint = "for example value: example.com/name"
                yield Finding((*action.at(name), index), "value is required", hint, rule="stage-empty-finalizer")


def _patch(action: StageAction, stage: Mapping[str, Any]) -> Iterator[Finding]:
    content, kind = action.content, schema.kind(stage)
    patch_type, subresource = schema.text(content, "type"), schema.text(content, "subresource")
    yield from _type(action, PATCH_TYPES)
    yield from _template(action, kind)
    if patch_type == "strategic" and _CUSTOM_GROUP.fullmatch(schema.text(stage, "spec", "resourceRef", "apiGroup")):
        what = "the API server rejects strategic patches of custom resources"
        yield Finding(action.at("type"), what, "use merge", rule="stage-strategic-custom")
    known = SUBRESOURCES.get(kind, ())
    if known and subresource and subresource not in known:
        what, hint = f"{kind} has no patchable subresource {subresource!r}", problems.suggestion(subresource, known)
        yield Finding(action.at("subresource"), what, hint, rule="stage-bad-subresource")
    root = schema.text(content, "root")
    if known and root == "status" and not subresource:
        what = f"the API server ignores status in a patch of the {kind} without subresource"
        yield Finding(action.at("root"), what, "add subresource: status", rule="stage-status-not-patched")
    if subresource == "status" and not root and "status" not in schema.text(content, "template"):
        what = "the patch of the status subresource has no status, so it changes nothing"
        yield warning(action.at("template"), what, "add root: status", "stage-status-not-patched")


def _apply(action: StageAction, stage: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _type(action, APPLY_TYPES)
    yield from _template(action, schema.kind(stage))
    template = schema.text(action.content, "template")
    for name in ("apiVersion", "kind"):
        if template and "{{" not in template and not re.search(rf"^\W*{name}\W*:", template, re.MULTILINE):
            what = f"{name} is required in the template of apply"
            yield Finding(action.at("template"), what, f"add {name}", rule="stage-apply-without-kind")


def _type(action: StageAction, known: tuple[str, ...]) -> Iterator[Finding]:
    patch_type = schema.text(action.content, "type")
    if patch_type and patch_type not in known:
        what = f"unknown {action.operation} type {patch_type!r}: the Stage fails each time it plays"
        yield Finding(action.at("type"), what, problems.suggestion(patch_type, known), rule="stage-bad-patch-type")
    user = action.content.get("impersonation")
    if isinstance(user, Mapping) and not schema.text(user, "username"):
        what = "username is required: the API server rejects the Stage"
        yield Finding(action.at("impersonation"), what, "add username", rule="stage-missing-username")


def _template(action: StageAction, kind: str) -> Iterator[Finding]:
    text = schema.text(action.content, "template")
    if not text.strip():
        path = action.at("template") if "template" in action.content else action.path
        what = f"template is required: the {action.operation} changes nothing"
        yield Finding(path, what, "add template", rule="stage-missing-template")
    elif problem := gotemplate.first_problem(text, kind):
        what = f"the template does not parse: line {problem.line}: {problem.what}"
        yield Finding(action.at("template"), what, problem.hint, rule="stage-bad-template")
