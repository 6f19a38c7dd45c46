"""Generates the tables of docs/rights.md from the manifests: each rule with the comment above it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPONENTS = DEPLOY / "components"
FILES = (
    DEPLOY / "base" / "rights.yaml",
    COMPONENTS / "kwok-pods" / "rights.yaml",
    COMPONENTS / "viewer" / "viewer.yaml",
)
BEGIN, END = "<!-- made by docs/rights_table.py -->\n", "<!-- end -->\n"
_RULE = re.compile(r"((?:^  #.*\n)+)^  - apiGroups:", re.MULTILINE)
_WORD = re.compile(r"^  # ?", re.MULTILINE)


def page(text: str) -> str:
    """Return the page with updated tables."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}{''.join(tables())}{END}{rest.partition(END)[2]}"


def tables() -> Iterator[str]:
    """Yield a table for each role."""
    for file in FILES:
        for text in file.read_text(encoding="utf-8").split("\n---\n"):
            role = YAML(typ="safe", pure=True).load(text)
            if role["kind"] in ("Role", "ClusterRole") and role.get("rules"):
                yield from _table(role, [" ".join(_WORD.sub("", each).split()) for each in _RULE.findall(text)])


def _table(role: dict[str, Any], reasons: list[str]) -> Iterator[str]:
    metadata = role["metadata"]
    where = f" in the namespace `{metadata['namespace']}`" if "namespace" in metadata else ""
    yield f"\n**{role['kind']} `{metadata['name']}`**{where}\n\n| may | on | for |\n|---|---|---|\n"
    for rule, why in zip(role["rules"], reasons, strict=True):
        [group] = rule["apiGroups"]
        things = ", ".join(f"`{each}`" for each in rule["resources"]) + (f" of `{group}`" if group else "")
        only = " or ".join(f"`{each}`" for each in rule.get("resourceNames", ()))
        yield f"| {', '.join(rule['verbs'])} | {things}{f', called {only}' if only else ''} | {why} |\n"


if __name__ == "__main__":
    file = Path(__file__).parent / "rights.md"
    sys.stdout.write(page(file.read_text(encoding="utf-8")))
