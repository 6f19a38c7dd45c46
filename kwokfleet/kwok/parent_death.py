"""Run another program that dies with its parent: `python parent_death.py PARENT PROGRAM ARGUMENTS…`.

A supervisor that is killed cannot end its children; the kernel can, if the child asks for that.
Asking between fork and exec is not safe in a process with threads, so this program asks, and then
becomes the other one. It imports nothing of kwokfleet: it must start quickly.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Become *command*, bound to the life of *parent*."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
