"""Every error kwokfleet raises on purpose, and the exit code each one ends with.

An error is one sentence that says what happened and where (`str(error)`), and one that says
what to do next (`error.hint`). Trouble that is expected in normal work (a wrong line in a file,
a withheld change) is data, not an exception; exceptions stop what was being done.

    KwokfleetError
    ├── InputError       2  a flag, argument, setting or fleet file that cannot be used
    ├── ClusterError     4  the cluster is out of reach, unhealthy, or refused a request
    │   ├── UnreachableError    no answer at all: it may be there again in a moment
    │   └── NotLeadingError     another daemon leads: nothing may be written
    ├── NotOursError     5  refused to touch something kwokfleet did not make, or that is damaged
    ├── HostError        6  this machine lacks something: compiler, disk space, network, port
    └── DeadlineError    7  something took longer than it was given
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a `kwokfleet` command tells the shell. The README shows the same table."""

    DONE = 0
    """Done; for `diff`, nothing differs."""
    NO = 1
    """The answer is no: there are differences, a gate failed, the cluster is not running."""
    INPUT = 2
    WITHHELD = 3
    """Nothing was done because the plan needs an approval."""
    CLUSTER = 4
    NOT_OURS = 5
    HOST = 6
    DEADLINE = 7
    BUG = 70
    """An exception nobody foresaw (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    TERMINATED = 143


class KwokfleetError(Exception):
    """The root: `except KwokfleetError` catches all that is raised on purpose, and no bug."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class InputError(KwokfleetError):
    """A flag, argument, setting or fleet file that cannot be used."""

    exit_code = ExitCode.INPUT


class ClusterError(KwokfleetError):
    """The cluster is out of reach, unhealthy, or refused a request."""

    exit_code = ExitCode.CLUSTER
    status = 0
    """What the API server answered; 0 if it is not about an answer."""


class UnreachableError(ClusterError):
    """The API server gave no answer: it may be there again in a moment."""


class NotLeadingError(ClusterError):
    """Another daemon leads: nothing may be written."""


class NotOursError(KwokfleetError):
    """Refused to touch something that kwokfleet did not make, or that is damaged."""

    exit_code = ExitCode.NOT_OURS


class HostError(KwokfleetError):
    """This machine lacks something: a compiler, disk space, the network, a port."""

    exit_code = ExitCode.HOST


class DeadlineError(KwokfleetError):
    """Something took longer than it was given."""

    exit_code = ExitCode.DEADLINE
