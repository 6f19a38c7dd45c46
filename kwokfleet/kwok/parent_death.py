"""Runs a program that dies with its parent: `python parent_death.py PARENT PROGRAM ARGUMENTS…`.

A killed supervisor cannot stop its children, but the kernel can, if the child requests it. A request between fork
and exec is not safe in a process with threads. So this program makes the request and then becomes the other one.
It imports nothing of kwokfleet, to start quickly.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(arguments: list[str]) -> list[str]:
    """Return the command line of a program that dies with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *arguments]


def main(parent: int, arguments: list[str]) -> None:
    """Become the program *arguments*; the kernel kills it when *parent* dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request
            sys.exit(1)
    os.execv(arguments[0], arguments)  # noqa: S606  # no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
