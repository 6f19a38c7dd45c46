"""Generates docs/fleet-reference.md from the API models: `make golden`, or `python docs/reference.py`."""

import sys
from collections.abc import Iterator
from typing import Any

from kwokfleet.api import decode

HEAD = """\
# Every field of a Fleet file

Generated from the models by `docs/reference.py`. `kwokfleet schema` prints the JSON Schema.
[fleet-files.md](fleet-files.md) is the guide. Required fields are bold.
"""


def text() -> str:
    """Return the page."""
    schema = decode.json_schema()
    definitions = schema["definitions"]
    return HEAD + "".join(_section(name, definitions) for name in _ordered(definitions))


def _ordered(definitions: dict[str, Any]) -> list[str]:
    """Return the definitions depth-first, starting with the documents."""
    names: list[str] = []
    pending = ["Fleet", "KwokController"]
    while pending:
        name = pending.pop(0)
        if name not in names:
            names.append(name)
            pending[:0] = [other for other in _referenced(definitions[name]) if other not in names]
    return names


def _referenced(part: Any) -> Iterator[str]:  # noqa: ANN401  # any part of a JSON Schema
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/definitions/")
        for inner in part.values():
            yield from _referenced(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _referenced(inner)


def _section(name: str, definitions: dict[str, Any]) -> str:
    definition = definitions[name]
    long_form = next((form for form in definition.get("anyOf", []) if "properties" in form), definition)
    short_form = next((form for form in definition.get("anyOf", []) if "properties" not in form), None)
    lines = [f"\n## {name}\n\n{definition.get('description', '').strip()}\n"]
    if short_form:
        lines.append("\nShort form: " + ", ".join(f"`{example}`" for example in short_form["examples"]) + "\n")
    lines.append("\n| field | value | meaning |\n|---|---|---|\n")
    required = set(long_form.get("required", ()))
    for field, content in long_form.get("properties", {}).items():
        mark = f"**`{field}`**" if field in required else f"`{field}`"
        lines.append(f"| {mark} | {_value(content)} | {_meaning(content, definitions)} |\n")
    return "".join(lines)


def _value(content: dict[str, Any]) -> str:  # noqa: PLR0911  # one per type
    if "$ref" in content:
        name = content["$ref"].removeprefix("#/definitions/")
        return f"[{name}](#{name.lower()})"
    if "const" in content:
        return f"`{content['const']}`"
    if "enum" in content:
        return ", ".join(f"`{option}`" for option in content["enum"])
    if content.get("type") == "array":
        return f"list of {_value(content['items'])}"
    if content.get("type") == "object":
        inner = content.get("additionalProperties")
        return f"map of {_value(inner)}" if isinstance(inner, dict) and inner else "mapping"
    if content.get("examples"):
        return ", ".join(f"`{example}`" for example in content["examples"])
    options = [option for option in content.get("anyOf", []) if option.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(_value(option) for option in options))
    return {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "string"}.get(
        str(content.get("type")), "anything"
    )


def _meaning(content: dict[str, Any], definitions: dict[str, Any]) -> str:
    description = content.get("description")
    if not description and "$ref" in content:
        description = definitions[content["$ref"].removeprefix("#/definitions/")].get("description", "")
    default = content.get("default")
    default_text = (
        f" Default `{str(default).lower() if isinstance(default, bool) else default}`."
        if default not in (None, "", [], {})
        else ""
    )
    return f"{str(description).replace('|', chr(92) + '|')}{default_text}"


if __name__ == "__main__":
    sys.stdout.write(text())
