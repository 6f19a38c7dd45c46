"""The Ledger: the Runs of each Wave and their progress, stored in the Fleet's status in the cluster.

The next leader continues from it. It may lag behind: objects that were submitted since the last write are submitted
again under the same names, which creates nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from kwokfleet.api.wave import Start
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import schedule
from kwokfleet.waves.run_commands import RunAction, RunCommand

MAX_RUNS = 10
"""Finished Runs of a Wave that the Ledger keeps."""
MAX_PENDING_CLEANUPS = 100
"""Finished Runs of a Wave that the Ledger keeps because their objects are not removed yet."""
LEAD_TIME = timedelta(seconds=1)
"""A Run is recorded this long before it starts, so that its first object is on time."""
START_GRACE = timedelta(seconds=60)
"""A Run that starts later than this counts as missed."""
MAX_RANGES = 200
"""Ranges of rejected objects per Run. Above it, the closest ranges are merged."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_RESOLUTION = timedelta(microseconds=1)
_MAX_ERROR_CHARS = 300


class CleanupState(StrEnum):
    """Removal of a Run's objects."""

    NONE = ""
    """The Wave has neither ttl nor cleanup."""
    DUE = "Due"
    DONE = "Done"


class RunState(StrEnum):
    """State of a Run."""

    RUNNING = "Running"
    DONE = "Done"
    CANCELLED = "Cancelled"


class RunVerdict(StrEnum):
    """Verdict on a Run's Result."""

    OPEN = ""
    """Not measured completely yet."""
    PASSED = "Passed"
    FAILED = "Failed"
    MEASURED = "Measured"
    """The Wave has no gates."""
    NO_DATA = "NoData"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One Run in the Ledger."""

    name: str
    start: datetime
    state: RunState = RunState.RUNNING
    submitted: int = 0
    """Watermark: all objects below this index were submitted."""
    total: int = 0
    rejected: tuple[tuple[int, int], ...] = ()
    """Index ranges of submitted objects that the API server rejected."""
    error: str = ""
    """Summary of the rejections."""
    shift: timedelta = timedelta()
    """Delay of all instants: the time that the Run was suspended."""
    paused_at: datetime | None = None
    """When it was suspended or cancelled."""
    churn_rounds: int = 0
    """Finished churn rounds."""
    ended_at: datetime | None = None
    """When it was done or cancelled."""
    cleanup: CleanupState = CleanupState.NONE
    verdict: RunVerdict = RunVerdict.OPEN

    @property
    def rejected_count(self) -> int:
        """Number of rejected objects."""
        return sum(last - first + 1 for first, last in self.rejected)

    @property
    def shifted_start(self) -> datetime:
        """Start of the instants: the start plus the time suspended."""
        return self.start + self.shift

    @property
    def is_open(self) -> bool:
        """Whether objects are left to submit or to remove."""
        return self.state is RunState.RUNNING or self.cleanup is CleanupState.DUE

    def suspended(self, now: datetime) -> "RunRecord":
        """Return the suspended Run."""
        return self if self.paused_at else replace(self, paused_at=now)

    def resumed(self, now: datetime) -> "RunRecord":
        """Return the resumed Run. Instants after the pause move by its length."""
        if self.paused_at is None:
            return self
        pause = max(timedelta(), now - max(self.paused_at, self.shifted_start))
        return replace(self, paused_at=None, shift=self.shift + pause)

    def cancelled(self, now: datetime) -> "RunRecord":
        """Return the cancelled Run."""
        return replace(self.suspended(now), state=RunState.CANCELLED, ended_at=now)

    def retried(self, now: datetime) -> "RunRecord":
        """Return the Run as running again. It submits rejected and missing objects."""
        run = replace(self.resumed(now), cleanup=CleanupState.NONE, verdict=RunVerdict.OPEN)
        return replace(run, state=RunState.RUNNING, ended_at=None, error="")


@dataclass(frozen=True, slots=True)
class WaveLedger:
    """The Ledger of one Wave."""

    since: datetime
    """When the Wave was first seen: `after` and `every` count from here."""
    scheduled_until: datetime
    """Runs up to this time are recorded."""
    runs: tuple[RunRecord, ...] = ()
    last_command: int = 0
    """Number of the last applied RunCommand."""

    def with_run(self, record: RunRecord) -> "WaveLedger":
        """Return the WaveLedger with a Run added or replaced.

        Drops the oldest finished Runs. Running ones stay, and so do up to 100 with objects to remove.
        """
        others = (run for run in self.runs if run.name != record.name)
        runs = sorted((*others, record), key=lambda run: run.start)
        closed = [run for run in runs if not run.is_open]
        pending = [run for run in runs if run.is_open and run.state is not RunState.RUNNING]
        dropped = closed[: max(0, min(len(closed), len(runs) - MAX_RUNS))]
        dropped += pending[: max(0, len(pending) - MAX_PENDING_CLEANUPS)]
        return replace(self, runs=tuple(run for run in runs if run not in dropped))

    def run(self, name: str) -> RunRecord | None:
        """Return a Run by name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """The running Runs."""
        return tuple(run for run in self.runs if run.state is RunState.RUNNING)


