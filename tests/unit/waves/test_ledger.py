"""The Ledger: each Run once, what was missed by policy, and the same answers from what was written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.api import wave as wave_api
from kwokfleet.kube.objects import Manifest
from kwokfleet.waves import ledger, run_commands
from kwokfleet.waves.ledger import CleanupState, RunRecord, RunState, WaveLedger
from kwokfleet.waves.run_commands import RunAction

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def start(**fields: str) -> wave_api.Start:
    """Return a Wave's start as a file has it."""
    return wave_api.Start.model_validate(fields)


def names(found: list[RunRecord]) -> list[str]:
    """Return what Runs are called."""
    return [each.name for each in found]


def again(page: WaveLedger) -> WaveLedger:
    """Return a page as the next leader reads it."""
    return ledger.parse(ledger.serialize({"wave": page}))["wave"]


def all_done(page: WaveLedger) -> WaveLedger:
    """Return a page all of whose Runs are over."""
    return replace(page, runs=tuple(replace(each, state=RunState.DONE) for each in page.runs))


def test_a_wave_without_a_time_runs_once_as_soon_as_it_is_seen() -> None:
    """And never again, also not after a restart."""
    page, found = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    assert names(found) == ["0"]
    for later in (NOON, NOON + MINUTE, NOON + DAY):
        assert not ledger.add_due_runs(page, start(after="0s"), later)[1]
        assert not ledger.add_due_runs(again(page), start(after="0s"), later)[1]


def test_after_counts_from_when_the_wave_was_first_seen() -> None:
    """Whoever leads by then."""
    page, found = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="30s"), NOON + timedelta(seconds=29))
    assert not found
    _, found = ledger.add_due_runs(again(page), start(after="30s"), NOON + timedelta(seconds=31))
    assert [(each.name, each.start) for each in found] == [("0", NOON + timedelta(seconds=30))]


def test_each_run_of_every_is_due_once() -> None:
    """However often somebody looks, and across restarts."""
    page, seen = ledger.new_wave_ledger(NOON), []
    for second in range(0, 181, 7):
        page, found = ledger.add_due_runs(again(page), start(every="1m"), NOON + timedelta(seconds=second))
        seen += names(found)
    assert seen == ["0", "1", "2"]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", []), ("run", ["23"])])
@pytest.mark.parametrize("restarted", [True, False])
def test_of_what_was_missed_the_latest_is_made_up_for_or_nothing(
    missed: str, made_up: list[str], *, restarted: bool
) -> None:
    """As the Wave says; after downtime and after a sleep alike. Then all goes on."""
    every = start(every="1h", missed=missed)
    page, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), every, NOON)
    page = all_done(page)
    page, found = ledger.add_due_runs(again(page) if restarted else page, every, NOON + 23 * HOUR + 5 * MINUTE)
    assert names(found) == made_up
    page, found = ledger.add_due_runs(again(page) if restarted else page, every, NOON + 24 * HOUR)
    assert names(found) == ["24"]


@pytest.mark.parametrize("when", [{"every": "61s"}, {"cron": "0 0 1 * *"}, {"every": "1s"}])
def test_years_of_absence_are_not_counted_one_by_one(when: dict[str, str]) -> None:
    """Of a billion Runs that were missed, none but the latest is made up for; on time are those of the last minute."""
    back = datetime(2056, 3, 2, 12, tzinfo=UTC)
    _, found = ledger.add_due_runs(WaveLedger(NOON, NOON), start(**when, missed="run"), back)
    assert len(found) == (61 if when == {"every": "1s"} else 1)
    assert found[-1].start <= back


def test_a_moment_before_the_wave_was_seen_is_not_made_up_for() -> None:
    """A Wave that is new today does not start yesterday's Run."""
    for missed in ("run", "skip"):
        past = start(at="2026-03-01T00:00:00Z", missed=missed)
        page, found = ledger.add_due_runs(ledger.new_wave_ledger(NOON), past, NOON)
        assert not found
        assert not ledger.add_due_runs(again(page), past, NOON + DAY)[1]


def test_cron_runs_once_in_an_hour_that_clocks_repeat_and_not_never_in_one_they_skip() -> None:
    """By the clock of its time zone, on both nights."""
    nightly = start(cron="30 2 * * *", timeZone="Europe/Berlin")
    for eve in (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)):
        page, count = ledger.new_wave_ledger(eve), 0
        for minutes in range(0, 12 * 60, 1):
            page, found = ledger.add_due_runs(again(page), nightly, eve + minutes * MINUTE)
            count += len(found)
        assert count == 1


