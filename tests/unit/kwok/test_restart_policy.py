"""Pauses before the restart of kwok."""

from kwokfleet.kwok import restart_policy


def test_pauses_double_up_to_a_limit_and_a_stable_process_resets_them() -> None:
    """The first two restarts are immediate."""
    record, pauses = restart_policy.RestartRecord(), []
    for _ in range(15):
        record = record.after(ran_s=1)
        pauses.append(record.pause_s)
    assert pauses[:4] == [0, 0, 0.25, 0.5]
    assert pauses[-1] == restart_policy.MAX_PAUSE_S
    assert record.after(ran_s=61).pause_s == 0
    assert record.after(ran_s=61).restarts == 16