def new_wave_ledger(now: datetime) -> WaveLedger:
    """Return the WaveLedger of a new Wave."""
    return WaveLedger(now, now - _RESOLUTION)


def index_ranges(indices: Iterable[int], max_ranges: int = MAX_RANGES) -> tuple[tuple[int, int], ...]:
    """Return indices as ranges. Above *max_ranges*, the ranges with the smallest gaps are merged."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(indices):
        if ranges and index <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    while len(ranges) > max_ranges:
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(ranges)]
        at = gaps.index(min(gaps))
        ranges[at : at + 2] = [(ranges[at][0], ranges[at + 1][1])]
    return tuple(ranges)


def add_due_runs(wave_ledger: WaveLedger, start: Start, now: datetime) -> tuple[WaveLedger, list[RunRecord]]:
    """Return the WaveLedger with all due Runs, and the new ones."""
    new_runs = [
        RunRecord(run.name, run.start)
        for run in schedule.due_runs(start, wave_ledger.since, wave_ledger.scheduled_until, now, grace=START_GRACE)
        if wave_ledger.run(run.name) is None
    ]
    for record in new_runs:
        wave_ledger = wave_ledger.with_run(record)
    return replace(wave_ledger, scheduled_until=max(wave_ledger.scheduled_until, now)), new_runs


def next_start(wave_ledger: WaveLedger, start: Start, now: datetime) -> datetime | None:
    """Return when the next Run is due within a day, None if there is none."""
    earliest = max(wave_ledger.scheduled_until, now)
    run = next(schedule.runs_between(start, wave_ledger.since, earliest, now + timedelta(days=1)), None)
    return run.start if run else None


# changes of recorded Runs


def suspend_runs(wave_ledger: WaveLedger, now: datetime) -> WaveLedger:
    """Return the WaveLedger with all running Runs suspended."""
    return _map_runs(wave_ledger, lambda run: run.suspended(now) if run.state is RunState.RUNNING else run)


def resume_runs(wave_ledger: WaveLedger, now: datetime) -> WaveLedger:
    """Return the WaveLedger with all running Runs resumed."""
    return _map_runs(wave_ledger, lambda run: run.resumed(now) if run.state is RunState.RUNNING else run)


def set_cleanup(wave_ledger: WaveLedger, *, enabled: bool) -> WaveLedger:
    """Return the WaveLedger with the removal of objects due, or no longer due."""
    before, after = (CleanupState.NONE, CleanupState.DUE) if enabled else (CleanupState.DUE, CleanupState.NONE)
    return _map_runs(wave_ledger, lambda run: replace(run, cleanup=after) if run.cleanup is before else run)


def _map_runs(wave_ledger: WaveLedger, change: Callable[[RunRecord], RunRecord]) -> WaveLedger:
    return replace(wave_ledger, runs=tuple(map(change, wave_ledger.runs)))


def apply_commands(wave_ledger: WaveLedger, wave: str, commands: Iterable[RunCommand], now: datetime) -> WaveLedger:
    """Return the WaveLedger with all new commands for this Wave applied."""
    for command in commands:
        if command.wave == wave and command.number > wave_ledger.last_command:
            wave_ledger = _apply_command(replace(wave_ledger, last_command=command.number), command, now)
    return wave_ledger


def _apply_command(wave_ledger: WaveLedger, command: RunCommand, now: datetime) -> WaveLedger:
    match command.action:
        case RunAction.RUN:
            return wave_ledger.with_run(RunRecord(f"m{command.number}", now + LEAD_TIME))
        case RunAction.CANCEL:
            running = [run for run in wave_ledger.running if command.run in ("", run.name)]
            return _map_runs(wave_ledger, lambda run: run.cancelled(now) if run in running else run)
        case RunAction.RETRY:
            closed = [run for run in wave_ledger.runs if run.name == command.run and run.state is not RunState.RUNNING]
            return _map_runs(wave_ledger, lambda run: run.retried(now) if run in closed else run)


# the form in Fleet.status


def parse(waves: Iterable[Manifest]) -> dict[str, WaveLedger]:
    """Parse the Ledger of a Fleet from its status. Invalid entries are skipped."""
    wave_ledgers: dict[str, WaveLedger] = {}
    for wave in waves:
        try:
            runs = tuple(_parse_run(run) for run in wave.get("runs") or ())
            last_command = int(wave.get("heeded", 0))
            wave_ledgers[wave["name"]] = WaveLedger(_time(wave["since"]), _time(wave["seen"]), runs, last_command)
        except (AttributeError, KeyError, ValueError, TypeError):
            continue
    return wave_ledgers


def _parse_run(run: Manifest) -> RunRecord:
    return RunRecord(
        name=str(run["name"]),
        start=_time(run["start"]),
        state=RunState(run["state"]),
        submitted=int(run.get("submitted", 0)),
        total=int(run.get("total", 0)),
        rejected=_parse_ranges(str(run.get("refused", ""))),
        error=str(run.get("why", "")),
        shift=timedelta(seconds=float(run.get("shiftSeconds", 0))),
        paused_at=_time(run["paused"]) if run.get("paused") else None,
        churn_rounds=int(run.get("churned", 0)),
        ended_at=_time(run["ended"]) if run.get("ended") else None,
        cleanup=CleanupState(run.get("upkeep", "")),
        verdict=RunVerdict(run.get("verdict", "")),
    )


def _parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (part.partition("-") for part in text.split(",") if part)
    return tuple((int(first), int(last or first)) for first, _, last in pairs)


def serialize(wave_ledgers: Mapping[str, WaveLedger]) -> list[Manifest]:
    """Return the Ledger of a Fleet for its status.

    `seen` is the start of the last Run, not `scheduled_until`: an unchanged Ledger is not written again.
    """
    return [
        {
            "name": name,
            "since": _text(wave_ledger.since),
            "seen": _text(max((run.start for run in wave_ledger.runs), default=wave_ledger.since - _RESOLUTION)),
            "runs": [_serialize_run(run) for run in wave_ledger.runs],
        }
        | ({"heeded": wave_ledger.last_command} if wave_ledger.last_command else {})
        for name, wave_ledger in sorted(wave_ledgers.items())
    ]


def _serialize_run(run: RunRecord) -> Manifest:
    required: Manifest = {
        "name": run.name,
        "start": _text(run.start),
        "state": run.state.value,
        "submitted": run.submitted,
        "total": run.total,
        "failed": run.rejected_count,
    }
    optional: Manifest = {
        "refused": ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in run.rejected),
        "why": run.error[:_MAX_ERROR_CHARS],
        "shiftSeconds": run.shift.total_seconds(),
        "paused": _text(run.paused_at) if run.paused_at else "",
        "churned": run.churn_rounds,
        "ended": _text(run.ended_at) if run.ended_at else "",
        "upkeep": run.cleanup.value,
        "verdict": run.verdict.value,
    }
    return required | {name: value for name, value in optional.items() if value}


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime(_TIME_FORMAT)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("time without a zone")
    return time
