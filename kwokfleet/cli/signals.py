"""Signals that stop this process.

A handler raises `Stopped` in the main thread. In a destructor or a callback Python discards the exception, so the
handler also records the signal. A handler takes no lock: the interrupted code may hold it.
"""

import signal
import time
from types import FrameType
from typing import NoReturn

from kwokfleet import errors

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal or the connection was closed."""
POLL_S = 0.2
_received: list[int] = []


class Stopped(BaseException):
    """A signal has stopped this process. Not an Exception: only clean-up may catch it."""

    def __init__(self, exit_code: errors.ExitCode) -> None:
        super().__init__(exit_code.name.lower())
        self.exit_code = exit_code


def install_handlers() -> None:
    """Raise `Stopped` on every signal in `STOPPING`."""
    for number in STOPPING:
        signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    for stopping in STOPPING:  # a second Ctrl-C must not interrupt the clean-up
        signal.signal(stopping, signal.SIG_IGN)
    _received.append(number)
    raise Stopped(errors.ExitCode.INTERRUPTED if number == signal.SIGINT else errors.ExitCode.TERMINATED)


def wait_for(*numbers: int) -> None:
    """Wait until one of these signals arrives, or has arrived since the start of the process."""
    for number in numbers:
        signal.signal(number, lambda received, _frame: _received.append(received))
    while not _received:
        time.sleep(POLL_S)
