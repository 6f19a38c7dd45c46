"""When time alone asks for something else: sizes, openings, and looking at everything anew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.daemon import next_wakeup


def at(text: str) -> datetime:
    """Return a time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def fleet(**spec: Any) -> fleet_api.Fleet:  # noqa: ANN401  # any part of a file
    """Return a Fleet as a file has it."""
    spec.setdefault("nodePools", [{"name": "pool", "replicas": 1}])
    return fleet_api.Fleet.model_validate(
        {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec}
    )


def scheduled(*entries: dict[str, Any], **spec: Any) -> fleet_api.Fleet:  # noqa: ANN401  # any part of a file
    """Return a Fleet of one pool with a schedule."""
    return fleet(nodePools=[{"name": "pool", "replicas": 1, "schedule": list(entries)}], **spec)


def opening(now: str, *windows: dict[str, str]) -> datetime:
    """Return when windows open."""
    return next_wakeup.opening([fleet_api.Window.model_validate(each) for each in windows], at(now))


BERLIN = {"cron": "0 8 * * *", "timeZone": "Europe/Berlin", "replicas": 9}


@pytest.mark.parametrize(
    ("now", "moment"),
    [
        ("2026-01-15T05:00:00Z", "2026-01-15T07:00:00Z"),  # winter
        ("2026-07-15T05:00:00Z", "2026-07-15T06:00:00Z"),  # summer
        ("2026-03-28T12:00:00Z", "2026-03-29T06:00:00Z"),  # over the change to summer
        ("2026-10-24T12:00:00Z", "2026-10-25T07:00:00Z"),  # and back
    ],
)
def test_a_pool_s_next_size_is_due_by_the_clock_of_its_time_zone(now: str, moment: str) -> None:
    """Eight in the morning is eight in the morning, whatever the season."""
    assert next_wakeup.next_change([scheduled(BERLIN)], at(now)) == at(moment)


def test_a_size_at_an_hour_that_clocks_skip_is_due_right_after_it() -> None:
    """02:30 does not exist on that night; the pool is resized all the same."""
    skipped = {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "replicas": 9}
    assert next_wakeup.next_change([scheduled(skipped)], at("2026-03-29T00:00:00+01:00")) == at(
        "2026-03-29T03:00:00+02:00"
    )


def test_the_first_of_all_moments_counts_and_past_ones_do_not() -> None:
    """Of several Fleets and entries, the earliest one that is still to come."""
    past = {"at": "2026-01-01T00:00:00Z", "replicas": 2}
    soon = {"at": "2026-01-02T00:00:00Z", "replicas": 3}
    later = {"at": "2026-01-03T00:00:00Z", "replicas": 4}
    now = at("2026-01-01T00:00:00Z")
    assert next_wakeup.next_change([scheduled(later), scheduled(past, soon)], now) == at("2026-01-02T00:00:00Z")
    assert next_wakeup.next_change([scheduled(past)], now) is None
    assert next_wakeup.next_change([fleet()], now) is None


def test_a_suspended_fleet_waits_for_no_moment() -> None:
    """Nothing would be done at it."""
    assert next_wakeup.next_change([scheduled(BERLIN, suspend=True)], at("2026-01-01T00:00:00Z")) is None


def test_a_closed_window_is_waited_for_and_an_open_one_is_not() -> None:
    """What waits for the window is done in its first minute."""
    windows = [{"allow": "* 8-20 * * mon-fri", "timeZone": "Europe/Berlin"}]
    friday = at("2026-11-13T20:59:59+01:00")
    assert next_wakeup.next_change([fleet(windows=windows)], friday) is None
    monday = at("2026-11-16T08:00:00+01:00")
    assert next_wakeup.next_change([fleet(windows=windows)], at("2026-11-16T07:59:59+01:00")) == monday


def test_a_window_that_only_denies_opens_when_it_ends() -> None:
    """Also if two of them follow each other."""
    lunch = {"deny": "* 12 * * *"}
    tea = {"deny": "0-14 13 * * *"}
    assert opening("2026-11-16T12:30:40Z", lunch) == at("2026-11-16T13:00:00Z")
    assert opening("2026-11-16T12:30:40Z", lunch, tea) == at("2026-11-16T13:15:00Z")


def test_what_is_denied_is_not_open_though_it_is_allowed() -> None:
    """A denial wins."""
    allowed, denied = {"allow": "* 8-9 * * *"}, {"deny": "* 8 * * *"}
    assert opening("2026-11-16T07:00:00Z", allowed, denied) == at("2026-11-16T09:00:00Z")


def test_a_window_opens_by_the_clock_on_the_wall_on_days_that_clocks_change() -> None:
    """One that begins in the skipped hour opens where the clock goes on; one in the repeated hour at its first."""
    night = {"allow": "* 2-4 * * *", "timeZone": "Europe/Berlin"}
    assert opening("2026-03-29T00:30:00Z", night) == at("2026-03-29T03:00:00+02:00")
    assert opening("2026-10-24T22:00:00Z", night) == at("2026-10-25T02:00:00+02:00")


def test_a_window_that_is_far_away_is_looked_for_again_a_day_later() -> None:
    """Nobody sleeps through it, and nobody counts minutes for years."""
    assert opening("2026-11-16T00:00:00Z", {"allow": "0 8 29 2 *"}) == at("2026-11-17T00:00:00Z")
    assert opening("2028-02-28T12:00:00Z", {"allow": "0 8 29 2 *"}) == at("2028-02-29T08:00:00Z")


def test_everything_is_looked_at_anew_about_as_often_as_asked_and_not_by_all_at_once() -> None:
    """Within five percent, differently for each daemon and each time."""
    interval = timedelta(minutes=10)
    waits = [next_wakeup.resync(interval, f"daemon-{name}", number) for name in range(50) for number in range(50)]
    assert all(interval * 0.95 <= each <= interval * 1.05 for each in waits)
    assert len(set(waits)) == len(waits)
    assert next_wakeup.resync(interval, "daemon-1", 7) == next_wakeup.resync(interval, "daemon-1", 7)
