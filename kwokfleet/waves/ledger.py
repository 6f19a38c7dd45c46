"""The Ledger: which Runs of a Wave there were, and how far each got. It lives in the Fleet's status in the cluster.

Who leads next goes on from there. What it says may be a little older than what happened: objects
that were submitted since are submitted again under the same names, which changes nothing.
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
"""Runs of a Wave that are remembered when they are over."""
MAX_PENDING_CLEANUPS = 100
"""Runs of a Wave that are remembered because objects of theirs are still to be removed."""
LEAD_TIME = timedelta(seconds=1)
"""A Run is noted so long before it starts, so that its first object is not late already."""
START_GRACE = timedelta(seconds=60)
"""A Run that could not be started for longer than this was missed."""
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_BEFORE = timedelta(microseconds=1)
_WORDS = 300


MAX_RANGES = 200
"""Of objects that were refused; beyond it, ranges that lie close together are remembered as one."""


class CleanupState(StrEnum):
    """Whether objects of a Run are removed by us."""

    NONE = ""
    """Nobody asked for it."""
    DUE = "Due"
    DONE = "Done"


class RunState(StrEnum):
    """How a Run fares."""

    RUNNING = "Running"
    DONE = "Done"
    CANCELLED = "Cancelled"


class RunVerdict(StrEnum):
    """What a Run's Result came to."""

    OPEN = ""
    """It is still being measured."""
    PASSED = "Passed"
    FAILED = "Failed"
    MEASURED = "Measured"
    """Nothing was expected of it."""
    NO_DATA = "NoData"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One Run."""

    name: str
    start: datetime
    state: RunState = RunState.RUNNING
    submitted: int = 0
    """So many objects, from the first on, were submitted without a gap."""
    total: int = 0
    refused: tuple[tuple[int, int], ...] = ()
    """The objects that were submitted and are not there, because they were refused: from index to index."""
    why: str = ""
    """What was refused, and why."""
    shift: timedelta = timedelta()
    """Everything is due so much later than planned: the time that it was suspended."""
    paused: datetime | None = None
    """Since when it has been suspended, or cancelled."""
    rounds: int = 0
    """How many rounds of churn are done."""
    ended: datetime | None = None
    """When it was done, or cancelled."""
    upkeep: CleanupState = CleanupState.NONE
    verdict: RunVerdict = RunVerdict.OPEN

    @property
    def failed(self) -> int:
        """How many objects were refused."""
        return sum(last - first + 1 for first, last in self.refused)

    @property
    def begins(self) -> datetime:
        """What the instants of its objects count from."""
        return self.start + self.shift

    @property
    def is_open(self) -> bool:
        """Whether there is something left to do."""
        return self.state is RunState.RUNNING or self.upkeep is CleanupState.DUE

    def suspended(self, now: datetime) -> "RunRecord":
        """Return it as it is while it rests."""
        return self if self.paused else replace(self, paused=now)

    def resumed(self, now: datetime) -> "RunRecord":
        """Return it as it goes on: what was not due before it rested is due as much later as it rested."""
        if self.paused is None:
            return self
        rested = max(timedelta(), now - max(self.paused, self.begins))
        return replace(self, paused=None, shift=self.shift + rested)

    def cancelled(self, now: datetime) -> "RunRecord":
        """Return it as it is when somebody has cancelled it."""
        return replace(self.suspended(now), state=RunState.CANCELLED, ended=now)

    def retried(self, now: datetime) -> "RunRecord":
        """Return it as it is when it is to go on, and to submit once more what was refused."""
        fields = {
            "state": RunState.RUNNING,
            "ended": None,
            "why": "",
            "upkeep": CleanupState.NONE,
            "verdict": RunVerdict.OPEN,
        }
        return replace(self.resumed(now), **fields)  # type: ignore[arg-type]  # fields of Entry


@dataclass(frozen=True, slots=True)
class WaveLedger:
    """One Wave."""

    since: datetime
    """When it was first seen: what its `after` and `every` count from."""
    seen: datetime
    """Up to when its Runs have been looked for."""
    runs: tuple[RunRecord, ...] = ()
    heeded: int = 0
    """The number of the last order that was heeded."""

    def with_run(self, entry: RunRecord) -> "WaveLedger":
        """Return the page with a Run added, or in the place of what was known of it.

        The oldest are forgotten, but none that still runs, and hardly one that is to be tidied up: nobody would.
        """
        known = sorted((*(each for each in self.runs if each.name != entry.name), entry), key=lambda each: each.start)
        over = [each for each in known if not each.is_open]
        untidy = [each for each in known if each.is_open and each.state is not RunState.RUNNING]
        forgotten = (
            over[: max(0, min(len(over), len(known) - MAX_RUNS))] + untidy[: max(0, len(untidy) - MAX_PENDING_CLEANUPS)]
        )
        return replace(self, runs=tuple(each for each in known if each not in forgotten))

    def run(self, name: str) -> RunRecord | None:
        """Return what is known of a Run."""
        return next((each for each in self.runs if each.name == name), None)

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """The Runs that are not over."""
        return tuple(each for each in self.runs if each.state is RunState.RUNNING)


def new_wave_ledger(now: datetime) -> WaveLedger:
    """Return the page of a Wave that nobody has seen before."""
    return WaveLedger(now, now - _BEFORE)


def index_ranges(indices: Iterable[int], most: int = MAX_RANGES) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges; those with the smallest gaps between them become one if they are too many."""
    found: list[tuple[int, int]] = []
    for index in sorted(indices):
        if found and index <= found[-1][1] + 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    while len(found) > most:
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(found)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return tuple(found)


