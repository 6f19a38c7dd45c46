"""Scheduled pool sizes, change windows and Runs."""

from datetime import UTC, datetime, timedelta

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import wave as wave_api
from kwokfleet.api.node_pool import NodePool
from kwokfleet.render import cron, schedule


def at(text: str) -> datetime:
    """Return a time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def start(**fields: str) -> wave_api.Start:
    """Return the start of a Wave."""
    return wave_api.Start.model_validate(fields)


OFFICE = NodePool.model_validate(
    {
        "name": "office",
        "replicas": 50,
        "schedule": [
            {"cron": "0 8 * * mon-fri", "timeZone": "Europe/Berlin", "replicas": 80},
            {"cron": "0 20 * * *", "timeZone": "Europe/Berlin", "replicas": 10},
        ],
    }
)


@pytest.mark.parametrize(
    ("now", "replicas"),
    [
        ("2026-11-16T07:59:59+01:00", 10),
        ("2026-11-16T08:00:00+01:00", 80),
        ("2026-11-16T19:59:59+01:00", 80),
        ("2026-11-16T20:00:00+01:00", 10),
        ("2026-11-15T12:00:00+01:00", 10),
        ("2026-07-01T06:00:00+00:00", 80),
    ],
)
def test_a_pool_follows_its_schedule(now: str, replicas: int) -> None:
    """The latest entry applies, in its time zone, in summer and winter."""
    assert schedule.scheduled_replicas(OFFICE, at(now)) == replicas


def test_replicas_apply_until_the_first_entry() -> None:
    """A future entry has no effect yet."""
    pool = NodePool.model_validate(
        {"name": "a", "replicas": 5, "schedule": [{"at": "2027-01-01T00:00:00Z", "replicas": 9}]}
    )
    assert schedule.scheduled_replicas(pool, at("2026-12-31T23:59:59Z")) == 5
    assert schedule.scheduled_replicas(pool, at("2027-01-01T00:00:00Z")) == 9
    assert schedule.max_replicas(pool) == 9


def test_sunday_is_zero_and_seven() -> None:
    """Weekdays count as in crontab(5), not from Monday."""
    for sunday in ("0", "7", "sun"):
        fired = cron.last_fire_time(f"0 0 * * {sunday}", "UTC", at("2026-11-18T12:00:00Z"))
        assert fired == at("2026-11-15T00:00:00Z")


def test_a_skipped_local_time_fires_after_the_gap() -> None:
    """02:30 does not exist on the last Sunday of March; the Run is not lost."""
    begin = at("2026-03-28T12:00:00+01:00")
    runs = list(
        schedule.runs_between(
            start(cron="30 2 * * *", timeZone="Europe/Berlin"), begin, begin, begin + timedelta(days=2)
        )
    )
    assert [run.start for run in runs] == [at("2026-03-29T03:00:00+02:00"), at("2026-03-30T02:30:00+02:00")]


def test_a_repeated_local_time_fires_once() -> None:
    """02:30 exists twice on the last Sunday of October."""
    begin = at("2026-10-24T12:00:00+02:00")
    runs = list(
        schedule.runs_between(
            start(cron="30 2 * * *", timeZone="Europe/Berlin"), begin, begin, begin + timedelta(days=2)
        )
    )
    assert len(runs) == 2


def test_run_names_depend_only_on_their_time() -> None:
    """A later computation gives the same names."""
    anchor = at("2026-01-01T00:00:00Z")
    all_runs = list(
        schedule.runs_between(start(every="10m"), anchor, anchor - timedelta(1), anchor + timedelta(hours=1))
    )
    later_runs = list(
        schedule.runs_between(start(every="10m"), anchor, anchor + timedelta(minutes=25), anchor + timedelta(hours=1))
    )
    assert [run.name for run in all_runs] == ["0", "1", "2", "3", "4", "5", "6"]
    assert later_runs == all_runs[3:]
    cron_runs = list(schedule.runs_between(start(cron="0 * * * *"), anchor, anchor, anchor + timedelta(hours=5)))
    assert (
        list(
            schedule.runs_between(
                start(cron="0 * * * *"), anchor, anchor + timedelta(hours=3), anchor + timedelta(hours=5)
            )
        )
        == cron_runs[3:]
    )


def test_after_and_at_give_one_run() -> None:
    """`after` counts from when the Wave was first seen."""
    anchor = at("2026-01-01T00:00:00Z")
    once = list(schedule.runs_between(start(after="30s"), anchor, anchor - timedelta(1), anchor + timedelta(1)))
    assert [(run.start, run.name) for run in once] == [(anchor + timedelta(seconds=30), "0")]
    assert not list(
        schedule.runs_between(start(after="30s"), anchor, anchor + timedelta(seconds=30), anchor + timedelta(1))
    )
    assert list(schedule.runs_between(start(at="2026-01-01T00:00:00Z"), anchor, anchor - timedelta(1), anchor))


def test_a_missed_run_starts_only_with_missed_run() -> None:
    """Only the latest one; a Run on time always starts."""
    anchor, grace = at("2026-01-01T00:00:00Z"), timedelta(minutes=1)
    now = anchor + timedelta(minutes=55)
    assert [
        run.name for run in schedule.due_runs(start(every="10m", missed="run"), anchor, anchor, now, grace=grace)
    ] == ["5"]
    assert schedule.due_runs(start(every="10m", missed="skip"), anchor, anchor, now, grace=grace) == []
    on_time = schedule.due_runs(
        start(every="10m", missed="skip"), anchor, anchor, anchor + timedelta(minutes=50, seconds=30), grace=grace
    )
    assert [run.name for run in on_time] == ["5"]


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-11-16T07:59:59+01:00", False),
        ("2026-11-16T08:00:00+01:00", True),
        ("2026-11-16T20:59:59+01:00", True),
        ("2026-11-16T21:00:00+01:00", False),
        ("2026-11-15T12:00:00+01:00", False),
        ("2026-11-16T12:30:00+01:00", False),
    ],
)
def test_windows_allow_and_deny_changes(now: str, is_open: bool) -> None:  # noqa: FBT001  # a column of the table
    """Deny has precedence over allow."""
    windows = [
        fleet_api.Window.model_validate({"allow": "* 8-20 * * mon-fri", "timeZone": "Europe/Berlin"}),
        fleet_api.Window.model_validate({"deny": "* 12 * * *", "timeZone": "Europe/Berlin"}),
    ]
    assert schedule.is_open(windows, at(now)) is is_open


def test_a_window_is_open_in_both_repeated_hours() -> None:
    """Windows use local time."""
    windows = [fleet_api.Window.model_validate({"allow": "* 2 * * *", "timeZone": "Europe/Berlin"})]
    assert schedule.is_open(windows, at("2026-10-25T02:30:00+02:00"))
    assert schedule.is_open(windows, at("2026-10-25T02:30:00+01:00"))


def test_without_windows_changes_are_always_allowed() -> None:
    """Windows are optional."""
    assert schedule.is_open([], at("2026-01-01T00:00:00Z"))


@pytest.mark.parametrize("now", ["00:29", "00:30", "00:59", "01:00", "01:15", "01:29", "01:30", "02:00"])
def test_a_repeated_hour_does_not_undo_an_entry(now: str) -> None:
    """02:30 fires at its first occurrence; the second 02:15 removes no nodes."""
    pool = NodePool.model_validate(
        {
            "name": "a",
            "replicas": 1,
            "schedule": [
                {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "replicas": 10},
                {"cron": "0 20 * * *", "timeZone": "Europe/Berlin", "replicas": 3},
            ],
        }
    )
    time = at(f"2026-10-25T{now}:00Z")
    assert schedule.scheduled_replicas(pool, time) == (3 if now == "00:29" else 10)
    next_time = next(cron.fire_times("30 2 * * *", "Europe/Berlin", time))
    assert next_time > time
    assert next_time == at("2026-10-25T00:30:00Z" if now == "00:29" else "2026-10-26T02:30:00+01:00")
