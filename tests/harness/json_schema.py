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
        tried = [violations(value, option, root, where) for option in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(isinstance(value, TYPES[name]) and (type(value) is not bool or name == "boolean") for name in types):
            return [f"{where}: not {' or '.join(types)}"]
    violated = [
        f"{where}: {name}" for name, limit in schema.items() if name in LIMITS and not LIMITS[name](value, limit)
    ]
    if isinstance(value, dict):
        violated += _property_violations(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        violated += [violation for item in value for violation in violations(item, schema["items"], root, f"{where}[]")]
    for rule in schema.get("allOf", ()):
        if not violations(value, rule["if"], root):
            violated += violations(value, rule["then"], root, where)
    return violated


def _property_violations(value: dict[str, Any], schema: Any, root: Any, where: str) -> list[str]:  # noqa: ANN401 - any JSON
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", True)
    violated = [f"{where}: needs {name}" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        inner = properties.get(name, additional)
        if inner is False:
            violated.append(f"{where}.{name}: unknown")
        elif inner is not True:
            violated += violations(item, inner, root, f"{where}.{name}")
    return violated


LIMITS: dict[str, Any] = {
    "const": lambda value, limit: value == limit,
    "enum": lambda value, limit: value in limit,
    "pattern": lambda value, limit: re.search(limit, value),
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minItems": lambda value, limit: len(value) >= limit,
}