def add_due_runs(page: WaveLedger, start: Start, now: datetime) -> tuple[WaveLedger, list[RunRecord]]:
    """Return the Runs to start now, and the page that knows of them."""
    found = [
        RunRecord(run.name, run.start)
        for run in schedule.due_runs(start, page.since, page.seen, now, grace=START_GRACE)
        if page.run(run.name) is None
    ]
    for entry in found:
        page = page.with_run(entry)
    return replace(page, seen=max(page.seen, now)), found


def next_start(page: WaveLedger, start: Start, now: datetime) -> datetime | None:
    """Return when the next Run is due, None if no more is near."""
    run = next(schedule.runs_between(start, page.since, max(page.seen, now), now + timedelta(days=1)), None)
    return run.start if run else None


# what becomes of Runs that are known


def suspend_runs(page: WaveLedger, now: datetime) -> WaveLedger:
    """Return the page of a Wave that is suspended."""
    return _changed(page, lambda each: each.suspended(now) if each.state is RunState.RUNNING else each)


def resume_runs(page: WaveLedger, now: datetime) -> WaveLedger:
    """Return the page of a Wave that is not suspended, or no longer is."""
    return _changed(page, lambda each: each.resumed(now) if each.state is RunState.RUNNING else each)


def set_cleanup(page: WaveLedger, *, tidy: bool) -> WaveLedger:
    """Return the page of a Wave whose objects are removed when their time is over; or are not, any more."""
    before, after = (CleanupState.NONE, CleanupState.DUE) if tidy else (CleanupState.DUE, CleanupState.NONE)
    return _changed(page, lambda each: replace(each, upkeep=after) if each.upkeep is before else each)


def _changed(page: WaveLedger, change: Callable[[RunRecord], RunRecord]) -> WaveLedger:
    return replace(page, runs=tuple(map(change, page.runs)))


def apply_commands(page: WaveLedger, wave: str, wanted: Iterable[RunCommand], now: datetime) -> WaveLedger:
    """Return a Wave's page with all orders heeded that are new to it."""
    for order in wanted:
        if order.wave == wave and order.number > page.heeded:
            page = _obeyed(replace(page, heeded=order.number), order, now)
    return page


def _obeyed(page: WaveLedger, order: RunCommand, now: datetime) -> WaveLedger:
    match order.what:
        case RunAction.RUN:
            return page.with_run(RunRecord(f"m{order.number}", now + LEAD_TIME))
        case RunAction.CANCEL:
            meant = [each for each in page.running if order.run in ("", each.name)]
            return _changed(page, lambda each: each.cancelled(now) if each in meant else each)
        case RunAction.RETRY:
            over = [each for each in page.runs if each.name == order.run and each.state is not RunState.RUNNING]
            return _changed(page, lambda each: each.retried(now) if each in over else each)


# as the cluster has it


def parse(waves: Iterable[Manifest]) -> dict[str, WaveLedger]:
    """Read the Ledger of a Fleet out of its status; an entry that cannot be read is nobody's."""
    found: dict[str, WaveLedger] = {}
    for each in waves:
        try:
            runs = tuple(_entry(run) for run in each.get("runs") or ())
            heeded = int(each.get("heeded", 0))
            found[each["name"]] = WaveLedger(_time(each["since"]), _time(each["seen"]), runs, heeded)
        except (AttributeError, KeyError, ValueError, TypeError):
            continue
    return found


def _entry(run: Manifest) -> RunRecord:
    return RunRecord(
        str(run["name"]),
        _time(run["start"]),
        RunState(run["state"]),
        int(run.get("submitted", 0)),
        int(run.get("total", 0)),
        _read_ranges(str(run.get("refused", ""))),
        str(run.get("why", "")),
        timedelta(seconds=float(run.get("shiftSeconds", 0))),
        _time(run["paused"]) if run.get("paused") else None,
        int(run.get("churned", 0)),
        _time(run["ended"]) if run.get("ended") else None,
        CleanupState(run.get("upkeep", "")),
        RunVerdict(run.get("verdict", "")),
    )


def _read_ranges(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (part.partition("-") for part in text.split(",") if part)
    return tuple((int(first), int(last or first)) for first, _, last in pairs)


def serialize(pages: Mapping[str, WaveLedger]) -> list[Manifest]:
    """Return the Ledger of a Fleet as its status has it.

    `seen` moves only with a Run: a Ledger that says nothing new is not written anew.
    """
    return [
        {
            "name": name,
            "since": _text(page.since),
            "seen": _text(max((run.start for run in page.runs), default=page.since - _BEFORE)),
            "runs": [_run(run) for run in page.runs],
        }
        | ({"heeded": page.heeded} if page.heeded else {})
        for name, page in sorted(pages.items())
    ]


def _run(run: RunRecord) -> Manifest:
    made: Manifest = {
        "name": run.name,
        "start": _text(run.start),
        "state": run.state.value,
        "submitted": run.submitted,
        "total": run.total,
        "failed": run.failed,
    }
    more: Manifest = {
        "refused": ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in run.refused),
        "why": run.why[:_WORDS],
        "shiftSeconds": run.shift.total_seconds(),
        "paused": _text(run.paused) if run.paused else "",
        "churned": run.rounds,
        "ended": _text(run.ended) if run.ended else "",
        "upkeep": run.upkeep.value,
        "verdict": run.verdict.value,
    }
    return made | {name: value for name, value in more.items() if value}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment
