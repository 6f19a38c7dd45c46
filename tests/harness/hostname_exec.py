"""Runs a program under another host name: `hostname_exec.py PARENT NAME COMMAND…`.

The host name of a pod is the pod's name, and kwok uses it as its identity. The program ends with its parent process.
Without root, it runs in a new user namespace.
"""

import ctypes
import os
import signal
import socket
import sys

NEW_HOST_NAME, NEW_USERS = 0x04000000, 0x10000000
_PR_SET_PDEATHSIG = 1


def main(parent: int, name: str, command: list[str]) -> None:
    """Become *command*."""
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    if library.unshare(NEW_HOST_NAME) and library.unshare(NEW_USERS | NEW_HOST_NAME):
        sys.exit(f"cannot set the host name {name}: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(name)
    os.execv(command[0], command)  # noqa: S606  # without a shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