def test_the_next_run_is_told_until_there_is_none() -> None:
    """What the alarm is set to."""
    page, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(every="1m"), NOON)
    assert ledger.next_start(page, start(every="1m"), NOON) == NOON + MINUTE
    once, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    assert ledger.next_start(once, start(after="0s"), NOON) is None


def test_what_is_written_is_read_back() -> None:
    """Every field of every Run; a microsecond makes two moments."""
    runs = (
        RunRecord("0", NOON + timedelta(microseconds=1), RunState.DONE, 10, 10, ((2, 2), (4, 7)), "Job a: 403 no"),
        RunRecord(
            "1", NOON + MINUTE, RunState.CANCELLED, 3, 10, paused_at=NOON + 3 * MINUTE, ended_at=NOON + 3 * MINUTE
        ),
        RunRecord(
            "2",
            NOON + 2 * MINUTE,
            RunState.RUNNING,
            7,
            10,
            shift=timedelta(seconds=1.5),
            churn_rounds=3,
            cleanup=CleanupState.DUE,
        ),
    )
    page = WaveLedger(NOON, NOON + 2 * MINUTE, runs, last_command=4)
    assert ledger.parse(ledger.serialize({"wave": page, "other": ledger.new_wave_ledger(NOON)})) == {
        "other": ledger.new_wave_ledger(NOON),
        "wave": page,
    }


def test_a_run_that_is_gone_on_with_keeps_its_watermark() -> None:
    """What was submitted is not submitted again, and no second Run begins."""
    page, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    page = page.with_run(RunRecord("0", NOON, RunState.RUNNING, submitted=40, total=100))
    page, found = ledger.add_due_runs(again(page), start(after="0s"), NOON + HOUR)
    assert not found
    assert [(each.name, each.submitted, each.total) for each in page.running] == [("0", 40, 100)]


def test_ten_runs_are_remembered_and_the_oldest_forgotten() -> None:
    """A status must not grow for ever."""
    page = ledger.new_wave_ledger(NOON)
    for number in range(25):
        page = page.with_run(RunRecord(str(number), NOON + number * MINUTE, RunState.DONE))
    assert names(list(page.runs)) == [str(number) for number in range(15, 25)]


def test_a_run_that_goes_on_is_not_forgotten_for_newer_ones() -> None:
    """It would be broken off in the middle, and nobody would be told."""
    page = ledger.new_wave_ledger(NOON).with_run(RunRecord("long", NOON))
    for number in range(25):
        page = page.with_run(RunRecord(str(number), NOON + (number + 1) * MINUTE, RunState.DONE))
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
    good = ledger.serialize({"good": ledger.new_wave_ledger(NOON)})
    assert ledger.parse([broken, *good]) == {"good": ledger.new_wave_ledger(NOON)}


def seconds(number: float) -> timedelta:
    """Return a duration."""
    return timedelta(seconds=number)


def only(page: WaveLedger) -> RunRecord:
    """Return the only Run of a page, as the next leader reads it."""
    [entry] = again(page).runs
    return entry


def test_time_spent_suspended_is_added_to_what_is_due_later() -> None:
    """However often it rests, and whoever leads meanwhile; looking twice changes nothing."""
    page = ledger.new_wave_ledger(NOON).with_run(RunRecord("0", NOON, submitted=10, total=100))
    for pause, resume in ((10, 25), (40, 41)):
        for _ in range(2):
            page = ledger.suspend_runs(again(page), NOON + seconds(pause))
        assert only(page).paused_at == NOON + seconds(pause)
        for later in (0, 5):
            page = ledger.resume_runs(again(page), NOON + seconds(resume + later))
    assert (only(page).paused_at, only(page).shift) == (None, seconds(16))
    assert only(page).shifted_start == NOON + seconds(16)


def test_a_run_that_is_resumed_before_it_starts_starts_on_time() -> None:
    """Only the part of a rest counts in which something could have been due."""
    page = ledger.new_wave_ledger(NOON).with_run(RunRecord("0", NOON + seconds(60)))
    rested = ledger.suspend_runs(page, NOON)
    assert only(ledger.resume_runs(rested, NOON + seconds(30))).shifted_start == NOON + seconds(60)
    assert only(ledger.resume_runs(rested, NOON + seconds(90))).shifted_start == NOON + seconds(90)


