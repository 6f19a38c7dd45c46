"""Who this process is to other daemons, and whether one of them is no more."""

import hashlib
import os
import socket
from pathlib import Path

import psutil

from kwokfleet import settings


def process_identity() -> str:
    """Return a name that no other daemon has: a container that is started again has the same, and goes on at once."""
    return f"{settings.pod_name() or socket.gethostname()}_{_realm()}_{os.getpid()}"


def _realm() -> str:
    """Return what tells the processes that this one can see from all others: the kernel's life, and our part of it."""
    parts = []
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(
                str(Path(name).readlink()) if name.startswith("/proc/self") else Path(name).read_text(encoding="ascii")
            )
        except OSError:  # another system: nobody is ever taken for dead there
            return os.urandom(4).hex()
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:8]


def is_dead_process(holder: str) -> bool:
    """Return whether a Lease is held by a process of this machine that is no more: nobody need wait for its end."""
    theirs, _, pid = holder.rpartition("_")
    return theirs == process_identity().rpartition("_")[0] and pid.isdigit() and not psutil.pid_exists(int(pid))
