"""Every error kwokfleet raises on purpose, and the exit code each one ends with.

An error is one sentence that says what happened and where (`str(error)`), and one that says
what to do next (`error.hint`). Trouble that is expected in normal work (a wrong line in a file,
a withheld change) is data, not an exception; exceptions stop what was being done.

    KwokfleetError
    ├── UsageError       2  a flag, argument or setting that cannot be used
    ├── FilesError       4  problems in fleet files
    ├── ClusterError     5  the cluster is out of reach, unhealthy, or refused a request
    ├── NotOursError     6  refused to touch something kwokfleet did not make, or that is damaged
    ├── HostError        7  this machine lacks something: compiler, disk space, network, port
    └── DeadlineError    8  something took longer than it was given
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a `kwokfleet` command tells the shell. The README shows the same table."""

    DONE = 0
    """Done; for `diff`, nothing differs."""
    NO = 1
    """The answer is no: there are differences, a gate failed, the cluster is not running."""
    USAGE = 2
    WITHHELD = 3
    """Nothing was done because the plan needs an approval."""
    FILES = 4
    CLUSTER = 5
    NOT_OURS = 6
    HOST = 7
    DEADLINE = 8
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


class UsageError(KwokfleetError):
    """A flag, argument or setting that cannot be used."""

    exit_code = ExitCode.USAGE


class FilesError(KwokfleetError):
    """Problems in fleet files that leave nothing to go on with."""

    exit_code = ExitCode.FILES


class ClusterError(KwokfleetError):
    """The cluster is out of reach, unhealthy, or refused a request."""

    exit_code = ExitCode.CLUSTER


class NotOursError(KwokfleetError):
    """Refused to touch something that kwokfleet did not make, or that is damaged."""

    exit_code = ExitCode.NOT_OURS


class HostError(KwokfleetError):
    """This machine lacks something: a compiler, disk space, the network, a port."""

    exit_code = ExitCode.HOST


class DeadlineError(KwokfleetError):
    """Something took longer than it was given."""

    exit_code = ExitCode.DEADLINE
