"""Exit reasons and restart pauses of kwok."""

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


def test_pauses_double_up_to_a_limit_and_a_stable_process_resets_them() -> None:
    """The first two restarts are immediate."""
    record, pauses = exits.RestartRecord(), []
    for _ in range(15):
        record = record.after(ran_s=1)
        pauses.append(record.pause_s)
    assert pauses[:4] == [0, 0, 0.25, 0.5]
    assert pauses[-1] == exits.MAX_PAUSE_S
    assert record.after(ran_s=61).pause_s == 0
    assert record.after(ran_s=61).restarts == 16
