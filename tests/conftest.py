"""Fixtures and marks: one real control plane per session, isolation by label, logs on failure.

A test that asks for `cluster` or `kwokfleet` runs against real components and is marked
`cluster`; `pytest -m "not cluster"` runs the others without binaries. Tests below `faults` and
`image` are marked by these names and take minutes; they run only where `-m` names them.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.harness import cli, control_plane, golden_files, sandbox

REAL = {"cluster", "kwokfleet", "running_cluster"}
"""Fixtures that need the control plane's binaries."""
APART = {name: Path(__file__).parent / name for name in ("faults", "image")}
"""Marks and their folders."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the marks; deselect slow tests unless `-m` names their mark."""
    for item in items:
        if REAL & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
        for name, folder in APART.items():
            if item.path.is_relative_to(folder):
                item.add_marker(name)
    for name in APART:
        if name not in config.getoption("-m"):
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(name)])
            items[:] = [item for item in items if not item.get_closest_marker(name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add log tails of the components to failure reports."""
    report = yield
    if report.failed:
        for name in REAL & set(getattr(item, "funcargs", ())):
            for title, text in item.funcargs[name].log_tails():  # type: ignore[attr-defined]  # pytest.Function has it
                report.sections.append((title, text))
    return report


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[control_plane.ControlPlane]:
    """Run one control plane with RBAC and admission for the session."""
    yield from control_plane.running()


@pytest.fixture
def cluster(session_cluster: control_plane.ControlPlane) -> control_plane.ControlPlane:
    """Return the session's control plane."""
    return session_cluster


@pytest.fixture
def box(cluster: control_plane.ControlPlane) -> Iterator[sandbox.Sandbox]:
    """Return a sandbox: a unique label and namespace, deleted after the test."""
    yield from sandbox.opened(cluster)


@pytest.fixture
def kwokfleet(tmp_path: Path) -> Iterator[cli.Cli]:
    """Return the command line with its own folders; its clusters are removed after the test."""
    yield from cli.isolated(tmp_path)


@pytest.fixture
def golden_file(request: pytest.FixtureRequest) -> golden_files.GoldenFiles:
    """Compare a text with the file of that name in tests/golden."""
    return golden_files.GoldenFiles(update=bool(request.config.getoption("--update-golden")))
