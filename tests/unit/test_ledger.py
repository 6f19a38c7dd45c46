"""The Ledger: each Run once, what was missed by policy, and the same answers from what was written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kwokfleet.core import ledger, waves
from kwokfleet.core.ledger import Entry, Page, State, Upkeep
from kwokfleet.core.objects import Manifest

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def start(**fields: str) -> waves.Start:
    """Return a Wave's start as a file has it."""
    return waves.Start.model_validate(fields)


def names(found: list[Entry]) -> list[str]:
    """Return what Runs are called."""
    return [each.name for each in found]


def again(page: Page) -> Page:
    """Return a page as the next leader reads it."""
    return ledger.read(ledger.written({"wave": page}))["wave"]


def all_done(page: Page) -> Page:
    """Return a page all of whose Runs are over."""
    return replace(page, runs=tuple(replace(each, state=State.DONE) for each in page.runs))


def test_a_wave_without_a_time_runs_once_as_soon_as_it_is_seen() -> None:
    """And never again, also not after a restart."""
    page, found = ledger.due(ledger.new(NOON), start(after="0s"), NOON)
    assert names(found) == ["0"]
    for later in (NOON, NOON + MINUTE, NOON + DAY):
        assert not ledger.due(page, start(after="0s"), later)[1]
        assert not ledger.due(again(page), start(after="0s"), later)[1]


def test_after_counts_from_when_the_wave_was_first_seen() -> None:
    """Whoever leads by then."""
    page, found = ledger.due(ledger.new(NOON), start(after="30s"), NOON + timedelta(seconds=29))
    assert not found
    _, found = ledger.due(again(page), start(after="30s"), NOON + timedelta(seconds=31))
    assert [(each.name, each.start) for each in found] == [("0", NOON + timedelta(seconds=30))]


def test_each_run_of_every_is_due_once() -> None:
    """However often somebody looks, and across restarts."""
    page, seen = ledger.new(NOON), []
    for second in range(0, 181, 7):
        page, found = ledger.due(again(page), start(every="1m"), NOON + timedelta(seconds=second))
        seen += names(found)
    assert seen == ["0", "1", "2"]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", []), ("run", ["23"])])
@pytest.mark.parametrize("restarted", [True, False])
def test_of_what_was_missed_the_latest_is_made_up_for_or_nothing(
    missed: str, made_up: list[str], *, restarted: bool
) -> None:
    """As the Wave says; after downtime and after a sleep alike. Then all goes on."""
    every = start(every="1h", missed=missed)
    page, _ = ledger.due(ledger.new(NOON), every, NOON)
    page = all_done(page)
    page, found = ledger.due(again(page) if restarted else page, every, NOON + 23 * HOUR + 5 * MINUTE)
    assert names(found) == made_up
    page, found = ledger.due(again(page) if restarted else page, every, NOON + 24 * HOUR)
    assert names(found) == ["24"]


@pytest.mark.parametrize("when", [{"every": "61s"}, {"cron": "0 0 1 * *"}, {"every": "1s"}])
def test_years_of_absence_are_not_counted_one_by_one(when: dict[str, str]) -> None:
    """Of a billion Runs that were missed, none but the latest is made up for; on time are those of the last minute."""
    back = datetime(2056, 3, 2, 12, tzinfo=UTC)
    _, found = ledger.due(Page(NOON, NOON), start(**when, missed="run"), back)
    assert len(found) == (61 if when == {"every": "1s"} else 1)
    assert found[-1].start <= back


def test_a_moment_before_the_wave_was_seen_is_not_made_up_for() -> None:
    """A Wave that is new today does not start yesterday's Run."""
    for missed in ("run", "skip"):
        past = start(at="2026-03-01T00:00:00Z", missed=missed)
        page, found = ledger.due(ledger.new(NOON), past, NOON)
        assert not found
        assert not ledger.due(again(page), past, NOON + DAY)[1]


