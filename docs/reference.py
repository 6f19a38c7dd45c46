"""Writes docs/fleet-reference.md from the models: `python docs/reference.py > docs/fleet-reference.md`."""

import sys
from collections.abc import Iterator
from typing import Any

from kwokfleet.api import decode

HEAD = """\
# Every field of a Fleet file

Made from the models by `docs/reference.py`; `kwokfleet schema` prints the same for programs. How to use
them is told in [fleet-files.md](fleet-files.md).
"""


def text() -> str:
    """Return the page."""
    schema = decode.json_schema()
    definitions = schema["definitions"]
    return HEAD + "".join(_section(name, definitions) for name in _ordered(definitions))


def _ordered(definitions: dict[str, Any]) -> list[str]:
    """Return the definitions in the order in which a reader meets them."""
    found: list[str] = []
    waiting = ["Fleet", "KwokController"]
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting[:0] = [each for each in _referenced(definitions[name]) if each not in found]
    return found


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
    long = next((each for each in definition.get("anyOf", []) if "properties" in each), definition)
    short = next((each for each in definition.get("anyOf", []) if "properties" not in each), None)
    lines = [f"\n## {name}\n\n{definition.get('description', '').strip()}\n"]
    if short:
        lines.append("\nIn short: " + ", ".join(f"`{example}`" for example in short["examples"]) + "\n")
    lines.append("\n| field | value | meaning |\n|---|---|---|\n")
    required = set(long.get("required", ()))
    for field, content in long.get("properties", {}).items():
        mark = f"**`{field}`**" if field in required else f"`{field}`"
        lines.append(f"| {mark} | {_value(content)} | {_meaning(content, definitions)} |\n")
    return "".join(lines)


def _value(content: dict[str, Any]) -> str:  # noqa: PLR0911  # one for each kind of value
    if "$ref" in content:
        name = content["$ref"].removeprefix("#/definitions/")
        return f"[{name}](#{name.lower()})"
    if "const" in content:
        return f"`{content['const']}`"
    if "enum" in content:
        return ", ".join(f"`{each}`" for each in content["enum"])
    if content.get("type") == "array":
        return f"list of {_value(content['items'])}"
    if content.get("type") == "object":
        inner = content.get("additionalProperties")
        return f"names to {_value(inner)}" if isinstance(inner, dict) and inner else "mapping"
    if content.get("examples"):
        return ", ".join(f"`{each}`" for each in content["examples"])
    options = [each for each in content.get("anyOf", []) if each.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(_value(each) for each in options))
    return {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}.get(
        str(content.get("type")), "anything"
    )


def _meaning(content: dict[str, Any], definitions: dict[str, Any]) -> str:
    said = content.get("description")
    if not said and "$ref" in content:
        said = definitions[content["$ref"].removeprefix("#/definitions/")].get("description", "")
    default = content.get("default")
    shown = (
        f" Default `{str(default).lower() if isinstance(default, bool) else default}`."
        if default not in (None, "", [], {})
        else ""
    )
    return f"{str(said).replace('|', chr(92) + '|')}{shown}"


if __name__ == "__main__":
    sys.stdout.write(text())
