"""Templates of workloads: text with `{{variables}}`, compiled once per Run and filled in for each object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = re.compile(r"\\?\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
"""`{{name}}`; a backslash before it escapes it."""
TEXTS = {
    "annotations", "args", "command", "data", "image", "labels", "matchLabels", "name", "namespace", "nodeSelector",
    "priorityClassName", "schedulerName", "stringData", "value", "values",
}  # fmt: skip
"""Fields that must be strings, even if they look like numbers."""

Variables = Mapping[str, Any]
Fill = Callable[[Variables], Any]
"""Returns a part of a template, filled in with variables."""


def template_variables(value: Any) -> set[str]:  # noqa: ANN401  # any part of a manifest
    """Return the names of a template's variables."""
    if isinstance(value, str):
        return {match[1] for match in VARIABLE.finditer(value) if not match[0].startswith("\\")}
    if isinstance(value, Mapping):
        return {name for item in (*value.keys(), *value.values()) for name in template_variables(item)}
    return {name for item in value for name in template_variables(item)} if isinstance(value, list | tuple) else set()


def compiled(part: Any, *, text: bool = False) -> Fill:  # noqa: ANN401  # any part of a manifest
    """Compile one part of a template; a part without variables is created once and shared."""
    if not template_variables(part):
        constant = _unescaped(part)
        return lambda _variables: constant
    if isinstance(part, str):
        return _compiled_text(part, text=text)
    if isinstance(part, Mapping):
        return _compiled_mapping(part, text=text)
    entries = [compiled(item, text=text) for item in part]
    return lambda variables: [entry(variables) for entry in entries]


def _compiled_mapping(part: Mapping[str, Any], *, text: bool) -> Fill:
    """Compile a mapping: a copy of the constant items, with the others filled in."""
    if any(template_variables(key) for key in part):
        items = [(compiled(key, text=True), compiled(item, text=text or key in TEXTS)) for key, item in part.items()]
        return lambda variables: {key(variables): item(variables) for key, item in items}
    constant = {key: None if template_variables(item) else _unescaped(item) for key, item in part.items()}
    varying = {key: compiled(item, text=text or key in TEXTS) for key, item in part.items() if template_variables(item)}
    return lambda variables: constant | {key: item(variables) for key, item in varying.items()}


def _compiled_text(text_with_variables: str, *, text: bool) -> Fill:
    """Compile a string; a single variable keeps its type, unless the field must be a string."""
    whole = VARIABLE.fullmatch(text_with_variables)
    if whole and not text:
        name = whole[1]
        return lambda variables: variables[name]
    pattern = text_with_variables.replace("%", "%%")
    names = [match[1] for match in VARIABLE.finditer(pattern) if not match[0].startswith("\\")]
    pattern = VARIABLE.sub(lambda match: match[0][1:] if match[0].startswith("\\") else "%s", pattern)
    return lambda variables: pattern % tuple(_shown(variables[name]) for name in names)


def _shown(value: Any) -> Any:  # noqa: ANN401  # a variable's value
    """Return a value as YAML writes it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else value


def _unescaped(part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
    if isinstance(part, str):
        return VARIABLE.sub(lambda match: match[0].removeprefix("\\"), part)
    if isinstance(part, Mapping):
        return {_unescaped(key): _unescaped(item) for key, item in part.items()}
    return [_unescaped(item) for item in part] if isinstance(part, list) else part
