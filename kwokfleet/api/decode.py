"""Decodes documents into API models, or into Findings; builds the JSON Schema.

pydantic validates. This module translates its errors into Findings with field paths as in the file, and
suggests the closest known field for an unknown one.
"""

import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import pydantic
from pydantic import TypeAdapter
from pydantic_core import ErrorDetails

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import kwok_controller
from kwokfleet.api.fields import DURATION_PATTERN, Model, format_value
from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding

ModelT = TypeVar("ModelT", bound=Model)

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_MESSAGES = {
    "greater_than_equal": "must be {ge} or more, got {input}",
    "less_than_equal": "must be {le} or less, got {input}",
    "greater_than": "must be more than {gt}, got {input}",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries, got {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "finite_number": "must be a finite number",
}
_UNION_MEMBERS = {"str", "int", "float", "bool"}
"""Names that pydantic appends to the location of an error in a union."""


def to_model(kind: type[ModelT], value: object) -> tuple[ModelT | None, list[Finding]]:
    """Return *value* as a model, or its Findings."""
    try:
        return kind.model_validate(value), []
    except pydantic.ValidationError as error:
        return None, list(_findings(kind, error.errors(include_url=False)))
    except RecursionError:
        return None, [Finding((), "is nested too deeply", "reduce the nesting")]


def _findings(kind: type[Model], errors: Iterable[ErrorDetails]) -> Iterable[Finding]:
    """Return one Finding per field path. A parent of an invalid field is not reported."""
    findings = [_finding(kind, error) for error in errors]
    parents = {finding.field_path[:end] for finding in findings for end in range(len(finding.field_path))}
    misspelled = {(finding.field_path[:-1], finding.hint) for finding in findings if finding.rule == "unknown-field"}
    seen: set[FieldPath] = set()
    for finding in findings:
        path = finding.field_path
        if path in seen or path in parents:  # pydantic reports each member of a union
            continue
        if finding.rule == "missing-field":
            name = str(path[-1])
            if (path[:-1], problems.suggestion(name, [name])) in misspelled:
                continue
        seen.add(path)
        yield finding


def _finding(kind: type[Model], error: ErrorDetails) -> Finding:
    path = _field_path(error)
    context = error.get("ctx", {})
    error_type = error["type"]
    if error_type == "extra_forbidden":
        unknown = str(path[-1])
        hint = problems.suggestion(unknown, sorted(_known_fields(kind, path[:-1])))
        return Finding(path, f"unknown field {unknown!r}", hint, rule="unknown-field", at_key=True)
    if error_type == "missing":
        return Finding(path, "is required", f"add {path[-1]}", rule="missing-field", at_key=True)
    if error_type == "invalid":
        return Finding((*path, *context.get("path", ())), str(context["what"]), rule="invalid-value")
    if error_type == "literal_error":
        return _literal(path, error, context)
    if error_type == "string_pattern_mismatch":
        return _pattern(path, error["input"], str(context["pattern"]))
    return Finding(path, _message(error_type, error, context), rule="invalid-value")


def _literal(path: FieldPath, error: ErrorDetails, context: dict[str, Any]) -> Finding:
    allowed = [part.strip(" '") for part in str(context["expected"]).replace(" or ", ",").split(",")]
    value = error["input"]
    hint = problems.suggestion(value, allowed) if isinstance(value, str) else "use one of " + ", ".join(allowed)
    return Finding(path, f"must be {context['expected']}, got {format_value(value)}", hint, rule="invalid-value")


def _message(error_type: str, error: ErrorDetails, context: dict[str, Any]) -> str:
    value = format_value(error["input"])
    if error_type in _EXPECTED:
        return f"must be {_EXPECTED[error_type]}, got {value}"
    if error_type in _MESSAGES:
        return _MESSAGES[error_type].format(**context, input=value)
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {value}"


def _pattern(path: FieldPath, value: object, pattern: str) -> Finding:
    """Return a Finding for a string that is not a NAME, or not a NAMESPACE/NAME."""
    if "/)?" in pattern:
        expected, hint = "NAME or NAMESPACE/NAME", "for example kwokfleet-kwok"
    elif "/" in pattern:
        expected, hint = "NAMESPACE/NAME", "for example kube-system/kwok-controller"
    else:
        expected, hint = "a name of lower-case letters, digits and '-'", "for example gpu-lab"
    return Finding(path, f"must be {expected}, got {format_value(value)}", hint, rule="invalid-name")


def _field_path(error: ErrorDetails) -> FieldPath:
    """Return the location of an error as a field path of the file."""
    steps = error["loc"]
    if error["type"] != "extra_forbidden":
        while steps and (str(steps[-1]) in _UNION_MEMBERS or "[" in str(steps[-1])):
            steps = steps[:-1]
    return steps


def _known_fields(kind: type[Model], path: FieldPath) -> Iterable[str]:
    """Return the field names of the model at *path*."""
    current: Any = kind
    for step in path:
        current = _step(current, step)
        if current is None:
            return []
    return [field.alias or name for name, field in current.model_fields.items()] if _is_model(current) else []


def _step(kind: Any, step: str | int) -> Any:  # noqa: ANN401  # a type or a typing construct
    if _is_model(kind):
        for name, field in kind.model_fields.items():
            if (field.alias or name) == step:
                return _unwrapped(field.annotation)
        return None
    arguments = typing.get_args(kind)
    if not arguments:
        return None
    return _unwrapped(arguments[0] if isinstance(step, int) else arguments[-1])


def _unwrapped(kind: Any) -> Any:  # noqa: ANN401  # a type or a typing construct
    """Return a type without Annotated and Optional."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Annotated:
        return _unwrapped(arguments[0])
    options = [option for option in arguments if option is not type(None)]
    return _unwrapped(options[0]) if len(options) == 1 < len(arguments) else kind


def _is_model(kind: Any) -> bool:  # noqa: ANN401  # a type or a typing construct
    return isinstance(kind, type) and issubclass(kind, Model)


# JSON Schema


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a Fleet file: one Fleet or KwokController document."""
    adapter: TypeAdapter[Any] = TypeAdapter(fleet_api.Fleet | kwok_controller.KwokController)
    definitions = adapter.json_schema(by_alias=True)["$defs"]
    _add_short_forms(definitions)
    _normalize(definitions)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "kwokfleet",
        "description": f"Documents of {fleet_api.API_VERSION}: Fleet and KwokController.",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"kind": {"enum": sorted(fleet_api.KINDS)}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": {"$ref": f"#/definitions/{kind}"}}
            for kind in sorted(fleet_api.KINDS)
        ],
        "definitions": definitions,
    }


