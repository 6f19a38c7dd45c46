"""One at a time, across processes: a lock that the kernel frees when its holder dies."""

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
    """Hold the lock file *path*; while somebody else does, tell *on_wait* who, and wait.

    A holder may remove the file before it lets go (`cluster.down` leaves nothing behind): whoever
    waited then holds a lock on a file nobody else can see, notices that, and tries again.
    """
    until = time.monotonic() + deadline_s
    descriptor = _acquire(path, until, on_wait)
    while not _is_still(path, descriptor):
        os.close(descriptor)
        descriptor = _acquire(path, until, on_wait)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Tell whether somebody holds the lock now."""
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
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
            if not told:
                on_wait(f"process {holder}")
                told = True
            if time.monotonic() > until:
                os.close(descriptor)
                raise errors.DeadlineError(
                    f"{path} is still locked by process {holder}",
                    hint=f"wait for it, or end it: kill {holder}",
                ) from None
            time.sleep(POLL_S)
        else:
            return descriptor


def _open(path: Path) -> int:
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a holder that leaves nothing behind was faster: make it again
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_still(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
