"""Signals that ask this process to stop.

By default one raises `Stopped`, wherever the main thread is. That may be inside of something that takes no
exception from anybody, a destructor or a callback, and then it is lost; so it is noted as well. A
handler takes no lock: whoever it interrupts may hold it.
"""

import signal
import time
from types import FrameType
from typing import NoReturn

from kwokfleet import errors

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal or the connection was closed."""
LOOK_S = 0.2
_asked: list[int] = []


class Stopped(BaseException):
    """A signal asked this process to stop. Not an Exception: nothing but clean-up may catch it."""

    def __init__(self, exit_code: errors.ExitCode) -> None:
        super().__init__(exit_code.name.lower())
        self.exit_code = exit_code


def install_handlers() -> None:
    """Let signals end whatever is done, from now on."""
    for number in STOPPING:
        signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    for each in STOPPING:  # once is enough: an impatient second Ctrl-C must not stop the clean-up
        signal.signal(each, signal.SIG_IGN)
    _asked.append(number)
    raise Stopped(errors.ExitCode.INTERRUPTED if number == signal.SIGINT else errors.ExitCode.TERMINATED)


def wait_for(*numbers: int) -> None:
    """Wait until one of some signals comes, or has come since the process began."""
    for number in numbers:
        signal.signal(number, lambda caught, _frame: _asked.append(caught))
    while not _asked:
        time.sleep(LOOK_S)
