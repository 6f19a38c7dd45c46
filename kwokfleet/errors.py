"""Every deliberate error of kwokfleet, and its exit code.

`str(error)` is one sentence: what happened and where. `error.hint` is the next step for the user. Expected
trouble (a wrong line in a file, a withheld change) is data, not an exception. An exception stops the operation.

    KwokfleetError
    ├── InputError       2  invalid flag, argument, setting or fleet file
    ├── ClusterError     4  cluster unreachable or unhealthy, or a rejected request
    │   ├── UnreachableError    no response; a retry may help
    │   └── NotLeadingError     another daemon is the leader; writes are not allowed
    ├── NotOursError     5  an object of another owner, or damaged state, is not touched
    ├── HostError        6  the machine lacks a compiler, disk space, network or port
    └── DeadlineError    7  an operation took too long
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit code of a `kwokfleet` command. The README shows the same table."""

    DONE = 0
    """Success; for `diff`, no differences."""
    NO = 1
    """The answer is no: there are differences, a gate failed, the cluster is not running."""
    INPUT = 2
    WITHHELD = 3
    """Nothing was changed, because the plan needs an approval."""
    CLUSTER = 4
    NOT_OURS = 5
    HOST = 6
    DEADLINE = 7
    BUG = 70
    """An unexpected exception (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    TERMINATED = 143


class KwokfleetError(Exception):
    """Base class of all deliberate errors."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(KwokfleetError):
    """A flag, argument, setting or fleet file is invalid."""

    exit_code = ExitCode.INPUT


class ClusterError(KwokfleetError):
    """The cluster is unreachable or unhealthy, or rejected a request."""

    exit_code = ExitCode.CLUSTER
    status = 0
    """The HTTP status of the response; 0 without one."""


class UnreachableError(ClusterError):
    """The API server did not respond; a retry may help."""


class NotLeadingError(ClusterError):
    """Another daemon is the leader; writes are not allowed."""


class NotOursError(KwokfleetError):
    """An object of another owner, or damaged state, is not touched."""

    exit_code = ExitCode.NOT_OURS


class HostError(KwokfleetError):
    """The machine lacks a compiler, disk space, network or port."""

    exit_code = ExitCode.HOST


class DeadlineError(KwokfleetError):
    """An operation took too long."""

    exit_code = ExitCode.DEADLINE
