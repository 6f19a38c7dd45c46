"""Exit reasons of kwok."""

import pytest

from kwokfleet.kwok import exits
from kwokfleet.kwok.exits import ExitReason


@pytest.mark.parametrize(
    ("code", "log_end", "reason"),
    [
        (-9, "", ExitReason.KILLED),
        (1, "Execute exit err=no stages found", ExitReason.CONFIGURATION),
        (1, "dial tcp 127.0.0.1:1: connect: connection refused", ExitReason.AWAY),
        (1, "listen tcp 127.0.0.1:1: bind: address already in use", ExitReason.PORT),
        (2, "panic: assignment to entry in nil map", ExitReason.CRASHED),
        (1, "something else", ExitReason.CRASHED),
    ],
)
def test_the_end_of_the_log_tells_the_reason(code: int, log_end: str, reason: ExitReason) -> None:
    """The exit code of kwok is 1 for every error."""
    assert exits.exit_reason(code, log_end, asked=False) is reason
    assert exits.exit_reason(code, log_end, asked=True) is ExitReason.ASKED
