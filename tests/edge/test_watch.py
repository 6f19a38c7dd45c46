"""Files watched, on a real file system."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from watchdog import observers

from kwokfleet.edge import files, watch
from tests.harness import waiting

NEVER_S = 3600.0
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


class Reader:
    """Reads a tree whenever it may have changed, as the daemon does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls = 0
        self.texts: list[str] | None = None

    def __call__(self) -> None:
        """Read, whatever there is."""
        self.calls += 1
        self.texts = read(self.path)

    def sees(self, *texts: str) -> None:
        """Fail unless that is what is read in the end."""
        try:
            waiting.until(lambda: self.texts == list(texts), deadline_s=DEADLINE_S)
        except AssertionError:
            pytest.fail(f"sees {self.texts} instead of {list(texts)} after {self.calls} calls")


def read(path: Path) -> list[str] | None:
    """Return the texts of a tree's files, None if it cannot be read."""
    try:
        return [file.text for file in files.read(path).files]
    except Exception:  # noqa: BLE001 - half of it may be gone
        return None


@pytest.fixture
def by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be found by looking: events alone must tell."""
    monkeypatch.setattr(watch, "PULSE_S", NEVER_S)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a folder with one file."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.yaml").write_text("first")
    return folder


def watched(path: Path, reader: Reader, **options: object) -> watch.Watch:
    """Watch by events alone, unless told otherwise."""
    return watch.Watch(path, reader, **({"poll_s": NEVER_S} | options))  # type: ignore[arg-type]  # the tests' own


# how people write files


def overwrite(path: Path) -> None:
    """Write in place."""
    path.write_text("second")


def replace(path: Path) -> None:
    """Write beside it and rename, as `sed -i` and most editors do."""
    subprocess.run(["sed", "-i", "s/first/second/", str(path)], check=True)  # noqa: S607


def vim(path: Path) -> None:
    """Rename the old one away, write a new one, remove the old one: vim with a backup."""
    backup = path.with_name(path.name + "~")
    path.rename(backup)
    path.write_text("second")
    backup.unlink()


def in_steps(path: Path) -> None:
    """Keep it open, and write in pieces."""
    with path.open("w") as stream:
        for letter in "second":
            stream.write(letter)
            stream.flush()


def move_in(path: Path) -> None:
    """Move a file of elsewhere over it."""
    other = path.parent.parent / "elsewhere"
    other.write_text("second")
    other.rename(path)


WRITERS = [overwrite, replace, vim, in_steps, move_in]


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("single", [False, True])
def test_every_way_to_save_is_seen(tree: Path, write: Callable[[Path], None], *, single: bool) -> None:
    """In a folder, and of a file that is watched by itself; twice, because watches die with what they were for."""
    path = tree / "a.yaml"
    reader = Reader(path if single else tree)
    with watched(reader.path, reader):
        for _ in range(2):
            write(path)
            reader.sees("second")
            path.write_text("first")
            reader.sees("first")


@pytest.mark.usefixtures("by_events")
def test_files_and_folders_come_and_go(tree: Path) -> None:
    """At any depth, at once."""
    reader = Reader(tree)
    with watched(tree, reader):
        (tree / "b" / "c" / "d").mkdir(parents=True)
        (tree / "b" / "c" / "d" / "x.yaml").write_text("deep")
        reader.sees("first", "deep")
        (tree / "b" / "c" / "d" / "x.yaml").write_text("deeper")
        reader.sees("first", "deeper")
        (tree / "b" / "c").rename(tree / "e")
        (tree / "e" / "d" / "x.yaml").write_text("moved")
        reader.sees("first", "moved")
        shutil.rmtree(tree / "e")
        reader.sees("first")


@pytest.mark.usefixtures("by_events")
def test_a_file_that_becomes_readable_is_seen(tree: Path) -> None:
    """Its contents stay, its mode changes."""
    calls = Reader(tree)
    with watched(tree, calls):
        (tree / "a.yaml").chmod(0o600)
        waiting.until(lambda: calls.calls, deadline_s=DEADLINE_S)


def test_reading_is_no_change(tree: Path) -> None:
    """Who is called reads, and must not be called for that."""
    reader = Reader(tree)
    with watched(tree, reader):
        for _ in range(20):
            read(tree)
        (tree / "a.yaml").write_text("second")
        reader.sees("second")
    assert reader.calls == 1


# links


def swap(link: Path, target: str) -> None:
    """Replace a link in one step, as the kubelet and git-sync do it."""
    part = link.with_name(link.name + "_tmp")
    part.symlink_to(target)
    part.replace(link)


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("single", [False, True])
def test_a_config_map_volume_is_followed(tmp_path: Path, *, single: bool) -> None:
    """Swap after swap, the old folder removed each time; also if one file of it is watched."""
    for version in range(4):
        (tmp_path / f"..v{version}").mkdir()
        (tmp_path / f"..v{version}" / "a.yaml").write_text(f"version {version}")
    (tmp_path / "..data").symlink_to("..v0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    reader = Reader(tmp_path / "a.yaml" if single else tmp_path)
    with watched(reader.path, reader):
        for version in range(1, 4):
            swap(tmp_path / "..data", f"..v{version}")
            shutil.rmtree(tmp_path / f"..v{version - 1}")
            reader.sees(f"version {version}")


@pytest.mark.usefixtures("by_events")
@pytest.mark.parametrize("inside", ["", "fleets", "a/b/fleets"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_swapped_link_on_the_way_is_followed(tmp_path: Path, inside: str, *, absolute: bool) -> None:
    """The folder itself, its parent, one further up; and what happens in the new one afterwards."""
    for version in range(4):
        (tmp_path / f"v{version}" / inside).mkdir(parents=True)
        (tmp_path / f"v{version}" / inside / "a.yaml").write_text(f"version {version}")
    prefix = f"{tmp_path}/" if absolute else ""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "current").symlink_to(f"{prefix or '../'}v0")
    (tmp_path / "entry").symlink_to(f"{prefix}links/current")  # a link to a link
    reader = Reader(tmp_path / "entry" / inside)
    with watched(reader.path, reader):
        for version in range(1, 4):
            swap(tmp_path / "links" / "current", f"{prefix or '../'}v{version}")
            shutil.rmtree(tmp_path / f"v{version - 1}")
            reader.sees(f"version {version}")
            (tmp_path / f"v{version}" / inside / "a.yaml").write_text("edited")
            reader.sees("edited")


def test_links_that_lead_round_in_circles_do_no_harm(tmp_path: Path) -> None:
    """Nor one to everything; and once they are mended, files are seen."""
    (tmp_path / "loop").symlink_to("loop")
    reader = Reader(tmp_path / "loop" / "x")
    with watched(reader.path, reader, poll_s=0.05):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "x").mkdir()
        (tmp_path / "new" / "x" / "a.yaml").write_text("there")
        (tmp_path / "new" / "x" / "everything").symlink_to("/")
        swap(tmp_path / "loop", "new")
        reader.sees("there")


# what comes and goes


@pytest.mark.usefixtures("by_events")
def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """However much of the way is missing."""
    reader = Reader(tmp_path / "a" / "b" / "c")
    with watched(reader.path, reader):
        reader.path.mkdir(parents=True)
        (reader.path / "x.yaml").write_text("there")
        reader.sees("there")
        (reader.path / "x.yaml").write_text("still")
        reader.sees("still")


@pytest.mark.usefixtures("by_events")
def test_a_folder_that_is_deleted_and_comes_back_is_seen(tmp_path: Path) -> None:
    """Again and again, with its parent or without; inodes may be used again."""
    reader = Reader(tmp_path / "parent" / "tree")
    reader.path.mkdir(parents=True)
    with watched(reader.path, reader):
        for number in range(4):
            (reader.path / "x.yaml").write_text(f"life {number}")
            reader.sees(f"life {number}")
            gone = reader.path.parent if number % 2 else reader.path
            shutil.rmtree(gone)
            waiting.until(lambda: reader.texts is None, deadline_s=DEADLINE_S)
            reader.path.mkdir(parents=True)


def test_a_folder_further_up_that_is_moved_away_and_back_is_seen(tmp_path: Path, tree: Path) -> None:
    """Nobody is told of that: it is found by looking at the names on the way, as a mount would be."""
    deep = tmp_path / "up" / "x" / "y"
    deep.mkdir(parents=True)
    tree.rename(deep / "tree")
    reader = Reader(deep / "tree")
    with watched(reader.path, reader):
        (tmp_path / "up").rename(tmp_path / "away")
        waiting.until(lambda: reader.calls and reader.texts is None, deadline_s=DEADLINE_S)
        (tmp_path / "away" / "x" / "y" / "tree" / "a.yaml").write_text("second")
        (tmp_path / "away").rename(tmp_path / "up")
        reader.sees("second")
        (reader.path / "a.yaml").write_text("third")
        reader.sees("third")


# files that others refer to


@pytest.mark.usefixtures("by_events")
def test_files_outside_are_watched_when_asked_for(tmp_path: Path, tree: Path) -> None:
    """From then on; and no longer when they are not meant any more."""
    other, third = tmp_path / "stages" / "x.yaml", tmp_path / "traces" / "y.csv"
    for path in (other, third):
        path.parent.mkdir()
        path.write_text("first")
    calls = Reader(other)
    with watched(tree, calls, also=[other]) as watching:
        other.write_text("second")
        calls.sees("second")
        watching.retarget([other, third])
        calls.path = third
        calls.sees("first")  # it may have changed before it was watched
        third.write_text("second")
        calls.sees("second")
        watching.retarget([third])
        before = calls.calls
        waiting.until(lambda: calls.calls > before, deadline_s=DEADLINE_S)
        before = calls.calls
        for number in range(3):
            other.write_text(str(number))
        third.write_text("third")
        calls.sees("third")
        assert calls.calls == before + 1


# storms


@pytest.mark.usefixtures("by_events")
def test_a_storm_is_few_calls_and_its_last_word_is_heard(tree: Path) -> None:
    """Two hundred saves, and each of them is many events."""
    reader = Reader(tree)
    saves = 200
    with watched(tree, reader):
        for number in range(saves):
            replaced = tree / "part"
            replaced.write_text(f"save {number}")
            replaced.replace(tree / "a.yaml")
            time.sleep(0.002)
        reader.sees(f"save {saves - 1}")
    assert 1 <= reader.calls < saves / 4


# no events


def test_without_events_files_are_looked_at(tree: Path) -> None:
    """Content, names, links and folders; also when size and times are the old ones."""
    reader = Reader(tree)
    with watched(tree, reader, poll_s=0.05, events=False) as watching:
        assert watching.polling == "asked for"
        (tree / "a.yaml").write_text("second")
        reader.sees("second")
        times = (tree / "a.yaml").stat()
        (tree / "a.yaml").write_text("SECOND")
        os.utime(tree / "a.yaml", ns=(times.st_atime_ns, times.st_mtime_ns))
        reader.sees("SECOND")
        (tree / "sub").mkdir()
        (tree / "sub" / "b.yaml").write_text("deep")
        reader.sees("SECOND", "deep")
        shutil.rmtree(tree)
        waiting.until(lambda: reader.texts is None, deadline_s=DEADLINE_S)
        tree.mkdir()
        (tree / "a.yaml").write_text("back")
        reader.sees("back")


def test_a_quiet_folder_without_events_is_left_in_peace(tree: Path) -> None:
    """Looking finds nothing new, so nobody is called, once the files are a little older."""
    reader = Reader(tree)
    with watched(tree, reader, poll_s=0.02, events=False):
        calls = -1
        deadline = time.monotonic() + DEADLINE_S
        while calls != reader.calls:
            assert time.monotonic() < deadline
            calls = reader.calls
            time.sleep(watch.RACY_S / 2)
        assert reader.calls == calls


inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def full(_: object = None) -> None:
    """Fail as inotify does when its table is full."""
    raise OSError(28, "inotify watch limit reached")


@pytest.mark.usefixtures("by_events")
def test_a_full_table_of_watches_is_said_and_done_without(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at instead, more often; when there is room again, events are back."""
    monkeypatch.setattr(watch, "QUICK_POLL_S", 0.05)
    monkeypatch.setattr(watch, "SLOW_POLL_S", 0.2)
    monkeypatch.setattr(watch, "Observer", full)
    reader = Reader(tree)
    with structlog.testing.capture_logs() as logged, watched(tree, reader) as watching:
        assert watching.polling == "inotify watch limit reached"
        (tree / "a.yaml").write_text("second")
        reader.sees("second")
        monkeypatch.setattr(watch, "Observer", observers.Observer)
        waiting.until(lambda: not watching.polling, deadline_s=DEADLINE_S)
        (tree / "a.yaml").write_text("third")
        reader.sees("third")
    assert [each["event"] for each in logged] == ["source_without_events", "source_with_events"]
    assert logged[0]["why"] == "inotify watch limit reached"


