"""Documents into models, or into findings that say what is wrong in the words of the file.

pydantic finds what does not fit; here its errors become sentences, an unknown field is answered
with the nearest known one, and the JSON Schema is put together for editors.
"""

import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import pydantic
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import kwok_controller
from kwokfleet.api.fields import Model
from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding

ModelT = TypeVar("ModelT", bound=Model)

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_SENTENCES = {
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
"""What pydantic appends to the place of an error for a value of several types."""


def to_model(kind: type[ModelT], value: object) -> tuple[ModelT | None, list[Finding]]:
    """Return *value* as a model, or everything that is wrong with it."""
    try:
        return kind.model_validate(value), []
    except pydantic.ValidationError as error:
        return None, list(_findings(kind, error.errors(include_url=False)))
    except RecursionError:
        return None, [Finding((), "is nested too deeply", "nest less")]


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
        if finding.rule == "missing-field" and (path[:-1], _suggested(str(path[-1]))) in misspelled:
            continue
        seen.add(path)
        yield finding


def _suggested(name: str) -> str:
    """Return the hint of an unknown field that is a misspelling of *name*."""
    return problems.suggestion(name, [name])


def _finding(kind: type[Model], error: ErrorDetails) -> Finding:
    where = _where(error)
    context = error.get("ctx", {})
    name = error["type"]
    if name == "extra_forbidden":
        unknown = str(where[-1])
        known = sorted(_known(kind, where[:-1]))
        return Finding(
            where, f"unknown field {unknown!r}", problems.suggestion(unknown, known), rule="unknown-field", at_key=True
        )
    if name == "missing":
        return Finding(where, "is missing", "add it", rule="missing-field", at_key=True)
    if name == "wrong":
        return Finding((*where, *context.get("where", ())), str(context["what"]), rule="invalid-value")
    if name == "literal_error":
        return _literal(where, error, context)
    if name == "string_pattern_mismatch":
        return _pattern(where, error["input"], str(context["pattern"]))
    return Finding(where, _sentence(name, error, context), rule="invalid-value")


def _literal(where: FieldPath, error: ErrorDetails, context: dict[str, Any]) -> Finding:
    allowed = [part.strip(" '") for part in str(context["expected"]).replace(" or ", ",").split(",")]
    given = error["input"]
    hint = problems.suggestion(given, allowed) if isinstance(given, str) else "use one of " + ", ".join(allowed)
    return Finding(where, f"must be {context['expected']}, got {_shown(given)}", hint, rule="invalid-value")


def _sentence(name: str, error: ErrorDetails, context: dict[str, Any]) -> str:
    given = _shown(error["input"])
    if name in _EXPECTED:
        return f"must be {_EXPECTED[name]}, got {given}"
    if name in _SENTENCES:
        return _SENTENCES[name].format(**context, input=given)
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {given}"


def _pattern(where: FieldPath, given: object, pattern: str) -> Finding:
    """Return a finding for a text that is no name, or no two names with a slash between them."""
    if "/)?" in pattern:
        what, hint = f"must be NAME or NAMESPACE/NAME, got {_shown(given)}", "as in kwokfleet-kwok"
    elif "/" in pattern:
        what, hint = f"must be NAMESPACE/NAME, got {_shown(given)}", "as in kube-system/kwok-controller"
    else:
        what, hint = f"{_shown(given)} is not a name: lower-case letters, digits, and '-' between them", "as in gpu-lab"
    return Finding(where, what, hint, rule="invalid-name")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004  # what fits a line


def _where(error: ErrorDetails) -> FieldPath:
    """Return the place of an error as the file has it."""
    steps = list(error["loc"])
    if error["type"] == "extra_forbidden":
        return tuple(steps)
    while steps and (str(steps[-1]) in _UNION_MEMBERS or "[" in str(steps[-1])):
        steps.pop()
    if steps and steps[-1] == "[key]":
        steps.pop()
    return tuple(steps)


def _known(kind: type[Model], where: FieldPath) -> Iterable[str]:
    """Return the fields that the model at *where* has."""
    current: Any = kind
    for step in where:
        current = _step(current, step)
        if current is None:
            return []
    return _aliases(current) if _is_model(current) else []


def _aliases(kind: type[Model]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _step(kind: Any, step: str | int) -> Any:  # noqa: ANN401  # a type, or what typing makes of one
    if _is_model(kind):
        for name, field in kind.model_fields.items():
            if (field.alias or name) == step:
                return _inner(field)
        return None
    arguments = typing.get_args(kind)
    if not arguments:
        return None
    return _unwrapped(arguments[0] if isinstance(step, int) else arguments[-1])


def _inner(field: FieldInfo) -> Any:  # noqa: ANN401  # a type, or what typing makes of one
    return _unwrapped(field.annotation)


def _unwrapped(kind: Any) -> Any:  # noqa: ANN401  # a type, or what typing makes of one
    """Return a type without Annotated and None around it."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
            continue
        options = [each for each in typing.get_args(kind) if each is not type(None)]
        if type(None) in typing.get_args(kind) and len(options) == 1:
            kind = options[0]
            continue
        return kind


def _is_model(kind: Any) -> bool:  # noqa: ANN401  # a type, or what typing makes of one
    return isinstance(kind, type) and issubclass(kind, Model)


# ----------------------------------------------------------------------------------------
# JSON Schema


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of everything a file may hold."""
    adapter: TypeAdapter[Any] = TypeAdapter(fleet_api.Fleet | kwok_controller.KwokController)
    made = adapter.json_schema(by_alias=True)
    definitions = made.pop("$defs")
    _lay_out(definitions)
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


_DURATION = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_SHORT_DELAY = rf"^(args|{_DURATION}(\.\.{_DURATION})?)$"
_SHORT: dict[str, dict[str, Any]] = {
    "Delay": {
        "type": "string",
        "pattern": _SHORT_DELAY,
        "examples": ["10s", "10s..11s", "args"],
    },
    "Complete": {"type": "string", "pattern": _SHORT_DELAY, "examples": ["10s", "args"]},
    "StageReference": {"type": "string", "examples": ["pod-general"]},
    "Taint": {
        "type": "string",
        "pattern": "^[^=:\\s]+(=[^=:\\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$",
        "examples": ["dedicated=gpu:NoSchedule"],
    },
    "Start": {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["30s"]},
}
"""Models that may also be written as a text."""


def _lay_out(definitions: dict[str, Any]) -> None:
    """Allow the short forms, point references at their place, and drop titles that say nothing."""
    for name, short in _SHORT.items():
        long = definitions[name]
        text = {**short, "description": long.get("description", "")}
        also: list[dict[str, Any]] = [{"const": 0}] if name in {"Delay", "Complete", "Start"} else []
        if name == "Complete":
            also.append({"$ref": "#/definitions/Delay"})
        definitions[name] = {"description": long.get("description", ""), "anyOf": [text, long, *also]}
    _point(definitions)


def _point(part: Any) -> None:  # noqa: ANN401  # any part of a JSON Schema
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        if isinstance(part.get("$ref"), str):
            part["$ref"] = part["$ref"].replace("#/$defs/", "#/definitions/")
        for inner in part.values():
            _point(inner)
    elif isinstance(part, list):
        for inner in part:
            _point(inner)
