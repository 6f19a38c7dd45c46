"""The shape of a kwok Stage: which fields there are and of which type, and reading them whatever is given.

kwok and the API server drop a field they do not know without a word, so a typo would be a Stage that
does less than it says. A value of the wrong type fails the whole file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding

API_VERSION = "kwok.x-k8s.io/v1alpha1"
ORDER = ("event", "finalizers", "delete", "patch", "apply")
"""In which order kwok does what one step says; after a delete it goes on to the next step."""

Schema = str | list[Any] | dict[str, Any]
"""The name of a type, the shape of each item of a list, or the shape of each field of a map."""

_FROM: Schema = {"cel": {"expression": "string"}, "jq": {"expression": "string"}, "expressionFrom": "string"}
_USER: Schema = {"username": "string"}
_PATCH: Schema = {
    "subresource": "string",
    "root": "string",
    "template": "string",
    "type": "string",
    "impersonation": _USER,
}
_EVENT: Schema = {"type": "string", "reason": "string", "message": "string"}
_FINALIZERS: Schema = {"add": [{"value": "string"}], "remove": [{"value": "string"}], "empty": "bool"}
_REQUIREMENT: dict[str, Schema] = {"key": "string", "operator": "string", "values": ["string"]}

_OTHER_METADATA = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName", "generation",
    "managedFields", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip

STAGE: Schema = {
    "apiVersion": "string",
    "kind": "string",
    "metadata": {
        "name": "string",
        "labels": "strings",
        "annotations": "strings",
        **dict.fromkeys(_OTHER_METADATA, "any"),
    },
    "status": "any",
    "spec": {
        "resourceRef": {"apiGroup": "string", "kind": "string"},
        "selector": {
            "matchLabels": "strings",
            "matchAnnotations": "strings",
            "matchExpressions": [{"cel": {"expression": "string"}, "jq": _REQUIREMENT, **_REQUIREMENT}],
        },
        "weight": "int",
        "weightFrom": _FROM,
        "delay": {
            "durationMilliseconds": "int",
            "durationFrom": _FROM,
            "jitterDurationMilliseconds": "int",
            "jitterDurationFrom": _FROM,
        },
        "next": {
            "event": _EVENT,
            "finalizers": _FINALIZERS,
            "delete": "bool",
            "patches": [_PATCH],
            "statusTemplate": "string",
            "statusSubresource": "string",
            "statusPatchAs": _USER,
        },
        "immediateNextStage": "bool",
        "steps": [
            {
                "patch": _PATCH,
                "event": _EVENT,
                "finalizers": _FINALIZERS,
                "delete": "bool",
                "apply": {"template": "string", "subresource": "string", "type": "string", "impersonation": _USER},
            }
        ],
    },
}

_SAID = {"string": "a text", "bool": "true or false", "int": "a whole number", "strings": "a map of texts"}


def check(value: object, shape: Schema, where: FieldPath) -> Iterator[Finding]:
    """Yield each field that kwok does not know, and each value of a type it does not take."""
    if value is None or shape == "any":
        return
    if isinstance(shape, dict):
        yield from _check_map(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple):
            yield _wrong(where, "a list", value)
            return
        for index, item in enumerate(value):
            yield from check(item, shape[0], (*where, index))
    elif shape == "strings" and isinstance(value, Mapping):
        for key, item in value.items():
            yield from check(item, "string", (*where, str(key)))
    elif not _is(value, shape):
        yield _wrong(where, _SAID[shape], value)


def _check_map(value: object, shape: Mapping[str, Schema], where: FieldPath) -> Iterator[Finding]:
    if not isinstance(value, Mapping):
        yield _wrong(where, "a map", value)
        return
    for key, item in value.items():
        if key in shape:
            yield from check(item, shape[key], (*where, key))
            continue
        what = f"a Stage has no field {str(key)!r} here: kwok drops it without a word"
        hint = problems.suggestion(str(key), list(shape))
        yield Finding((*where, str(key)), what, hint, rule="stage-unknown-field", at_key=True)


def _is(value: object, shape: str) -> bool:
    if shape == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if shape == "bool" else str) and shape != "strings"


def _wrong(where: FieldPath, wanted: str, value: object) -> Finding:
    short = repr(value) if isinstance(value, str | int | float | bool) else f"a {'map' if _is_map(value) else 'list'}"
    hint = "put it in quotes" if wanted == "a text" and not isinstance(value, Mapping | list | tuple) else ""
    return Finding(where, f"must be {wanted}, got {short[:60]}", hint, rule="stage-wrong-type")


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def get(value: object, *steps: str) -> Any:  # noqa: ANN401  # part of a manifest
    """Return what is at the end of a path, None if the path leads nowhere."""
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def mapping(value: object, *steps: str) -> Mapping[str, Any]:
    """Return the map at the end of a path, an empty one if there is none."""
    found = get(value, *steps)
    return found if isinstance(found, Mapping) else {}


def maps(value: object, *steps: str) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the maps of the list at the end of a path, each with its place."""
    found = get(value, *steps)
    items = found if isinstance(found, list | tuple) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Mapping)]


