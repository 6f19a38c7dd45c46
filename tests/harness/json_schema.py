"""Finds and applies a JSON Schema as an editor does."""

import re
from pathlib import Path
from typing import Any


def schema_path(path: Path) -> Path:
    """Return the schema file named in the first line of *path*."""
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    return path.parent / first.partition("=")[2]


TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def violations(value: Any, schema: Any, root: Any, where: str = "") -> list[str]:  # noqa: ANN401 - any JSON
    """Return the violations of the JSON Schema keywords that our schema uses."""
    if "$ref" in schema:
        return violations(value, root["definitions"][schema["$ref"].rpartition("/")[2]], root, where)
    if "anyOf" in schema:
        tried = [violations(value, each, root, where) for each in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(
            isinstance(value, TYPES[each]) and (type(value) is not bool or each == "boolean") for each in wanted
        ):
            return [f"{where}: not {' or '.join(wanted)}"]
    found = [f"{where}: {name}" for name, limit in schema.items() if name in LIMITS and not LIMITS[name](value, limit)]
    if isinstance(value, dict):
        found += _property_violations(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        found += [each for item in value for each in violations(item, schema["items"], root, f"{where}[]")]
    for rule in schema.get("allOf", ()):
        if not violations(value, rule["if"], root):
            found += violations(value, rule["then"], root, where)
    return found


def _property_violations(value: dict[str, Any], schema: Any, root: Any, where: str) -> list[str]:  # noqa: ANN401 - any JSON
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{where}: needs {name}" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        inner = known.get(name, others)
        if inner is False:
            found.append(f"{where}.{name}: unknown")
        elif inner is not True:
            found += violations(item, inner, root, f"{where}.{name}")
    return found


LIMITS: dict[str, Any] = {
    "const": lambda value, wanted: value == wanted,
    "enum": lambda value, wanted: value in wanted,
    "pattern": lambda value, wanted: re.search(wanted, value),
    "minimum": lambda value, wanted: value >= wanted,
    "maximum": lambda value, wanted: value <= wanted,
    "exclusiveMinimum": lambda value, wanted: value > wanted,
    "minLength": lambda value, wanted: len(value) >= wanted,
    "maxLength": lambda value, wanted: len(value) <= wanted,
    "minItems": lambda value, wanted: len(value) >= wanted,
}
