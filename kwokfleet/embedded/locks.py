"""File locks between processes. The kernel releases a lock when its holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kwokfleet import errors

POLL_S = 0.1


@contextmanager
def exclusive(path: Path, *, deadline_s: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file *path*. If another process holds it, call *on_wait* with its name, and wait.

    A holder may remove the file before the release (`cluster.down` removes everything). A waiting process then has
    the lock of a removed file, detects that, and tries again.
    """
    until = time.monotonic() + deadline_s
    descriptor = _acquire(path, until, on_wait)
    while not _is_same_file(path, descriptor):
        os.close(descriptor)
        descriptor = _acquire(path, until, on_wait)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path, until: float, on_wait: Callable[[str], None]) -> int:
    descriptor = _open(path)
    reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
            if not reported:
                on_wait(f"process {holder}")
                reported = True
            if time.monotonic() > until:
                os.close(descriptor)
                raise errors.DeadlineError(
                    f"{path} is still locked by process {holder}", hint=f"wait until it ends, or end it: kill {holder}"
                ) from None
            time.sleep(POLL_S)
        else:
            return descriptor


def _open(path: Path) -> int:
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a holder has removed the folder
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_same_file(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
