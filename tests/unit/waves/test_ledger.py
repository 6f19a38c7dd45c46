"""The Ledger: each Run is due once, missed Runs follow the policy, and a serialized Ledger gives the same results."""

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


def names(new_runs: list[RunRecord]) -> list[str]:
    """Return the names of Runs."""
    return [run.name for run in new_runs]


def again(wave_ledger: WaveLedger) -> WaveLedger:
    """Return a WaveLedger as the next leader reads it."""
    return ledger.parse(ledger.serialize({"wave": wave_ledger}))["wave"]


def all_done(wave_ledger: WaveLedger) -> WaveLedger:
    """Return a WaveLedger with all Runs done."""
    return replace(wave_ledger, runs=tuple(replace(run, state=RunState.DONE) for run in wave_ledger.runs))


def test_a_wave_without_a_start_time_runs_once_at_once() -> None:
    """Not again after a restart."""
    wave_ledger, new_runs = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    assert names(new_runs) == ["0"]
    for later in (NOON, NOON + MINUTE, NOON + DAY):
        assert not ledger.add_due_runs(wave_ledger, start(after="0s"), later)[1]
        assert not ledger.add_due_runs(again(wave_ledger), start(after="0s"), later)[1]


def test_after_counts_from_when_the_wave_was_first_seen() -> None:
    """Across leader changes."""
    wave_ledger, new_runs = ledger.add_due_runs(
        ledger.new_wave_ledger(NOON), start(after="30s"), NOON + timedelta(seconds=29)
    )
    assert not new_runs
    _, new_runs = ledger.add_due_runs(again(wave_ledger), start(after="30s"), NOON + timedelta(seconds=31))
    assert [(run.name, run.start) for run in new_runs] == [("0", NOON + timedelta(seconds=30))]


def test_each_run_of_every_is_due_once() -> None:
    """For any number of checks, and across restarts."""
    wave_ledger, seen = ledger.new_wave_ledger(NOON), []
    for second in range(0, 181, 7):
        wave_ledger, new_runs = ledger.add_due_runs(
            again(wave_ledger), start(every="1m"), NOON + timedelta(seconds=second)
        )
        seen += names(new_runs)
    assert seen == ["0", "1", "2"]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", []), ("run", ["23"])])
@pytest.mark.parametrize("restarted", [True, False])
def test_the_latest_missed_run_starts_or_is_skipped(missed: str, made_up: list[str], *, restarted: bool) -> None:
    """By the Wave's policy, after a restart and after a pause. Later Runs are due as usual."""
    every = start(every="1h", missed=missed)
    wave_ledger, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), every, NOON)
    wave_ledger = all_done(wave_ledger)
    wave_ledger, new_runs = ledger.add_due_runs(
        again(wave_ledger) if restarted else wave_ledger, every, NOON + 23 * HOUR + 5 * MINUTE
    )
    assert names(new_runs) == made_up
    wave_ledger, new_runs = ledger.add_due_runs(
        again(wave_ledger) if restarted else wave_ledger, every, NOON + 24 * HOUR
    )
    assert names(new_runs) == ["24"]


@pytest.mark.parametrize("when", [{"every": "61s"}, {"cron": "0 0 1 * *"}, {"every": "1s"}])
def test_years_of_missed_runs_are_skipped_quickly(when: dict[str, str]) -> None:
    """Of a billion missed Runs only the latest starts; those of the last minute are on time."""
    back = datetime(2056, 3, 2, 12, tzinfo=UTC)
    _, new_runs = ledger.add_due_runs(WaveLedger(NOON, NOON), start(**when, missed="run"), back)
    assert len(new_runs) == (61 if when == {"every": "1s"} else 1)
    assert new_runs[-1].start <= back


def test_a_start_before_the_wave_was_first_seen_is_ignored() -> None:
    """A new Wave does not start yesterday's Run."""
    for missed in ("run", "skip"):
        past = start(at="2026-03-01T00:00:00Z", missed=missed)
        wave_ledger, new_runs = ledger.add_due_runs(ledger.new_wave_ledger(NOON), past, NOON)
        assert not new_runs
        assert not ledger.add_due_runs(again(wave_ledger), past, NOON + DAY)[1]


def test_cron_runs_once_on_nights_with_a_clock_change() -> None:
    """In its time zone, for the repeated and the skipped hour."""
    nightly = start(cron="30 2 * * *", timeZone="Europe/Berlin")
    for eve in (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)):
        wave_ledger, count = ledger.new_wave_ledger(eve), 0
        for minutes in range(0, 12 * 60, 1):
            wave_ledger, new_runs = ledger.add_due_runs(again(wave_ledger), nightly, eve + minutes * MINUTE)
            count += len(new_runs)
        assert count == 1


