"""The event log of a daemon."""

from datetime import UTC, datetime

from kwokfleet.daemon import event_log
from kwokfleet.daemon.snapshot import Pass

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)


def test_the_last_ten_passes_are_stored() -> None:
    """The newest is the last."""
    log = event_log.EventLog()
    for number in range(13):
        log.record_pass(Pass(NOW, f"{number}", 0.1))
    assert [finished.why for finished in log.passes] == [str(number) for number in range(3, 13)]
