"""File watcher, on a real file system."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kwokfleet.source import debounce
from tests.harness import waiting
from tests.harness.tree_reader import DEADLINE_S, TreeReader, watch_tree

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# ways to write a file


def overwrite(path: Path) -> None:
    """Write in place."""
    path.write_text("second")


def replace(path: Path) -> None:
    """Write a new file and rename it, as `sed -i` and most editors do."""
    subprocess.run(["sed", "-i", "s/first/second/", str(path)], check=True)  # noqa: S607


def vim(path: Path) -> None:
    """Rename the old file, write a new one, delete the old one: vim with a backup."""
    backup = path.with_name(path.name + "~")
    path.rename(backup)
    path.write_text("second")
    backup.unlink()


def in_steps(path: Path) -> None:
    """Write in pieces to an open file."""
    with path.open("w") as stream:
        for letter in "second":
            stream.write(letter)
            stream.flush()


def move_in(path: Path) -> None:
    """Move another file over it."""
    other = path.parent.parent / "elsewhere"
    other.write_text("second")
    other.rename(path)


WRITERS = [overwrite, replace, vim, in_steps, move_in]


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("single", [False, True])
def test_every_way_to_save_is_detected(tree: Path, write: Callable[[Path], None], *, single: bool) -> None:
    """In a watched folder and for a watched file; twice, because a watch ends with its inode."""
    path = tree / "a.yaml"
    reader = TreeReader(path if single else tree)
    with watch_tree(reader.path, reader):
        for _ in range(2):
            write(path)
            reader.wait_for("second")
            path.write_text("first")
            reader.wait_for("first")


@pytest.mark.usefixtures("by_events")
def test_created_and_deleted_files_and_folders_are_detected(tree: Path) -> None:
    """At any depth, at once."""
    reader = TreeReader(tree)
    with watch_tree(tree, reader):
        (tree / "b" / "c" / "d").mkdir(parents=True)
        (tree / "b" / "c" / "d" / "x.yaml").write_text("deep")
        reader.wait_for("first", "deep")
        (tree / "b" / "c" / "d" / "x.yaml").write_text("deeper")
        reader.wait_for("first", "deeper")
        (tree / "b" / "c").rename(tree / "e")
        (tree / "e" / "d" / "x.yaml").write_text("moved")
        reader.wait_for("first", "moved")
        shutil.rmtree(tree / "e")
        reader.wait_for("first")


@pytest.mark.usefixtures("by_events")
def test_a_file_that_becomes_readable_is_detected(tree: Path) -> None:
    """Only its mode changes."""
    calls = TreeReader(tree)
    with watch_tree(tree, calls):
        (tree / "a.yaml").chmod(0o600)
        waiting.until(lambda: calls.calls, deadline_s=DEADLINE_S)


@pytest.mark.usefixtures("by_events")
def test_a_read_is_not_a_change(tree: Path) -> None:
    """The callback reads; that must not cause a loop."""
    reader = TreeReader(tree)
    with watch_tree(tree, reader):
        (tree / "a.yaml").write_text("second")
        reader.wait_for("second")
        reader.wait_until_quiet()


# links


def swap(link: Path, target: str) -> None:
    """Replace a link atomically, as the kubelet and git-sync do."""
    part = link.with_name(link.name + "_tmp")
    part.symlink_to(target)
    part.replace(link)


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("single", [False, True])
def test_a_config_map_volume_is_followed(tmp_path: Path, *, single: bool) -> None:
    """Over several swaps, with the old folder deleted; also for one watched file."""
    for version in range(4):
        (tmp_path / f"..v{version}").mkdir()
        (tmp_path / f"..v{version}" / "a.yaml").write_text(f"version {version}")
    (tmp_path / "..data").symlink_to("..v0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    reader = TreeReader(tmp_path / "a.yaml" if single else tmp_path)
    with watch_tree(reader.path, reader):
        for version in range(1, 4):
            swap(tmp_path / "..data", f"..v{version}")
            reader.wait_for(f"version {version}")
            shutil.rmtree(tmp_path / f"..v{version - 1}")


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("inside", ["", "fleets", "a/b/fleets"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_swapped_link_in_the_path_is_followed(tmp_path: Path, inside: str, *, absolute: bool) -> None:
    """The folder, its parent or a folder above; changes in the new target are detected."""
    for version in range(4):
        (tmp_path / f"v{version}" / inside).mkdir(parents=True)
        (tmp_path / f"v{version}" / inside / "a.yaml").write_text(f"version {version}")
    prefix = f"{tmp_path}/" if absolute else ""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "current").symlink_to(f"{prefix or '../'}v0")
    (tmp_path / "entry").symlink_to(f"{prefix}links/current")  # a link to a link
    reader = TreeReader(tmp_path / "entry" / inside)
    with watch_tree(reader.path, reader):
        for version in range(1, 4):
            swap(tmp_path / "links" / "current", f"{prefix or '../'}v{version}")
            reader.wait_for(f"version {version}")
            (tmp_path / f"v{version}" / inside / "a.yaml").write_text("edited")
            reader.wait_for("edited")
            shutil.rmtree(tmp_path / f"v{version - 1}")


def test_circular_links_do_no_harm(tmp_path: Path) -> None:
    """Files are detected once the links are fixed."""
    (tmp_path / "loop").symlink_to("loop")
    reader = TreeReader(tmp_path / "loop" / "x")
    with watch_tree(reader.path, reader, poll_s=0.05):
        (tmp_path / "new" / "x").mkdir(parents=True)
        (tmp_path / "new" / "x" / "a.yaml").write_text("there")
        swap(tmp_path / "loop", "new")
        reader.wait_for("there")


# created and deleted folders


@pytest.mark.usefixtures("by_events")
def test_a_missing_folder_is_watched_for(tmp_path: Path) -> None:
    """Also if its parents are missing."""
    reader = TreeReader(tmp_path / "a" / "b" / "c")
    with watch_tree(reader.path, reader):
        reader.path.mkdir(parents=True)
        (reader.path / "x.yaml").write_text("there")
        reader.wait_for("there")
        (reader.path / "x.yaml").write_text("still")
        reader.wait_for("still")


@pytest.mark.usefixtures("by_events")
def test_a_deleted_and_recreated_folder_is_detected(tmp_path: Path) -> None:
    """Repeatedly, with or without its parent; inodes may be reused."""
    reader = TreeReader(tmp_path / "parent" / "tree")
    reader.path.mkdir(parents=True)
    with watch_tree(reader.path, reader):
        for number in range(4):
            (reader.path / "x.yaml").write_text(f"life {number}")
            reader.wait_for(f"life {number}")
            gone = reader.path.parent if number % 2 else reader.path
            shutil.rmtree(gone)
            waiting.until(lambda: reader.texts is None, deadline_s=DEADLINE_S)
            reader.path.mkdir(parents=True)


@pytest.mark.usefixtures("by_events")
def test_a_folder_that_is_recreated_at_once_is_detected(tmp_path: Path) -> None:
    """It may have the same inode, whose watch has ended."""
    reader = TreeReader(tmp_path / "tree")
    reader.path.mkdir()
    with watch_tree(reader.path, reader):
        for number in range(5):
            before = reader.calls
            shutil.rmtree(reader.path)
            reader.path.mkdir()
            waiting.until(lambda before=before: reader.calls > before, deadline_s=DEADLINE_S)  # type: ignore[misc]
            (reader.path / "x.yaml").write_text(f"life {number}")
            reader.wait_for(f"life {number}")


def test_a_parent_folder_that_is_moved_and_moved_back_is_detected(tmp_path: Path, tree: Path) -> None:
    """There is no event for it, as for a mount: the folders of the path are polled."""
    deep = tmp_path / "up" / "x" / "y"
    deep.mkdir(parents=True)
    tree.rename(deep / "tree")
    reader = TreeReader(deep / "tree")
    with watch_tree(reader.path, reader):
        (tmp_path / "up").rename(tmp_path / "away")
        waiting.until(lambda: reader.calls and reader.texts is None, deadline_s=DEADLINE_S)
        (tmp_path / "away" / "x" / "y" / "tree" / "a.yaml").write_text("second")
        (tmp_path / "away").rename(tmp_path / "up")
        reader.wait_for("second")
        (reader.path / "a.yaml").write_text("third")
        reader.wait_for("third")


# referenced files


@pytest.mark.usefixtures("by_events")
def test_requested_files_outside_the_folder_are_watched(tmp_path: Path, tree: Path) -> None:
    """From the start, or added later."""
    other, third = tmp_path / "stages" / "x.yaml", tmp_path / "traces" / "y.csv"
    for path in (other, third):
        path.parent.mkdir()
        path.write_text("first")
    calls = TreeReader(other)
    with watch_tree(tree, calls, also=[other]) as watching:
        other.write_text("second")
        calls.wait_for("second")
        watching.retarget([other, third])
        calls.path = third
        calls.wait_for("first")  # it may have changed before it was watched
        third.write_text("second")
        calls.wait_for("second")


# many events


@pytest.mark.usefixtures("by_events")
def test_many_writes_cause_few_calls_and_the_last_is_detected(tree: Path) -> None:
    """Two hundred writes, each with several events."""
    reader = TreeReader(tree)
    saves, began = 200, time.monotonic()
    with watch_tree(tree, reader):
        for number in range(saves):
            replaced = tree / "part"
            replaced.write_text(f"save {number}")
            replaced.replace(tree / "a.yaml")
            time.sleep(0.002)
        reader.wait_for(f"save {saves - 1}")
    assert 1 <= reader.calls <= (time.monotonic() - began) / debounce.QUIET_S + 1
