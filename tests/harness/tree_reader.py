"""Reads a folder on each call of a file watcher, as the daemon does."""

import time
from pathlib import Path

import pytest

from kwokfleet.source import file_watcher, files
from tests.harness import waiting

NEVER_S = 3600.0
DEADLINE_S = 20.0
QUIET_S = 1.0


class TreeReader:
    """Callback that reads a tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls = 0
        self.texts: list[str] | None = None

    def __call__(self) -> None:
        """Read the tree."""
        self.calls += 1
        self.texts = read_texts(self.path)

    def wait_for(self, *texts: str) -> None:
        """Wait until the tree has these texts."""
        try:
            waiting.until(lambda: self.texts == list(texts), deadline_s=DEADLINE_S)
        except AssertionError:
            pytest.fail(f"texts are {self.texts} instead of {list(texts)} after {self.calls} calls")

    def wait_until_quiet(self) -> None:
        """Fail if calls continue without a write."""
        calls, end = -1, time.monotonic() + DEADLINE_S
        while calls != self.calls:
            assert time.monotonic() < end, f"called {self.calls} times"
            calls = self.calls
            time.sleep(QUIET_S)


def read_texts(path: Path) -> list[str] | None:
    """Return the texts of a tree's files, None if it cannot be read."""
    try:
        return [file.text for file in files.read(path).files]
    except Exception:  # noqa: BLE001 - the tree may be incomplete
        return None


def watch_tree(path: Path, reader: TreeReader, **options: object) -> file_watcher.FileWatcher:
    """Watch a tree; by default without polling."""
    return file_watcher.FileWatcher(path, reader, **({"poll_s": NEVER_S} | options))  # type: ignore[arg-type]  # the tests' own
