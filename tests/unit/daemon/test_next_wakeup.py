"""Times at which a pass is due: scheduled sizes, windows, and resyncs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.daemon import next_wakeup


def at(text: str) -> datetime:
    """Return a time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def fleet(**spec: Any) -> fleet_api.Fleet:  # noqa: ANN401  # any part of a file
    """Return a Fleet."""
    spec.setdefault("nodePools", [{"name": "pool", "replicas": 1}])
    return fleet_api.Fleet.model_validate(
        {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec}
    )


def scheduled(*entries: dict[str, Any], **spec: Any) -> fleet_api.Fleet:  # noqa: ANN401  # any part of a file
    """Return a Fleet of one pool with a schedule."""
    return fleet(nodePools=[{"name": "pool", "replicas": 1, "schedule": list(entries)}], **spec)


def opening(now: str, *windows: dict[str, str]) -> datetime:
    """Return the next opening of windows."""
    return next_wakeup.opening([fleet_api.Window.model_validate(window) for window in windows], at(now))


BERLIN = {"cron": "0 8 * * *", "timeZone": "Europe/Berlin", "replicas": 9}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-01-15T05:00:00Z", "2026-01-15T07:00:00Z"),  # winter
        ("2026-07-15T05:00:00Z", "2026-07-15T06:00:00Z"),  # summer
        ("2026-03-28T12:00:00Z", "2026-03-29T06:00:00Z"),  # over the change to summer
        ("2026-10-24T12:00:00Z", "2026-10-25T07:00:00Z"),  # and back
    ],
)
def test_a_scheduled_size_follows_its_time_zone(now: str, expected: str) -> None:
    """08:00 local time, in summer and winter."""
    assert next_wakeup.next_change([scheduled(BERLIN)], at(now)) == at(expected)


def test_a_size_in_the_skipped_hour_is_due_right_after_it() -> None:
    """02:30 does not exist in that night."""
    skipped = {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "replicas": 9}
    assert next_wakeup.next_change([scheduled(skipped)], at("2026-03-29T00:00:00+01:00")) == at(
        "2026-03-29T03:00:00+02:00"
    )


def test_the_earliest_future_time_counts() -> None:
    """Of all Fleets and schedule entries."""
    past = {"at": "2026-01-01T00:00:00Z", "replicas": 2}
    soon = {"at": "2026-01-02T00:00:00Z", "replicas": 3}
    later = {"at": "2026-01-03T00:00:00Z", "replicas": 4}
    now = at("2026-01-01T00:00:00Z")
    assert next_wakeup.next_change([scheduled(later), scheduled(past, soon)], now) == at("2026-01-02T00:00:00Z")
    assert next_wakeup.next_change([scheduled(past)], now) is None
    assert next_wakeup.next_change([fleet()], now) is None


def test_a_suspended_fleet_has_no_next_change() -> None:
    """Its schedule does not count."""
    assert next_wakeup.next_change([scheduled(BERLIN, suspend=True)], at("2026-01-01T00:00:00Z")) is None


def test_the_opening_of_a_closed_window_is_a_change() -> None:
    """An open window is not."""
    windows = [{"allow": "* 8-20 * * mon-fri", "timeZone": "Europe/Berlin"}]
    friday = at("2026-11-13T20:59:59+01:00")
    assert next_wakeup.next_change([fleet(windows=windows)], friday) is None
    monday = at("2026-11-16T08:00:00+01:00")
    assert next_wakeup.next_change([fleet(windows=windows)], at("2026-11-16T07:59:59+01:00")) == monday


def test_a_deny_window_opens_at_its_end() -> None:
    """Also if another one follows."""
    lunch = {"deny": "* 12 * * *"}
    tea = {"deny": "0-14 13 * * *"}
    assert opening("2026-11-16T12:30:40Z", lunch) == at("2026-11-16T13:00:00Z")
    assert opening("2026-11-16T12:30:40Z", lunch, tea) == at("2026-11-16T13:15:00Z")


def test_deny_wins_over_allow() -> None:
    """The window opens when only allow matches."""
    allowed, denied = {"allow": "* 8-9 * * *"}, {"deny": "* 8 * * *"}
    assert opening("2026-11-16T07:00:00Z", allowed, denied) == at("2026-11-16T09:00:00Z")


def test_a_window_opens_by_local_time_when_clocks_change() -> None:
    """In the skipped hour it opens after it; in the repeated hour, the first time."""
    night = {"allow": "* 2-4 * * *", "timeZone": "Europe/Berlin"}
    assert opening("2026-03-29T00:30:00Z", night) == at("2026-03-29T03:00:00+02:00")
    assert opening("2026-10-24T22:00:00Z", night) == at("2026-10-25T02:00:00+02:00")


def test_a_distant_opening_is_searched_again_after_a_day() -> None:
    """The search does not step through years of minutes."""
    assert opening("2026-11-16T00:00:00Z", {"allow": "0 8 29 2 *"}) == at("2026-11-17T00:00:00Z")
    assert opening("2028-02-28T12:00:00Z", {"allow": "0 8 29 2 *"}) == at("2028-02-29T08:00:00Z")


def test_resyncs_have_jitter() -> None:
    """Five percent, different for each daemon and each resync."""
    interval = timedelta(minutes=10)
    waits = [next_wakeup.resync(interval, f"daemon-{name}", number) for name in range(50) for number in range(50)]
    assert all(interval * 0.95 <= wait <= interval * 1.05 for wait in waits)
    assert len(set(waits)) == len(waits)
    assert next_wakeup.resync(interval, "daemon-1", 7) == next_wakeup.resync(interval, "daemon-1", 7)