def test_next_start_returns_the_next_run_or_none() -> None:
    """The daemon's timer uses it."""
    wave_ledger, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(every="1m"), NOON)
    assert ledger.next_start(wave_ledger, start(every="1m"), NOON) == NOON + MINUTE
    once, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    assert ledger.next_start(once, start(after="0s"), NOON) is None


def test_a_serialized_ledger_is_parsed_back() -> None:
    """Every field of every Run, with microseconds."""
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
    wave_ledger = WaveLedger(NOON, NOON + 2 * MINUTE, runs, last_command=4)
    assert ledger.parse(ledger.serialize({"wave": wave_ledger, "other": ledger.new_wave_ledger(NOON)})) == {
        "other": ledger.new_wave_ledger(NOON),
        "wave": wave_ledger,
    }


def test_a_continued_run_keeps_its_watermark() -> None:
    """No second Run starts."""
    wave_ledger, _ = ledger.add_due_runs(ledger.new_wave_ledger(NOON), start(after="0s"), NOON)
    wave_ledger = wave_ledger.with_run(RunRecord("0", NOON, RunState.RUNNING, submitted=40, total=100))
    wave_ledger, new_runs = ledger.add_due_runs(again(wave_ledger), start(after="0s"), NOON + HOUR)
    assert not new_runs
    assert [(run.name, run.submitted, run.total) for run in wave_ledger.running] == [("0", 40, 100)]


def test_the_ledger_keeps_the_latest_ten_runs() -> None:
    """The size of the status is bounded."""
    wave_ledger = ledger.new_wave_ledger(NOON)
    for number in range(25):
        wave_ledger = wave_ledger.with_run(RunRecord(str(number), NOON + number * MINUTE, RunState.DONE))
    assert names(list(wave_ledger.runs)) == [str(number) for number in range(15, 25)]


def test_a_running_run_is_never_dropped() -> None:
    """Newer Runs do not displace it."""
    wave_ledger = ledger.new_wave_ledger(NOON).with_run(RunRecord("long", NOON))
    for number in range(25):
        wave_ledger = wave_ledger.with_run(RunRecord(str(number), NOON + (number + 1) * MINUTE, RunState.DONE))
    assert names(list(wave_ledger.running)) == ["long"]
    assert names(list(wave_ledger.runs)) == ["long", *(str(number) for number in range(16, 25))]


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
def test_an_invalid_entry_is_skipped(broken: Manifest) -> None:
    """The status can be edited by hand."""
    good = ledger.serialize({"good": ledger.new_wave_ledger(NOON)})
    assert ledger.parse([broken, *good]) == {"good": ledger.new_wave_ledger(NOON)}


def seconds(number: float) -> timedelta:
    """Return a duration."""
    return timedelta(seconds=number)


def only(wave_ledger: WaveLedger) -> RunRecord:
    """Return the only Run, as the next leader reads it."""
    [entry] = again(wave_ledger).runs
    return entry


def test_suspended_time_delays_later_instants() -> None:
    """For several pauses and leader changes; repeated calls change nothing."""
    wave_ledger = ledger.new_wave_ledger(NOON).with_run(RunRecord("0", NOON, submitted=10, total=100))
    for pause, resume in ((10, 25), (40, 41)):
        for _ in range(2):
            wave_ledger = ledger.suspend_runs(again(wave_ledger), NOON + seconds(pause))
        assert only(wave_ledger).paused_at == NOON + seconds(pause)
        for later in (0, 5):
            wave_ledger = ledger.resume_runs(again(wave_ledger), NOON + seconds(resume + later))
    assert (only(wave_ledger).paused_at, only(wave_ledger).shift) == (None, seconds(16))
    assert only(wave_ledger).shifted_start == NOON + seconds(16)


def test_a_run_resumed_before_its_start_is_on_time() -> None:
    """Only the part of a pause after the start counts."""
    wave_ledger = ledger.new_wave_ledger(NOON).with_run(RunRecord("0", NOON + seconds(60)))
    rested = ledger.suspend_runs(wave_ledger, NOON)
    assert only(ledger.resume_runs(rested, NOON + seconds(30))).shifted_start == NOON + seconds(60)
    assert only(ledger.resume_runs(rested, NOON + seconds(90))).shifted_start == NOON + seconds(90)


