"""File watcher without events, or after the loss of events; and close."""

import ctypes
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
from watchdog import observers

from kwokfleet.source import file_watcher
from tests.harness import waiting
from tests.harness.tree_reader import DEADLINE_S, TreeReader, watch_tree

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# no events


def test_without_events_files_are_polled(tree: Path) -> None:
    """Contents, names, links and folders; also with equal size and times."""
    reader = TreeReader(tree)
    with watch_tree(tree, reader, poll_s=0.05, events=False) as watching:
        assert watching.polling == "requested"
        (tree / "a.yaml").write_text("second")
        reader.wait_for("second")
        times = (tree / "a.yaml").stat()
        (tree / "a.yaml").write_text("SECOND")
        os.utime(tree / "a.yaml", ns=(times.st_atime_ns, times.st_mtime_ns))
        reader.wait_for("SECOND")
        (tree / "sub").mkdir()
        (tree / "sub" / "b.yaml").write_text("deep")
        reader.wait_for("SECOND", "deep")
        shutil.rmtree(tree)
        waiting.until(lambda: reader.texts is None, deadline_s=DEADLINE_S)
        tree.mkdir()
        (tree / "a.yaml").write_text("back")
        reader.wait_for("back")


def test_polling_does_not_follow_links_out_of_the_folder(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to / would poll the whole disk; a link inside is followed, also to a hidden folder."""
    (tree / ".hidden").mkdir()
    (tree / ".hidden" / "b.yaml").write_text("hidden")
    (tree / "inside").symlink_to(".hidden")
    (tmp_path / "outside").mkdir()
    (tree / "link").symlink_to("../outside")
    listed, real = set[str](), os.scandir

    def scandir(path: str) -> Any:  # noqa: ANN401 - its type has no name
        listed.add(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    reader = TreeReader(tree)
    with watch_tree(tree, reader, poll_s=0.05, events=False):
        (tree / ".hidden" / "b.yaml").write_text("second")
        reader.wait_for("first", "second")
    assert str(tree / "inside") in listed
    assert str(tree / "link") not in listed


def test_polling_an_unchanged_folder_causes_no_calls(tree: Path) -> None:
    """Once the files are a little older."""
    reader = TreeReader(tree)
    with watch_tree(tree, reader, poll_s=0.02, events=False):
        reader.wait_until_quiet()


inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify exists only on Linux")


def full(_: object = None) -> None:
    """Fail as inotify does at its limit of watches."""
    raise OSError(28, "inotify watch limit reached")


@pytest.mark.usefixtures("by_events")
def test_polling_replaces_events_at_the_limit_of_watches(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged; events return when watches are available."""
    monkeypatch.setattr(file_watcher, "QUICK_POLL_S", 0.05)
    monkeypatch.setattr(file_watcher, "SLOW_POLL_S", 0.2)
    monkeypatch.setattr(file_watcher, "Observer", full)
    reader = TreeReader(tree)
    with structlog.testing.capture_logs() as logged, watch_tree(tree, reader) as watching:
        assert watching.polling == "inotify watch limit reached"
        (tree / "a.yaml").write_text("second")
        reader.wait_for("second")
        monkeypatch.setattr(file_watcher, "Observer", observers.Observer)
        waiting.until(lambda: not watching.polling, deadline_s=DEADLINE_S)
        (tree / "a.yaml").write_text("third")
        reader.wait_for("third")
    assert [entry["event"] for entry in logged] == ["file_events_unavailable", "file_events_available"]
    assert logged[0]["reason"] == "inotify watch limit reached"


@inotify
def test_the_limit_of_watches_is_detected_below_the_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder can be watched, but not its subfolders; there is no error, so it is checked."""
    from watchdog.observers import inotify_c  # noqa: PLC0415 - exists only on Linux

    (tree / "b" / "c").mkdir(parents=True)
    real = inotify_c.inotify_add_watch

    def limited(descriptor: int, path: bytes, mask: int) -> int:
        if b"/b" in path:
            ctypes.set_errno(28)
            return -1
        return real(descriptor, path, mask)

    monkeypatch.setattr(inotify_c, "inotify_add_watch", limited)
    monkeypatch.setattr(file_watcher, "QUICK_POLL_S", 0.05)
    reader = TreeReader(tree)
    with watch_tree(tree, reader) as watching:
        assert "limit" in watching.polling
        (tree / "b" / "c" / "x.yaml").write_text("deep")
        reader.wait_for("first", "deep")


@inotify
def test_a_failed_listener_is_replaced(tree: Path) -> None:
    """Any of the threads, after any error."""
    reader = TreeReader(tree)
    with watch_tree(tree, reader):
        for number in range(2):
            before = reader.calls
            next(thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyFD").stop()  # type: ignore[attr-defined]
            waiting.until(lambda before=before: reader.calls > before, deadline_s=DEADLINE_S)  # type: ignore[misc]
            (tree / "a.yaml").write_text(f"life {number}")
            reader.wait_for(f"life {number}")


# close


def test_close_can_be_called_twice_or_in_a_callback(tree: Path) -> None:
    """There are no calls afterwards."""
    closed = threading.Event()
    watching: list[file_watcher.FileWatcher] = []

    def close() -> None:
        watching[0].close()
        closed.set()

    watching.append(file_watcher.FileWatcher(tree, close))
    (tree / "a.yaml").write_text("second")
    assert closed.wait(DEADLINE_S)
    waiting.until(lambda: "source-watch" not in {thread.name for thread in threading.enumerate()})
    watching[0].close()
