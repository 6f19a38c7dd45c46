"""Schema of a kwok Stage, and type-safe access to its fields.

kwok and the API server silently drop unknown fields, so a typing error disables part of a Stage. A value of the
wrong type fails the whole file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding

API_VERSION = "kwok.x-k8s.io/v1alpha1"
ORDER = ("event", "finalizers", "delete", "patch", "apply")
"""Order in which kwok runs the actions of a step. After a delete, it continues with the next step."""

Schema = str | list[Any] | dict[str, Any]
"""Name of a type, schema of the items of a list, or schemas of the fields of a map."""

_FROM: Schema = {"cel": {"expression": "string"}, "jq": {"expression": "string"}, "expressionFrom": "string"}
_USER: Schema = {"username": "string"}
_APPLY: dict[str, Schema] = {"template": "string", "subresource": "string", "type": "string", "impersonation": _USER}
_PATCH: Schema = {**_APPLY, "root": "string"}
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
                "apply": _APPLY,
            }
        ],
    },
}

_SAID = {"string": "a string", "bool": "true or false", "int": "a whole number", "strings": "a map of strings"}


def check(value: object, shape: Schema, where: FieldPath) -> Iterator[Finding]:
    """Yield unknown fields and values of the wrong type."""
    if value is None or shape == "any":
        return
    if isinstance(shape, dict):
        yield from _check_map(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple):
            yield _wrong_type(where, "a list", value)
            return
        for index, item in enumerate(value):
            yield from check(item, shape[0], (*where, index))
    elif shape == "strings" and isinstance(value, Mapping):
        for key, item in value.items():
            yield from check(item, "string", (*where, str(key)))
    elif not _is(value, shape):
        yield _wrong_type(where, _SAID[shape], value)


def _check_map(value: object, shape: Mapping[str, Schema], where: FieldPath) -> Iterator[Finding]:
    if not isinstance(value, Mapping):
        yield _wrong_type(where, "a map", value)
        return
    for key, item in value.items():
        if key in shape:
            yield from check(item, shape[key], (*where, key))
            continue
        what = f"unknown field {str(key)!r}: kwok silently drops it"
        hint = problems.suggestion(str(key), list(shape))
        yield Finding((*where, str(key)), what, hint, rule="stage-unknown-field", at_key=True)


def _is(value: object, shape: str) -> bool:
    if shape == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if shape == "bool" else str) and shape != "strings"


def _wrong_type(where: FieldPath, expected: str, value: object) -> Finding:
    if isinstance(value, bool):
        short = str(value).lower()
    elif isinstance(value, str | int | float):
        short = repr(value)
    else:
        short = "a map" if isinstance(value, Mapping) else "a list"
    hint = "put it in quotes" if expected == "a string" and not isinstance(value, Mapping | list | tuple) else ""
    return Finding(where, f"must be {expected}, got {short[:60]}", hint, rule="stage-wrong-type")


def get(value: object, *steps: str) -> Any:  # noqa: ANN401  # part of a manifest
    """Return the value at a path, or None."""
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def mapping(value: object, *steps: str) -> Mapping[str, Any]:
    """Return the map at a path, or an empty map."""
    field_value = get(value, *steps)
    return field_value if isinstance(field_value, Mapping) else {}


def maps(value: object, *steps: str) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the maps in the list at a path, with their indices."""
    field_value = get(value, *steps)
    items = field_value if isinstance(field_value, list | tuple) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Mapping)]


def text(value: object, *steps: str) -> str:
    """Return the string at a path, or an empty string."""
    field_value = get(value, *steps)
    return field_value if isinstance(field_value, str) else ""


def texts(value: object, *steps: str) -> list[str]:
    """Return the strings in the list at a path."""
    field_value = get(value, *steps)
    return [item for item in field_value if isinstance(item, str)] if isinstance(field_value, list | tuple) else []


def number(value: object, *steps: str) -> int | None:
    """Return the integer at a path, or None."""
    field_value = get(value, *steps)
    return field_value if _is(field_value, "int") else None


def kind(stage: object) -> str:
    """Return the kind of the objects of a Stage."""
    return text(stage, "spec", "resourceRef", "kind")


def requirements(stage: object) -> Iterator[tuple[FieldPath, str, Mapping[str, Any]]]:
    """Yield the selector requirements as kwok reads them: path, `jq`, `cel` or an empty string, and content."""
    for index, requirement in maps(stage, "spec", "selector", "matchExpressions"):
        where = ("spec", "selector", "matchExpressions", index)
        if isinstance(requirement.get("jq"), Mapping):
            yield (*where, "jq"), "jq", requirement["jq"]
        elif text(requirement, "key"):
            yield where, "jq", requirement
        elif isinstance(requirement.get("cel"), Mapping):
            yield (*where, "cel"), "cel", requirement["cel"]
        else:
            yield where, "", requirement


@dataclass(frozen=True, slots=True)
class StageAction:
    """One action of a Stage."""

    path: FieldPath
    operation: str
    """`event`, `finalizers`, `patch`, `apply` or `delete`."""
    content: Mapping[str, Any]

    def at(self, name: str) -> FieldPath:
        """Return the path of a field of the content."""
        if self.path == ("spec", "next"):
            return (*self.path, {"template": "statusTemplate", "subresource": "statusSubresource"}.get(name, name))
        return (*self.path, name)


def actions(stage: object) -> list[StageAction]:
    """Return the actions of a Stage in order: from its steps, or from `next` if it has no steps."""
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
    first_actions = [
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
    return first_actions + patches + deletes
