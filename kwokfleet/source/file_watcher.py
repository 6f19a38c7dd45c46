"""File watcher: calls back whenever files may have changed.

inotify events come at once, but belong to inodes, not to names. So every folder on a path in which a symlink may be
replaced or a missing folder may appear is watched too, and all watches are rebuilt when one of these changes.
Changes without events (network folders, mounts, a full inotify table) are found by polling: path components once a
second, each file's inode, size and times every `poll_s`.

A callback means that files may have changed: the callee reads them again and compares contents.
"""

import logging
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from watchdog import events as fs_events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.utils import BaseThread

from kwokfleet.source import debounce

log = structlog.get_logger()

# Harmless: watchdog warns about each folder that is created while it adds watches.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, r"watchdog\.")
# watchdog logs errors of its own threads when they are stopped.
logging.getLogger("watchdog").setLevel(logging.CRITICAL)

SLOW_POLL_S = 10.0
"""Polling interval beside events."""
QUICK_POLL_S = 1.0
"""Polling interval without events."""
PATH_CHECK_S = 1.0
"""Interval of checking path components: mounts and moves of parent folders send no event."""
MAX_POLL_SHARE = 100
"""Polling takes at most this fraction (1/n) of the time, for any number of files."""
RACY_S = 2.0
"""A file that changed within this time may change again without new timestamps."""
CLOSING_S = 5.0
_LINKS = 40
"""Symlinks followed in a path; the kernel's limit."""
_MAX_REARMS = 5

# Without opened and read events: we read the files ourselves.
_CHANGE_EVENTS: list[type[fs_events.FileSystemEvent]] = [
    fs_events.FileCreatedEvent, fs_events.FileModifiedEvent, fs_events.FileAttribEvent, fs_events.FileClosedEvent,
    fs_events.FileDeletedEvent, fs_events.FileMovedEvent, fs_events.DirCreatedEvent, fs_events.DirAttribEvent,
    fs_events.DirDeletedEvent, fs_events.DirMovedEvent,
]  # fmt: skip

Identity = tuple[int, int]


