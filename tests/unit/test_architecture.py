"""Import rules that import-linter has no contract for, and the walks of docs/architecture.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kwokfleet"
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
MAX_IMPORTS = 15
"""Modules of ours that one module may import; `cli/` and `app.py` compose the others."""


def imported_modules(path: Path) -> set[str]:
    """Return the modules of kwokfleet that a file imports, at any depth of the file."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in _modules_of(node)}


def _modules_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("kwokfleet."))
    elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kwokfleet":
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            yield module if _is_module(module) else node.module


def _is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_no_module_imports_more_than_fifteen_others() -> None:
    """A module that needs more has no single purpose."""
    counts = {
        str(path.relative_to(PACKAGE)): len(imported_modules(path))
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "cli" and path.name != "app.py"
    }
    assert {name: count for name, count in counts.items() if count > MAX_IMPORTS} == {}
    assert max(counts.values()) > 1


def test_imports_are_found_at_any_depth(tmp_path: Path) -> None:
    """The rule above sees imports inside functions, of modules and of names."""
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from kwokfleet.kube import objects\n    from kwokfleet.errors import InputError\n")
    assert imported_modules(file) == {"kwokfleet.kube.objects", "kwokfleet.errors"}


def walk_steps() -> Iterator[tuple[str, str]]:
    """Yield module and function of each hop: `package/module.function -> function in the same module`."""
    walks = ARCHITECTURE.read_text().partition("## Two walks")[2].partition("\n## ")[0]
    for line in re.findall(r"^\d+\. .*", walks, re.MULTILINE):
        module = ""
        for hop in (hop for code in re.findall("`([^`]+)`", line) for hop in code.split(" -> ")):
            if match := re.fullmatch(r"([a-z/_]+/[a-z_0-9]+)\.(\w+)", hop):
                module = match[1]
                yield module, match[2]
            elif module and re.fullmatch(r"\w+", hop):
                yield module, hop


def test_every_function_of_the_walks_exists() -> None:
    """A reader follows them by name."""
    steps = list(walk_steps())
    assert len(steps) > 100
    defined = {
        module: {
            node.name
            for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        for module, _ in steps
    }
    assert [f"{module}.{name}" for module, name in steps if name not in defined[module]] == []