@inotify
def test_a_table_that_becomes_full_further_down_is_noticed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder itself can be watched, those below it cannot: nobody tells, so it is asked."""
    from watchdog.observers import inotify_c  # noqa: PLC0415 - there is none elsewhere

    (tree / "b" / "c").mkdir(parents=True)
    real = inotify_c.inotify_add_watch

    def limited(descriptor: int, path: bytes, mask: int) -> int:
        if b"/b" in path:
            ctypes.set_errno(28)
            return -1
        return real(descriptor, path, mask)

    monkeypatch.setattr(inotify_c, "inotify_add_watch", limited)
    monkeypatch.setattr(watch, "QUICK_POLL_S", 0.05)
    reader = Reader(tree)
    with watched(tree, reader) as watching:
        assert "limit" in watching.polling
        (tree / "b" / "c" / "x.yaml").write_text("deep")
        reader.sees("first", "deep")


@inotify
def test_a_listener_that_dies_is_replaced(tree: Path) -> None:
    """Whoever of them it is, and whatever it died of."""
    reader = Reader(tree)
    with watched(tree, reader):
        for number in range(2):
            before = reader.calls
            next(each for each in threading.enumerate() if type(each).__name__ == "InotifyFD").stop()  # type: ignore[attr-defined]
            waiting.until(lambda before=before: reader.calls > before, deadline_s=DEADLINE_S)  # type: ignore[misc]
            (tree / "a.yaml").write_text(f"life {number}")
            reader.sees(f"life {number}")


# ends


def test_closing_ends_all_and_may_be_done_twice_or_from_within(tree: Path) -> None:
    """Nobody is called afterwards."""
    closed = threading.Event()
    watching: list[watch.Watch] = []

    def close() -> None:
        watching[0].close()
        closed.set()

    watching.append(watch.Watch(tree, close))
    (tree / "a.yaml").write_text("second")
    assert closed.wait(DEADLINE_S)
    waiting.until(lambda: "source-watch" not in {thread.name for thread in threading.enumerate()})
    watching[0].close()
