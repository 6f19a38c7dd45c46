"""Files watched: a call whenever something may have changed, from whatever corner it comes.

Kernel events say so at once, but they belong to inodes, not to names. So each name on the way to
a file is followed: wherever a link may be swapped or a missing folder may appear, its folder is
watched too, and what is watched is laid out anew when one of them changes. What sends no events
(network folders, mounts that come and go, a full inotify table) is found by looking: once a second
at the few names on the way, every `poll_s` at each file's inode, size and times.

A call means "may have": who is called reads again, and contents decide.
"""

import logging
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog
from watchdog import events as happenings
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.utils import BaseThread

from kwokfleet.source import debounce

log = structlog.get_logger()

# watchdog says so of every folder that is made while it lays out its watches, and it does no harm.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, r"watchdog\.")
# It complains of its own threads when they are stopped, on standard error and in nobody's format.
logging.getLogger("watchdog").setLevel(logging.CRITICAL)

SLOW_POLL_S = 10.0
"""How often every file is looked at although events should tell."""
QUICK_POLL_S = 1.0
"""How often when there are no events."""
PULSE_S = 1.0
"""How often the names on the way are looked at: mounts and moves of a folder further up send no event."""
SHARE = 100
"""Looking takes at most one part in so many of the time, however many files there are."""
RACY_S = 2.0
"""A file that changed this recently may change once more without its times telling."""
CLOSING_S = 5.0
_LINKS = 40
"""Links followed on the way, as many as the kernel would."""
_ROUNDS = 5

# Not among them: that a file was opened or read. We read them ourselves.
_TELLING: list[type[happenings.FileSystemEvent]] = [
    happenings.FileCreatedEvent,
    happenings.FileModifiedEvent,
    happenings.FileAttribEvent,
    happenings.FileClosedEvent,
    happenings.FileDeletedEvent,
    happenings.FileMovedEvent,
    happenings.DirCreatedEvent,
    happenings.DirAttribEvent,
    happenings.DirDeletedEvent,
    happenings.DirMovedEvent,
]

Identity = tuple[int, int]