def text(value: object, *steps: str) -> str:
    """Return the text at the end of a path, an empty one if there is none."""
    found = get(value, *steps)
    return found if isinstance(found, str) else ""


def texts(value: object, *steps: str) -> list[str]:
    """Return the texts of the list at the end of a path."""
    found = get(value, *steps)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list | tuple) else []


def number(value: object, *steps: str) -> int | None:
    """Return the whole number at the end of a path."""
    found = get(value, *steps)
    return found if _is(found, "int") else None


def kind(stage: object) -> str:
    """Return the kind of object that a Stage is for."""
    return text(stage, "spec", "resourceRef", "kind")


def requirements(stage: object) -> Iterator[tuple[FieldPath, str, Mapping[str, Any]]]:
    """Yield each requirement of the selector as kwok reads it: its place, `jq` or `cel` or nothing, and its content."""
    for index, found in maps(stage, "spec", "selector", "matchExpressions"):
        where = ("spec", "selector", "matchExpressions", index)
        if isinstance(found.get("jq"), Mapping):
            yield (*where, "jq"), "jq", found["jq"]
        elif text(found, "key"):
            yield where, "jq", found
        elif isinstance(found.get("cel"), Mapping):
            yield (*where, "cel"), "cel", found["cel"]
        else:
            yield where, "", found


@dataclass(frozen=True, slots=True)
class StageAction:
    """One thing that a Stage does when it plays, and where it says so."""

    path: FieldPath
    operation: str
    """`event`, `finalizers`, `patch`, `apply` or `delete`."""
    content: Mapping[str, Any]

    def at(self, name: str) -> FieldPath:
        """Return the place of a field of the content."""
        if self.path == ("spec", "next"):
            return (*self.path, {"template": "statusTemplate", "subresource": "statusSubresource"}.get(name, name))
        return (*self.path, name)


def actions(stage: object) -> list[StageAction]:
    """Return all that kwok does when a Stage plays, in order: its steps, or what `next` stands for if it has none."""
    steps = maps(stage, "spec", "steps")
    if not steps:
        return _from_next(mapping(stage, "spec", "next"))
    return [
        StageAction(("spec", "steps", index, does), does, mapping(step, does))
        for index, step in steps
        for does in ORDER
        if (step.get(does) is True if does == "delete" else isinstance(step.get(does), Mapping))
    ]


def _from_next(after: Mapping[str, Any]) -> list[StageAction]:
    where: FieldPath = ("spec", "next")
    found = [
        StageAction((*where, does), does, after[does])
        for does in ("event", "finalizers")
        if isinstance(after.get(does), Mapping)
    ]
    patches = [StageAction((*where, "patches", index), "patch", patch) for index, patch in maps(after, "patches")]
    if text(after, "statusTemplate") and not patches:
        subresource = text(after, "statusSubresource") or "status"
        content = {"subresource": subresource, "root": "status", "template": text(after, "statusTemplate")}
        patches = [StageAction(where, "patch", content)]
    deletes = [StageAction((*where, "delete"), "delete", {})] if after.get("delete") is True else []
    return found + patches + deletes