def test_each_order_is_heeded_once() -> None:
    """Whoever leads by then; what is ordered of another Wave, or of a Run that is not there, changes nothing."""
    page = (
        ledger.new_wave_ledger(NOON)
        .with_run(RunRecord("0", NOON, submitted=3, total=10))
        .with_run(RunRecord("1", NOON + MINUTE))
    )
    text = run_commands.with_command("", RunAction.CANCEL, "wave", "0")
    for _ in range(2):
        page = ledger.apply_commands(again(page), "wave", run_commands.parse(text), NOON + HOUR)
        assert [(each.name, each.state) for each in page.runs] == [("0", RunState.CANCELLED), ("1", RunState.RUNNING)]
    for what, wave, run in (
        (RunAction.RETRY, "other", "0"),
        (RunAction.RETRY, "wave", "7"),
        (RunAction.RETRY, "wave", "0"),
    ):
        text = run_commands.with_command(text, what, wave, run)
    page = ledger.apply_commands(again(page), "wave", run_commands.parse(text), NOON + 2 * HOUR)
    first = page.run("0")
    assert first is not None
    assert (first.state, first.submitted, first.shift, first.ended_at) == (RunState.RUNNING, 3, HOUR, None)
    text = run_commands.with_command(text, RunAction.CANCEL, "wave")
    page = ledger.apply_commands(page, "wave", run_commands.parse(text), NOON + 3 * HOUR)
    assert {each.state for each in page.runs} == {RunState.CANCELLED}


def test_a_run_by_hand_begins_a_moment_later_under_a_name_of_its_own() -> None:
    """So that its first object is on time; the schedule's Runs are not touched by it."""
    text = run_commands.with_command(run_commands.with_command("", RunAction.RUN, "wave"), RunAction.RUN, "wave")
    page = ledger.apply_commands(ledger.new_wave_ledger(NOON), "wave", run_commands.parse(text), NOON)
    assert [(each.name, each.start) for each in page.runs] == [
        ("m1", NOON + ledger.LEAD_TIME),
        ("m2", NOON + ledger.LEAD_TIME),
    ]
    page, found = ledger.add_due_runs(again(page), start(after="1h"), NOON + HOUR)
    assert names(found) == ["0"]


def test_a_retry_plays_what_was_refused_and_tidies_up_anew() -> None:
    """The watermark stays: what is there is not submitted again."""
    done = RunRecord(
        "0", NOON, RunState.DONE, 10, 10, ((2, 3),), "no", ended_at=NOON + MINUTE, cleanup=CleanupState.DONE
    )
    page = ledger.apply_commands(
        ledger.new_wave_ledger(NOON).with_run(done),
        "wave",
        run_commands.parse(run_commands.with_command("", RunAction.RETRY, "wave", "0")),
        NOON + HOUR,
    )
    entry = only(ledger.set_cleanup(page, enabled=True))
    assert (entry.state, entry.submitted, entry.rejected, entry.shift) == (RunState.RUNNING, 10, ((2, 3),), seconds(0))
    assert entry.cleanup is CleanupState.DUE


def test_runs_that_are_to_be_tidied_up_are_remembered_but_not_without_end() -> None:
    """Nobody would remove their objects otherwise; and a status must not grow for ever."""
    page = ledger.new_wave_ledger(NOON)
    for number in range(30):
        page = page.with_run(RunRecord(str(number), NOON + number * MINUTE, RunState.DONE, cleanup=CleanupState.DUE))
    assert len(page.runs) == 30
    for number in range(30, 300):
        page = page.with_run(RunRecord(str(number), NOON + number * MINUTE, RunState.DONE, cleanup=CleanupState.DUE))
    assert len(page.runs) == ledger.MAX_PENDING_CLEANUPS
    assert len(ledger.set_cleanup(page, enabled=False).with_run(RunRecord("last", NOON + DAY)).runs) == ledger.MAX_RUNS


@given(st.sets(st.integers(0, 500)))
def test_ranges_hold_what_was_put_in(indices: set[int]) -> None:
    """All of it and nothing else; or, if there must be fewer ranges, nothing less."""
    found = ledger.index_ranges(indices)
    assert [index for first, last in found for index in range(first, last + 1)] == sorted(indices)
    few = ledger.index_ranges(indices, max_ranges=3)
    assert len(few) <= 3
    assert indices <= {index for first, last in few for index in range(first, last + 1)}
