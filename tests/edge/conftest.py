"""Shared fixtures: thread check, watched folder, git repository."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwokfleet.source import file_watcher
from tests.harness.git_repository import Repository
from tests.harness.tree_reader import NEVER_S


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail if a thread outlives the test."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: changes must arrive as events."""
    monkeypatch.setattr(file_watcher, "PATH_CHECK_S", NEVER_S)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create a folder with one file."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.yaml").write_text("first")
    return folder


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    """Create a repository with one commit: `fleets/a.yaml`."""
    repository = Repository(tmp_path / "upstream")
    repository.commit(fleets__a="a: 1\n")
    return repository