def test_cron_runs_once_in_an_hour_that_clocks_repeat_and_not_never_in_one_they_skip() -> None:
    """By the clock of its time zone, on both nights."""
    nightly = start(cron="30 2 * * *", timeZone="Europe/Berlin")
    for eve in (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)):
        page, count = ledger.new(eve), 0
        for minutes in range(0, 12 * 60, 1):
            page, found = ledger.due(again(page), nightly, eve + minutes * MINUTE)
            count += len(found)
        assert count == 1


def test_the_next_run_is_told_until_there_is_none() -> None:
    """What the alarm is set to."""
    page, _ = ledger.due(ledger.new(NOON), start(every="1m"), NOON)
    assert ledger.next_start(page, start(every="1m"), NOON) == NOON + MINUTE
    once, _ = ledger.due(ledger.new(NOON), start(after="0s"), NOON)
    assert ledger.next_start(once, start(after="0s"), NOON) is None


def test_what_is_written_is_read_back() -> None:
    """Every field of every Run; a microsecond makes two moments."""
    runs = (
        Entry("0", NOON + timedelta(microseconds=1), State.DONE, 10, 10, ((2, 2), (4, 7)), "Job a: 403 no"),
        Entry("1", NOON + MINUTE, State.CANCELLED, 3, 10, paused=NOON + 3 * MINUTE, ended=NOON + 3 * MINUTE),
        Entry("2", NOON + 2 * MINUTE, State.RUNNING, 7, 10, shift=timedelta(seconds=1.5), rounds=3, upkeep=Upkeep.DUE),
    )
    page = Page(NOON, NOON + 2 * MINUTE, runs, heeded=4)
    assert ledger.read(ledger.written({"wave": page, "other": ledger.new(NOON)})) == {
        "other": ledger.new(NOON),
        "wave": page,
    }


def test_a_run_that_is_gone_on_with_keeps_its_watermark() -> None:
    """What was submitted is not submitted again, and no second Run begins."""
    page, _ = ledger.due(ledger.new(NOON), start(after="0s"), NOON)
    page = page.with_run(Entry("0", NOON, State.RUNNING, submitted=40, total=100))
    page, found = ledger.due(again(page), start(after="0s"), NOON + HOUR)
    assert not found
    assert [(each.name, each.submitted, each.total) for each in page.running] == [("0", 40, 100)]


def test_ten_runs_are_remembered_and_the_oldest_forgotten() -> None:
    """A status must not grow for ever."""
    page = ledger.new(NOON)
    for number in range(25):
        page = page.with_run(Entry(str(number), NOON + number * MINUTE, State.DONE))
    assert names(list(page.runs)) == [str(number) for number in range(15, 25)]


def test_a_run_that_goes_on_is_not_forgotten_for_newer_ones() -> None:
    """It would be broken off in the middle, and nobody would be told."""
    page = ledger.new(NOON).with_run(Entry("long", NOON))
    for number in range(25):
        page = page.with_run(Entry(str(number), NOON + (number + 1) * MINUTE, State.DONE))
    assert names(list(page.running)) == ["long"]
    assert names(list(page.runs)) == ["long", *(str(number) for number in range(16, 25))]


@pytest.mark.parametrize(
    "broken",
    [
        {"name": "wave"},
        {"name": "wave", "since": "yesterday", "seen": "2026-03-02T12:00:00Z"},
        {"name": "wave", "since": "2026-03-02T12:00:00", "seen": "2026-03-02T12:00:00"},
        {"name": "wave", "since": "2026-03-02T12:00:00Z", "seen": "2026-03-02T12:00:00Z", "runs": [{"name": "0"}]},
        {"name": "wave", "since": "2026-03-02T12:00:00Z", "seen": "2026-03-02T12:00:00Z", "runs": ["0"]},
        "wave",
    ],
)
def test_an_entry_that_cannot_be_read_spoils_no_other(broken: Manifest) -> None:
    """Somebody may have edited it."""
    good = ledger.written({"good": ledger.new(NOON)})
    assert ledger.read([broken, *good]) == {"good": ledger.new(NOON)}
