"""Fleet files on disk. A tree is read once; each file that cannot be read becomes a Problem.

Two mounted layouts need care. A ConfigMap volume shows each file as a symlink through `..data` into a
hidden folder. git-sync shows a checkout as a symlink to a hidden or sibling folder. Both are read through
the visible names, and a file with two names is read once.
"""

import errno
import hashlib
import os
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors
from kwokfleet.documents.problems import Problem
from kwokfleet.source import revision

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_REFERENCE_BYTES = 64 * 1024 * 1024
"""Traces and node lists may be large: JSON and CSV are not parsed as YAML."""
MAX_TREE_BYTES = 64 * 1024 * 1024
MAX_FILES = 10_000
PAUSE_S = 0.05
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class File:
    """One file's text."""

    path: str
    """For display: as the user wrote it."""
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """A tree of files at one moment."""

    files: tuple[File, ...]
    problems: tuple[Problem, ...]
    digest: str
    """Of names and contents; equal digests mean equal trees."""


def read(path: Path) -> FileSnapshot:
    """Read a file, every YAML and JSON file below a folder, or, for `-`, standard input."""
    if str(path) == STANDARD_INPUT:
        return _standard_input()
    root = _resolved(path)
    reader = _TreeReader(root if root.is_dir() else root.parent)
    if root.is_dir():
        reader.read_folder(path, root)
    else:
        reader.read_file(path, root)
    tree_files = sorted(reader.files, key=lambda file: file.path)
    problems = tuple(sorted(reader.problems))
    # Relative to the tree: the same files in a ConfigMap volume have the same digest.
    top = path if root.is_dir() else path.parent
    digest = revision.tree_digest((os.path.relpath(file.path, top), file.digest) for file in tree_files)
    if problems:
        text = "".join(map(str, problems)).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(digest.encode() + text).hexdigest()
    return FileSnapshot(tuple(tree_files), problems, digest)


def _standard_input() -> FileSnapshot:
    content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    name, reader = Path("<stdin>"), _TreeReader(Path.cwd())
    if len(content) > MAX_FILE_BYTES:
        reader.add(name, f"has more than {MAX_FILE_BYTES >> 20} MiB", "split it", "file-too-large")
    else:
        reader.add_content(name, content)
    return FileSnapshot(tuple(reader.files), tuple(reader.problems), hashlib.sha256(content).hexdigest())


def read_stable(path: Path, *, pause_s: float = PAUSE_S, timeout_s: float = 5.0) -> FileSnapshot:
    """Read a tree until two readings, some time apart, agree: nobody is in the middle of writing it."""
    deadline = time.monotonic() + timeout_s
    last = read(path)
    while True:
        time.sleep(pause_s)
        snapshot = read(path)
        if snapshot.digest == last.digest:
            return snapshot
        if time.monotonic() > deadline:
            raise errors.DeadlineError(
                f"{path} was still being written after {timeout_s:g} s",
                hint="write files elsewhere and move them into place, or wait until nothing writes there",
            )
        last = snapshot


def boundary(path: Path) -> Path:
    """Return the folder that files may refer into: the git checkout around *path*, else the folder above it."""
    root = Path.cwd() if str(path) == STANDARD_INPUT else _resolved(path)
    folder = root if root.is_dir() else root.parent
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return folder.parent


def read_reference(within: Path, referrer: str, name: str) -> File | str:
    """Return the file that *referrer* means by *name*, or a sentence that says why it cannot be read."""
    if Path(name).is_absolute():
        return "must be a path relative to this file"
    target = Path(referrer).parent / name
    shown = os.path.normpath(target)
    try:
        real = target.resolve(strict=True)
        if not real.is_relative_to(within):
            return f"{shown} is outside of {within.name}/, the folder that these files may refer to"
        content = _content(real, MAX_REFERENCE_BYTES)
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a NUL in the name
        return f"{shown!r} cannot be read ({_reason(error)})"
    if isinstance(content, str):
        return f"{shown} {content}"
    text = _decoded(content)
    if isinstance(text, tuple):
        return f"{shown} is not UTF-8 (line {text[0]})"
    return File(shown, text, hashlib.sha256(content).hexdigest())