def test_each_command_is_applied_once() -> None:
    """Across leader changes. Commands for other Waves or unknown Runs change nothing."""
    wave_ledger = (
        ledger.new_wave_ledger(NOON)
        .with_run(RunRecord("0", NOON, submitted=3, total=10))
        .with_run(RunRecord("1", NOON + MINUTE))
    )
    text = run_commands.with_command("", RunAction.CANCEL, "wave", "0")
    for _ in range(2):
        wave_ledger = ledger.apply_commands(again(wave_ledger), "wave", run_commands.parse(text), NOON + HOUR)
        assert [(run.name, run.state) for run in wave_ledger.runs] == [
            ("0", RunState.CANCELLED),
            ("1", RunState.RUNNING),
        ]
    for what, wave, run in (
        (RunAction.RETRY, "other", "0"),
        (RunAction.RETRY, "wave", "7"),
        (RunAction.RETRY, "wave", "0"),
    ):
        text = run_commands.with_command(text, what, wave, run)
    wave_ledger = ledger.apply_commands(again(wave_ledger), "wave", run_commands.parse(text), NOON + 2 * HOUR)
    first = wave_ledger.run("0")
    assert first is not None
    assert (first.state, first.submitted, first.shift, first.ended_at) == (RunState.RUNNING, 3, HOUR, None)
    text = run_commands.with_command(text, RunAction.CANCEL, "wave")
    wave_ledger = ledger.apply_commands(wave_ledger, "wave", run_commands.parse(text), NOON + 3 * HOUR)
    assert {run.state for run in wave_ledger.runs} == {RunState.CANCELLED}


def test_a_manual_run_starts_after_the_lead_time_with_its_own_name() -> None:
    """Its first object is on time; scheduled Runs are not affected."""
    text = run_commands.with_command(run_commands.with_command("", RunAction.RUN, "wave"), RunAction.RUN, "wave")
    wave_ledger = ledger.apply_commands(ledger.new_wave_ledger(NOON), "wave", run_commands.parse(text), NOON)
    assert [(run.name, run.start) for run in wave_ledger.runs] == [
        ("m1", NOON + ledger.LEAD_TIME),
        ("m2", NOON + ledger.LEAD_TIME),
    ]
    wave_ledger, new_runs = ledger.add_due_runs(again(wave_ledger), start(after="1h"), NOON + HOUR)
    assert names(new_runs) == ["0"]


def test_a_retry_keeps_the_watermark_and_resets_the_cleanup() -> None:
    """Only rejected objects are submitted again."""
    done = RunRecord(
        "0", NOON, RunState.DONE, 10, 10, ((2, 3),), "no", ended_at=NOON + MINUTE, cleanup=CleanupState.DONE
    )
    wave_ledger = ledger.apply_commands(
        ledger.new_wave_ledger(NOON).with_run(done),
        "wave",
        run_commands.parse(run_commands.with_command("", RunAction.RETRY, "wave", "0")),
        NOON + HOUR,
    )
    entry = only(ledger.set_cleanup(wave_ledger, enabled=True))
    assert (entry.state, entry.submitted, entry.rejected, entry.shift) == (RunState.RUNNING, 10, ((2, 3),), seconds(0))
    assert entry.cleanup is CleanupState.DUE


def test_runs_with_pending_cleanup_are_kept_up_to_a_limit() -> None:
    """Their objects would never be deleted otherwise; the size of the status is bounded."""
    wave_ledger = ledger.new_wave_ledger(NOON)
    for number in range(30):
        wave_ledger = wave_ledger.with_run(
            RunRecord(str(number), NOON + number * MINUTE, RunState.DONE, cleanup=CleanupState.DUE)
        )
    assert len(wave_ledger.runs) == 30
    for number in range(30, 300):
        wave_ledger = wave_ledger.with_run(
            RunRecord(str(number), NOON + number * MINUTE, RunState.DONE, cleanup=CleanupState.DUE)
        )
    assert len(wave_ledger.runs) == ledger.MAX_PENDING_CLEANUPS
    assert (
        len(ledger.set_cleanup(wave_ledger, enabled=False).with_run(RunRecord("last", NOON + DAY)).runs)
        == ledger.MAX_RUNS
    )


@given(st.sets(st.integers(0, 500)))
def test_index_ranges_contain_exactly_the_indices(indices: set[int]) -> None:
    """With a limit on the number of ranges, they may contain more, but not less."""
    ranges = ledger.index_ranges(indices)
    assert [index for first, last in ranges for index in range(first, last + 1)] == sorted(indices)
    few = ledger.index_ranges(indices, max_ranges=3)
    assert len(few) <= 3
    assert indices <= {index for first, last in few for index in range(first, last + 1)}
