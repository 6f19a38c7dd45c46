"""Import rules of docs/architecture.md that no linter contract covers."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kwokfleet"

KUBERNETES_ONLY_IN = {"kube/client.py"}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module's part of the design (`core`, `cli`, `errors`, ...) and its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        yield inside.parts[0].removesuffix(".py"), path


def imports(path: Path) -> Iterator[str]:
    """Yield the full dotted name of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_kubernetes_client_has_one_home() -> None:
    """Only the edge of the cluster imports the Kubernetes client."""
    wrong = [
        str(path.relative_to(PACKAGE))
        for _, path in modules()
        if "kubernetes" in {name.split(".")[0] for name in imports(path)}
        and str(path.relative_to(PACKAGE)) not in KUBERNETES_ONLY_IN
    ]
    assert not wrong


def test_the_checks_see_a_forbidden_import(tmp_path: Path) -> None:
    """The checks above can fail: imports are found at any depth of a file, under their full name."""
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from kwokfleet.edge import logs\n    import os.path\n")
    assert list(imports(file)) == ["kwokfleet.edge.logs", "os.path"]