def reference_path(within: Path, referrer: str, name: str) -> str | None:
    """Return the path that *referrer* means by *name*; None if it is out of *within*."""
    target = Path(referrer).parent / name
    try:
        allowed = not Path(name).is_absolute() and target.resolve().is_relative_to(within)
    except (OSError, RuntimeError, ValueError):
        return None
    return os.path.normpath(target) if allowed else None


def _resolved(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise errors.InputError(
            f"cannot read {path}: {_reason(error)}", hint="name a fleet file or a folder of fleet files"
        ) from error


class _TreeReader:
    """Reads all fleet files of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[File] = []
        self.problems: list[Problem] = []
        self.seen: set[Path] = set()
        self.bytes = 0

    def read_folder(self, shown: Path, real: Path) -> None:
        """Read a folder without its hidden entries."""
        if real in self.seen:
            return
        self.seen.add(real)
        try:
            names = sorted(entry.name for entry in real.iterdir())
        except OSError as error:
            self.add(shown, f"cannot be listed ({_reason(error)})", "change its permissions")
            return
        for name in names:
            if not name.startswith("."):
                self.read_entry(shown / name, real / name)

    def read_entry(self, shown: Path, path: Path) -> None:
        """Read a file or folder, or the target of a symlink."""
        try:
            real = path.resolve(strict=True)
            mode = real.stat().st_mode
        except (OSError, RuntimeError) as error:
            if shown.suffix in SUFFIXES:
                self.add(shown, f"cannot be read ({_reason(error)})", "fix or remove it")
            return
        if not real.is_relative_to(self.root):
            if stat.S_ISDIR(mode) or shown.suffix in SUFFIXES:
                self.add(shown, "is a symlink out of the tree", "copy its target into the tree", "outside")
        elif stat.S_ISDIR(mode):
            self.read_folder(shown, real)
        elif shown.suffix in SUFFIXES:
            self.read_file(shown, real)

    def read_file(self, shown: Path, real: Path) -> None:
        """Read a file, unless it was read under another name."""
        if real in self.seen:
            return
        self.seen.add(real)
        if len(self.files) >= MAX_FILES or self.bytes > MAX_TREE_BYTES:
            if not any(problem.rule == "tree-too-large" for problem in self.problems):
                what = f"the tree has more than {MAX_FILES:,} files or {MAX_TREE_BYTES >> 20} MiB"
                self.add(shown, what, "point at the folder with the fleet files only", "tree-too-large")
            return
        try:
            content = _content(real, MAX_FILE_BYTES)
        except OSError as error:
            self.add(shown, f"cannot be read ({_reason(error)})", "change its permissions")
            return
        if isinstance(content, str):
            self.add(shown, content, "split it, or move it out of the tree", "file-too-large")
        else:
            self.add_content(shown, content)

    def add_content(self, shown: Path, content: bytes) -> None:
        """Add a file, or a Problem if it is not UTF-8."""
        self.bytes += len(content)
        text = _decoded(content)
        if isinstance(text, tuple):
            self.problems.append(Problem(str(shown), *text, "", "is not UTF-8", "save it as UTF-8", rule="not-utf-8"))
        else:
            self.files.append(File(str(shown), text, hashlib.sha256(content).hexdigest()))

    def add(self, shown: Path, what: str, hint: str, rule: str = "unreadable") -> None:
        """Add a Problem."""
        name = os.fsencode(shown).decode("utf-8", "replace")
        self.problems.append(Problem(name, 1, 1, "", what, hint, rule=rule))


def _content(path: Path, limit: int) -> bytes | str:
    """Return a file's bytes, or why it is too large."""
    # Without O_NONBLOCK, opening a named pipe blocks until it has a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            return f"has {status.st_size / 2**20:.1f} MiB; the limit is {limit >> 20} MiB"
        return stream.read(limit + 1)


def _decoded(content: bytes) -> str | tuple[int, int]:
    """Return the text, or the line and column of the first byte that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        return before.count(b"\n") + 1, error.start - before.rfind(b"\n")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return "the symlink points at itself" if isinstance(error, RuntimeError) else str(error)


def write(path: Path, text: str) -> None:
    """Replace a file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve() if path.is_symlink() else path
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8", newline="\n")
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise errors.HostError(
            f"cannot write {path}: {_reason(error)}", hint="check the permissions of its folder"
        ) from error
