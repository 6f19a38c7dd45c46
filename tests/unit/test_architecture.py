"""The arrows of docs/architecture.md, checked: who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kwokfleet"

PASS = {"core", "edge", "errors", "sending", "settings", "source"}
"""What one pass is written with."""
MAY_IMPORT = {
    "__init__": set[str](),
    "__main__": {"cli"},
    "errors": set[str](),
    "settings": {"errors"},
    "core": {"core"},
    "formats": {"core", "formats"},
    "edge": {"__init__", "core", "edge", "errors", "settings"},  # of edges only itself: checked below
    "embedded": {"embedded", "errors", "settings"},
    "dashboard": {"dashboard"},
    "assembly": {"core", "edge", "errors", "formats", "settings"},
    "source": {"assembly", "core", "edge", "errors", "formats", "settings"},
    "sending": PASS,
    "apply": PASS | {"drain", "moving", "sending"},
    "drain": PASS | {"apply"},
    "world": PASS,
    "reconcile": PASS,
    "leasing": PASS,
    "moving": PASS | {"leasing"},
    "beats": PASS,
    "places": {"core", "edge"},
    "shard": PASS | {"beats", "leasing", "places"},
    "pods": PASS | {"leasing", "places", "shard"},
    "keeper": PASS | {"beats", "places", "shard"},
    "observer": PASS | {"leasing"},
    "takeover": PASS | {"leasing", "places", "pods"},
    "pacer": set[str](),
    "kinds": PASS,
    "performance": PASS | {"apply", "kinds", "pacer"},
    "sweeper": PASS | {"performance", "world"},
    "player": PASS | {"apply", "kinds", "pacer", "performance", "sweeper"},
    "recorder": PASS,
    "sights": PASS,
    "measurement": PASS | {"__init__"},
    "measurer": PASS | {"kinds", "measurement", "performance", "sights"},
    "runs": PASS | {"apply", "journal", "measurer", "player", "recorder"},
    "sync": PASS | {"apply", "reconcile", "recorder", "world"},
    "leader": PASS,
    "feed": PASS,
    "journal": PASS,
    "hands": PASS | {"sync"},
    "tidying": set(),
    "foreman": PASS | {"hands", "journal", "recorder", "sync"},
    "caretaker": PASS | {"apply", "keeper", "leasing", "places", "pods", "shard", "takeover"},
    "daemon": PASS
    | {"apply", "caretaker", "feed", "foreman", "journal", "leader"}
    | {"reconcile", "recorder", "runs", "sync", "tidying"},
    "packer": {"core", "edge", "errors", "source"},
    "installer": PASS,
    "uninstaller": PASS | {"installer", "reconcile", "recorder", "sync", "takeover", "world"},
    "reporting": {"core", "edge", "errors", "formats"},
    "face": PASS | {"__init__", "daemon", "formats", "recorder"},
    "trial": PASS | {"daemon", "face"},
    "cli": PASS
    | {"__init__", "apply", "cli", "daemon", "embedded", "formats", "player"}
    | {
        "caretaker",
        "recorder",
        "shard",
        "face",
        "feed",
        "installer",
        "keeper",
        "kinds",
        "leader",
        "observer",
        "packer",
        "places",
        "pods",
        "reconcile",
        "reporting",
        "sync",
        "takeover",
        "trial",
        "uninstaller",
        "world",
    },
}

IMPURE = {
    "asyncio", "http", "io", "kubernetes", "logging", "multiprocessing", "os", "pathlib", "psutil", "random",
    "secrets", "shutil", "signal", "socket", "structlog", "subprocess", "sys", "tempfile", "threading", "time",
    "urllib", "uuid", "watchdog",
}  # fmt: skip

PURE = ("urllib.parse",)
"""What is pure of a package that is not."""

KUBERNETES_ONLY_IN = {"edge/cluster/__init__.py"}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module's part of the design (`core`, `cli`, `errors`, ...) and its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        yield inside.parts[0].removesuffix(".py"), path


def edge_of(path: Path) -> str:
    """Return the edge that a file below `edge` belongs to."""
    return path.relative_to(PACKAGE / "edge").parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the full dotted name of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(name: str) -> str | None:
    """Return the part of the design that *name* belongs to, None if it is not ours."""
    match name.split("."):
        case ["kwokfleet"]:
            return "__init__"
        case ["kwokfleet", part, *_]:
            return part
    return None


def test_arrows_point_inward() -> None:
    """A module imports only the parts that the design lets it see."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in modules()
        for name in imports(path)
        if (target := own(name)) and target not in MAY_IMPORT[part]
    ]
    assert not wrong


def test_edges_do_not_know_each_other() -> None:
    """An edge never imports another edge; one that is a package may import its own modules."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in modules()
        for name in imports(path)
        if part == "edge" and own(name) == "edge" and not name.startswith(f"kwokfleet.edge.{edge_of(path)}.")
    ]
    assert not wrong


def test_core_is_pure() -> None:
    """Core and formats reach for no file, clock, chance, network or log."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in modules()
        for name in imports(path)
        if part in ("core", "formats") and name.split(".")[0] in IMPURE and not name.startswith(PURE)
    ]
    assert not wrong


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
    assert own("kwokfleet.edge.logs") == "edge"
    assert "edge" not in MAY_IMPORT["core"]