class FileWatcher:
    """Calls *on_change*, from a thread of its own, some quiet time after something may have changed.

    Make it before the first reading: then no change falls between. *on_change* should only ask
    somebody else to read; it must not raise. *events* False: only look, every *poll_s*.
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
        self._also = frozenset(each.absolute() for each in also)
        self._wake = threading.Condition()
        self._storm = debounce.Debouncer()
        self._stopping = self._stale = False
        self._observer: BaseObserver | None = None
        self._ears: list[BaseThread] = []
        self._trouble = ""
        self._armed_at = 0.0
        self._layout = _Layout()
        self._arm()
        self._seen = self._look()
        self._thread = threading.Thread(target=self._run, name="source-watch", daemon=True)
        self._thread.start()

    @property
    def polling(self) -> str:
        """Why there are no events and files are looked at instead; empty if there are."""
        return self._trouble if self._events else "asked for"

    def retarget(self, also: Iterable[Path]) -> None:
        """Watch these files too, instead of those given before: what Fleets refer to outside of the folder."""
        wanted = frozenset(each.absolute() for each in also)
        with self._wake:
            if wanted != self._also:
                # What changed there before it was watched is not known: look once more.
                self._also, self._stale = wanted, True
                self._happened()

    def close(self) -> None:
        """End it; *on_change* is not called any more, unless by who is being called right now."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)
        self._disarm()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def heard(self, *, gone: bool) -> None:
        """Take note of an event; *gone*: a watch died with the folder it was for."""
        with self._wake:
            self._stale |= gone
            self._happened()

    # the thread

    def _run(self) -> None:
        pulse = poll = time.monotonic()
        took_s = 0.0
        while True:
            interval = max(self._interval, took_s * SHARE)
            if not self._waited(min(pulse + PULSE_S, poll + interval)):
                return
            now = time.monotonic()
            if now >= pulse + PULSE_S:
                pulse = now
                self._feel()
            if now >= poll + interval:
                self._poll()
                poll = time.monotonic()
                took_s = poll - now
            with self._wake:
                fires = self._storm.fires(time.monotonic())
            if fires:
                self._fire()

    def _waited(self, until: float) -> bool:
        """Wait until then, or until it is time to act on events; return False to stop."""
        with self._wake:
            due = self._storm.due
            until = until if due is None else min(until, due)
            self._wake.wait_for(
                lambda: self._stopping or (due is None and self._storm.due is not None), until - time.monotonic()
            )
            return not self._stopping

    @property
    def _interval(self) -> float:
        return min(self._poll_s, QUICK_POLL_S) if self._trouble else self._poll_s

    def _happened(self) -> None:
        with self._wake:
            self._storm.event(time.monotonic())
            self._wake.notify_all()

    def _feel(self) -> None:
        """Look at the names on the way, and whether events would still be heard."""
        if self._wanted() != self._layout or not all(ear.is_alive() for ear in self._ears):
            self.heard(gone=True)

    def _poll(self) -> None:
        """Look at every file."""
        if self._trouble and time.monotonic() >= self._armed_at + SLOW_POLL_S:
            self._arm()  # perhaps there is room now
        seen = self._look()
        if seen != self._seen or (seen.racy and self._storm.due is None):
            self._happened()
        self._seen = seen

    def _fire(self) -> None:
        with self._wake:
            stale, self._stale = self._stale, False
        if stale or self._wanted() != self._layout:
            self._arm()
        if not self._stopping:
            self._on_change()

    # events

    def _wanted(self) -> "_Layout":
        layout = _Layout()
        for path in sorted({self._path, *self._also}):
            layout.add(path)
        return layout

    def _arm(self) -> None:
        """Watch what must be watched as things are now; all of it anew, because watches die with their inodes."""
        for _ in range(_ROUNDS):
            self._disarm()
            self._layout = self._wanted()
            if not self._events:
                return
            self._armed_at = time.monotonic()
            self._note(self._observed())
            if self._wanted() == self._layout:  # nothing moved while we were at it
                return

    def _note(self, trouble: str) -> None:
        """Say when events end, and when they are back."""
        before, self._trouble = self._trouble, trouble
        if trouble and trouble != before:
            log.warning("source_without_events", path=str(self._path), why=trouble, poll_s=self._interval)
        elif before and not trouble:
            log.info("source_with_events", path=str(self._path))

    def _observed(self) -> str:
        """Start to listen to events, or return why that is not possible."""
        observer: BaseObserver | None = None
        before = set(threading.enumerate())
        try:
            observer = Observer()
            trees = self._layout.outermost()
            for folder in trees:
                observer.schedule(_Heard(self, folder), folder, recursive=True, event_filter=_TELLING)
            for folder, names in self._layout.outside(trees):
                observer.schedule(_Heard(self, folder, names), folder, event_filter=_TELLING)
            observer.start()
            for folder in trees:
                # That a folder further down could not be watched is not told; asking for the last one tells.
                if last := _last_below(folder):
                    observer.schedule(_Heard(self, last), last, event_filter=_TELLING)
        except OSError as error:
            _end(observer)
            return (error.strerror or str(error)).lower()
        self._observer = observer
        self._ears = [each for each in threading.enumerate() if isinstance(each, BaseThread) and each not in before]
        return ""

    def _disarm(self) -> None:
        _end(self._observer)
        self._observer, self._ears = None, []

    # no events

    def _look(self) -> "_Seen":
        now = time.time()
        found = sorted((str(path), entry) for root in {self._path, *self._also} for path, entry in _entries(root))
        return _Seen(
            tuple((path, each.st_mode, each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
                  for path, each in found),
            any(abs(now - each.st_ctime) < RACY_S for _, each in found),
        )  # fmt: skip


@dataclass(slots=True)
class _Layout:
    """Which folders to watch, for the names that matter there."""

    trees: dict[Path, Identity] = field(default_factory=dict)
    """Folders to be watched with all that is below."""
    names: dict[Path, tuple[Identity, set[str]]] = field(default_factory=dict)
    """Folders in which some names matter."""

    def add(self, path: Path) -> None:
        """Add what must be watched to learn of every change at *path*."""
        folder, rest, links = Path("/"), list(path.parts[1:]), 0
        while rest:
            name = rest.pop(0)
            here = folder / name
            found = _lstat(here)
            if found is None:  # it may come
                self._name(folder, name)
                return
            if stat.S_ISLNK(found.st_mode) and links < _LINKS:  # it may be swapped
                links += 1
                self._name(folder, name)
                target = _target(here)
                folder, rest = (Path("/") if target.is_absolute() else folder), [*target.parts, *rest]
                rest = rest[1:] if target.is_absolute() else rest
            else:
                if not rest:  # it may be replaced
                    self._name(folder, name)
                folder = folder.parent if name == ".." else here
        found = _lstat(folder)
        if found and stat.S_ISDIR(found.st_mode):
            self.trees[folder] = (found.st_dev, found.st_ino)

    def _name(self, folder: Path, name: str) -> None:
        found = _lstat(folder)
        if found:
            self.names.setdefault(folder, ((found.st_dev, found.st_ino), set()))[1].add(name)

    def outermost(self) -> list[Path]:
        """Return the trees that are not below another one."""
        return sorted(each for each in self.trees if not self.trees.keys() & set(each.parents))

    def outside(self, trees: list[Path]) -> Iterator[tuple[Path, frozenset[str]]]:
        """Yield the other folders, with the names that matter there."""
        for folder, (_, names) in sorted(self.names.items()):
            if not any(folder.is_relative_to(tree) for tree in trees):
                yield folder, frozenset(names)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found by looking."""

    entries: tuple[tuple[object, ...], ...]
    racy: bool = field(compare=False)


class _Heard(happenings.FileSystemEventHandler):
    """Listens in one folder; for *names* only, if there are any."""

    def __init__(self, watch: FileWatcher, folder: Path, names: frozenset[str] = frozenset()) -> None:
        self._watch, self._folder, self._names = watch, folder, names

    def dispatch(self, event: happenings.FileSystemEvent) -> None:
        """Pass on what matters."""
        paths = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        itself = self._folder in paths
        if not self._names or itself or any(path.name in self._names for path in paths):
            self._watch.heard(gone=itself and isinstance(event, happenings.DirDeletedEvent))


def _end(observer: BaseObserver | None) -> None:
    if observer is not None:
        observer.stop()
        if observer.is_alive():
            observer.join(CLOSING_S)


def _last_below(folder: Path) -> Path | None:
    """Return the folder that a walk below *folder* reaches last, if there is one."""
    last = None
    for root, names, _ in os.walk(folder):
        last = next((each for name in reversed(names) if not (each := Path(root) / name).is_symlink()), last)
    return last


def _entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each file and folder at and below *root*; nothing hidden, and nothing that a link shows from outside."""
    try:
        found, real = root.stat(), root.resolve()
    except (OSError, RuntimeError):
        return
    yield str(root), found
    waiting = [str(root)] if stat.S_ISDIR(found.st_mode) else []
    seen: set[Identity] = set()
    while waiting:
        for entry in _listed(waiting.pop()):
            try:
                found = entry.stat()
                if entry.is_symlink() and not Path(entry).resolve().is_relative_to(real):
                    continue
            except (OSError, RuntimeError):
                continue
            yield entry.path, found
            if stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                waiting.append(entry.path)


def _listed(folder: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (OSError, ValueError):
        return None


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except OSError:
        return Path()