_SHORT_DELAY = rf"^(args|{DURATION_PATTERN}(\.\.{DURATION_PATTERN})?)$"
_SHORT_FORMS: dict[str, dict[str, Any]] = {
    "Delay": {"type": "string", "pattern": _SHORT_DELAY, "examples": ["10s", "10s..11s", "args"]},
    "Complete": {"type": "string", "pattern": _SHORT_DELAY, "examples": ["10s", "args"]},
    "StageReference": {"type": "string", "examples": ["pod-general"]},
    "Taint": {
        "type": "string",
        "pattern": "^[^=:\\s]+(=[^=:\\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$",
        "examples": ["dedicated=gpu:NoSchedule"],
    },
    "Start": {"type": "string", "pattern": f"^{DURATION_PATTERN}$", "examples": ["30s"]},
}
"""Models that can also be written as a string."""


def _add_short_forms(definitions: dict[str, Any]) -> None:
    for name, short_form in _SHORT_FORMS.items():
        long_form = definitions[name]
        text = {**short_form, "description": long_form.get("description", "")}
        other_forms: list[dict[str, Any]] = [{"const": 0}] if name in {"Delay", "Complete", "Start"} else []
        if name == "Complete":
            other_forms.append({"$ref": "#/definitions/Delay"})
        definitions[name] = {"description": long_form.get("description", ""), "anyOf": [text, long_form, *other_forms]}


def _normalize(part: Any) -> None:  # noqa: ANN401  # any part of a JSON Schema
    """Remove generated titles, and make references point to `definitions`."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        if isinstance(part.get("$ref"), str):
            part["$ref"] = part["$ref"].replace("#/$defs/", "#/definitions/")
        for inner in part.values():
            _normalize(inner)
    elif isinstance(part, list):
        for inner in part:
            _normalize(inner)
