"""Identity of this process in leader election, and detection of dead holders on this machine."""

import hashlib
import os
import socket
from pathlib import Path

import psutil

from kwokfleet import settings


def process_identity() -> str:
    """Return a unique identity; a restarted container gets the same one, and continues at once."""
    return f"{settings.pod_name() or socket.gethostname()}_{_process_namespace()}_{os.getpid()}"


def _process_namespace() -> str:
    """Return a digest of the kernel's boot id and the PID namespace: a PID is unique only within both."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return hashlib.sha256(f"{boot_id}{Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    except OSError:  # not Linux: no holder is ever considered dead
        return os.urandom(4).hex()


def is_dead_process(holder: str) -> bool:
    """Return whether the holder of a Lease is a process of this machine that has ended."""
    host, _, pid = holder.rpartition("_")
    return host == process_identity().rpartition("_")[0] and pid.isdigit() and not psutil.pid_exists(int(pid))