class FileWatcher(AbstractContextManager["FileWatcher"]):
    """Calls *on_change* from its own thread, debounced, after files may have changed.

    Create it before the first read, so that no change is missed. *on_change* must return quickly and must
    not raise. With *events* False it only polls, every *poll_s*.
    """

    def __init__(
        self,
        path: Path,
        on_change: Callable[[], None],
        *,
        also: Iterable[Path] = (),
        poll_s: float = SLOW_POLL_S,
        events: bool = True,
    ) -> None:
        self._path, self._on_change, self._events, self._poll_s = path.absolute(), on_change, events, poll_s
        self._also = frozenset(path.absolute() for path in also)
        self._wake = threading.Condition()
        self._debouncer = debounce.Debouncer()
        self._stopping = self._stale = False
        self._observer: BaseObserver | None = None
        self._watchdog_threads: list[BaseThread] = []
        self._event_error = ""
        self._armed_at = 0.0
        self._layout = _Layout()
        self._arm()
        self._seen = self._file_status()
        self._thread = threading.Thread(target=self._run, name="source-watch", daemon=True)
        self._thread.start()

    @property
    def polling(self) -> str:
        """Why files are polled instead of watched; empty if there are events."""
        return self._event_error if self._events else "requested"

    def retarget(self, also: Iterable[Path]) -> None:
        """Replace the additional files to watch: the references of Fleets out of the folder."""
        additional = frozenset(path.absolute() for path in also)
        with self._wake:
            if additional != self._also:
                # They may have changed before they were watched.
                self._also, self._stale = additional, True
                self._add_event()

    def close(self) -> None:
        """Stop; a running *on_change* is not interrupted."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)
        self._disarm()

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_event(self, *, gone: bool) -> None:
        """Record an event; *gone*: a watched folder was deleted, and its watch with it."""
        with self._wake:
            self._stale |= gone
            self._add_event()

    # the thread

    def _run(self) -> None:
        checked = poll = time.monotonic()
        took_s = 0.0
        while True:
            interval = max(self._interval, took_s * MAX_POLL_SHARE)
            if not self._wait(min(checked + PATH_CHECK_S, poll + interval)):
                return
            now = time.monotonic()
            if now >= checked + PATH_CHECK_S:
                checked = now
                self._check_watch_health()
            if now >= poll + interval:
                self._poll()
                poll = time.monotonic()
                took_s = poll - now
            with self._wake:
                fires = self._debouncer.fires(time.monotonic())
            if fires:
                self._fire()

    def _wait(self, until: float) -> bool:
        """Wait until a time, or until events are due; return False to stop."""
        with self._wake:
            due = self._debouncer.due
            until = until if due is None else min(until, due)
            self._wake.wait_for(
                lambda: self._stopping or (due is None and self._debouncer.due is not None), until - time.monotonic()
            )
            return not self._stopping

    @property
    def _interval(self) -> float:
        return min(self._poll_s, QUICK_POLL_S) if self._event_error else self._poll_s

    def _add_event(self) -> None:
        with self._wake:
            self._debouncer.event(time.monotonic())
            self._wake.notify_all()

    def _check_watch_health(self) -> None:
        """Rebuild the watches if a path component changed or a watchdog thread ended."""
        if self._current_layout() != self._layout or not all(thread.is_alive() for thread in self._watchdog_threads):
            self.handle_event(gone=True)

    def _poll(self) -> None:
        """Compare the status of every file."""
        if self._event_error and time.monotonic() >= self._armed_at + SLOW_POLL_S:
            self._arm()  # inotify may have free watches now
        seen = self._file_status()
        if seen != self._seen or (seen.racy and self._debouncer.due is None):
            self._add_event()
        self._seen = seen

    def _fire(self) -> None:
        with self._wake:
            stale, self._stale = self._stale, False
        if stale or self._current_layout() != self._layout:
            self._arm()
        if not self._stopping:
            self._on_change()

    # events

    def _current_layout(self) -> "_Layout":
        layout = _Layout()
        for path in sorted({self._path, *self._also}):
            layout.add(path)
        return layout

    def _arm(self) -> None:
        """Rebuild all watches: a watch ends with its inode."""
        for _ in range(_MAX_REARMS):
            self._disarm()
            self._layout = self._current_layout()
            if not self._events:
                return
            self._armed_at = time.monotonic()
            self._set_event_error(self._start_observer())
            if self._current_layout() == self._layout:  # no change meanwhile
                return

    def _set_event_error(self, error: str) -> None:
        """Store the error, and log a change."""
        before, self._event_error = self._event_error, error
        if error and error != before:
            log.warning("file_events_unavailable", path=str(self._path), reason=error, poll_s=self._interval)
        elif before and not error:
            log.info("file_events_available", path=str(self._path))

    def _start_observer(self) -> str:
        """Start receiving events, or return why that is not possible."""
        observer: BaseObserver | None = None
        before = set(threading.enumerate())
        try:
            observer = Observer()
            trees = self._layout.outermost()
            for folder in trees:
                observer.schedule(_EventHandler(self, folder), folder, recursive=True, event_filter=_CHANGE_EVENTS)
            for folder, names in self._layout.outside(trees):
                observer.schedule(_EventHandler(self, folder, names), folder, event_filter=_CHANGE_EVENTS)
            observer.start()
            for folder in trees:
                # watchdog ignores that a subfolder cannot be watched; adding the last one again reports it.
                if last := _last_below(folder):
                    observer.schedule(_EventHandler(self, last), last, event_filter=_CHANGE_EVENTS)
        except OSError as error:
            _end(observer)
            return (error.strerror or str(error)).lower()
        self._observer = observer
        self._watchdog_threads = [
            thread for thread in threading.enumerate() if isinstance(thread, BaseThread) and thread not in before
        ]
        return ""

    def _disarm(self) -> None:
        _end(self._observer)
        self._observer, self._watchdog_threads = None, []

    # polling

    def _file_status(self) -> "_FileStatus":
        now = time.time()
        entries = sorted((str(path), status) for root in {self._path, *self._also} for path, status in _entries(root))
        return _FileStatus(
            tuple((path, status.st_mode, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
                   status.st_ctime_ns) for path, status in entries),
            any(abs(now - status.st_ctime) < RACY_S for _, status in entries),
        )  # fmt: skip


@dataclass(slots=True)
class _Layout:
    """The folders to watch."""

    trees: dict[Path, Identity] = field(default_factory=dict)
    """Folders to watch recursively."""
    names: dict[Path, tuple[Identity, set[str]]] = field(default_factory=dict)
    """Folders in which only some names are relevant."""

    def add(self, path: Path) -> None:
        """Add all folders in which a change may affect *path*."""
        folder, rest, links = Path("/"), list(path.parts[1:]), 0
        while rest:
            name = rest.pop(0)
            here = folder / name
            status = _lstat(here)
            if status is None:  # may be created
                self._name(folder, name)
                return
            if stat.S_ISLNK(status.st_mode) and links < _LINKS:  # may be replaced
                links += 1
                self._name(folder, name)
                target = _target(here)
                folder, rest = (Path("/") if target.is_absolute() else folder), [*target.parts, *rest]
                rest = rest[1:] if target.is_absolute() else rest
            else:
                if not rest:  # may be replaced
                    self._name(folder, name)
                folder = folder.parent if name == ".." else here
        status = _lstat(folder)
        if status and stat.S_ISDIR(status.st_mode):
            self.trees[folder] = (status.st_dev, status.st_ino)

    def _name(self, folder: Path, name: str) -> None:
        status = _lstat(folder)
        if status:
            self.names.setdefault(folder, ((status.st_dev, status.st_ino), set()))[1].add(name)

    def outermost(self) -> list[Path]:
        """Return the recursive folders that are not below another one."""
        return sorted(tree for tree in self.trees if not self.trees.keys() & set(tree.parents))

    def outside(self, trees: list[Path]) -> Iterator[tuple[Path, frozenset[str]]]:
        """Yield the other folders, with their relevant names."""
        for folder, (_, names) in sorted(self.names.items()):
            if not any(folder.is_relative_to(tree) for tree in trees):
                yield folder, frozenset(names)


@dataclass(frozen=True, slots=True)
class _FileStatus:
    """The status of all files at one time."""

    entries: tuple[tuple[object, ...], ...]
    racy: bool = field(compare=False)


class _EventHandler(fs_events.FileSystemEventHandler):
    """Handles events of one folder; without *names*, all of them."""

    def __init__(self, watcher: FileWatcher, folder: Path, names: frozenset[str] = frozenset()) -> None:
        self._watcher, self._folder, self._names = watcher, folder, names

    def dispatch(self, event: fs_events.FileSystemEvent) -> None:
        """Forward relevant events."""
        paths = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        itself = self._folder in paths
        if not self._names or itself or any(path.name in self._names for path in paths):
            self._watcher.handle_event(gone=itself and isinstance(event, fs_events.DirDeletedEvent))


def _end(observer: BaseObserver | None) -> None:
    if observer is not None:
        observer.stop()
        if observer.is_alive():
            observer.join(CLOSING_S)


def _last_below(folder: Path) -> Path | None:
    """Return the last folder of a walk below *folder*, if there is one."""
    last = None
    for root, names, _ in os.walk(folder):
        last = next((path for name in reversed(names) if not (path := Path(root) / name).is_symlink()), last)
    return last


def _entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each visible file and folder at and below *root*; symlinks out of *root* are skipped."""
    try:
        status, real = root.stat(), root.resolve()
    except (OSError, RuntimeError):
        return
    yield str(root), status
    waiting = [str(root)] if stat.S_ISDIR(status.st_mode) else []
    seen: set[Identity] = set()
    while waiting:
        for entry in _listed(waiting.pop()):
            try:
                status = entry.stat()
                if entry.is_symlink() and not Path(entry).resolve().is_relative_to(real):
                    continue
            except (OSError, RuntimeError):
                continue
            yield entry.path, status
            if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                waiting.append(entry.path)


def _listed(folder: str) -> list["os.DirEntry[str]"]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]
    return []


def _lstat(path: Path) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        return path.lstat()
    return None


def _target(link: Path) -> Path:
    with suppress(OSError):
        return link.readlink()
    return Path()
