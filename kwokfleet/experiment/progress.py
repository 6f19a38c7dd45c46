"""How far a test of a fleet has come: which Runs it waits for, how each fares, and what they came to.

A test plays every Wave of its files once. It is over when each of them has had a Run, and everything
that is to be known of that Run is known.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kwokfleet.api.fleet import Fleet
from kwokfleet.api.wave import Wave
from kwokfleet.measure.result import Result
from kwokfleet.render import schedule
from kwokfleet.waves.ledger import RunRecord, RunState, WaveLedger

_INSTANT = timedelta(microseconds=1)
NAMED = 3
"""How many are named before the rest is only counted."""

Name = tuple[str, str, str]
"""Fleet, Wave and Run."""
Pages = Mapping[str, Mapping[str, WaveLedger]]
"""The Ledgers: by Fleet, by Wave."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A Wave that is to have a Run."""

    fleet: str
    wave: str
    due: datetime
    """When its first Run would be, if the cluster were there now."""
    gated: bool
    """Whether anything is expected of it."""
    may_fail: bool
    """Whether it says itself how many objects may fail."""

    def __str__(self) -> str:
        """Return how people call it."""
        return f"{self.fleet}/{self.wave}"


@dataclass(frozen=True, slots=True)
class Casting:
    """What becomes of the Waves of some files in a test."""

    awaited: tuple[Awaited, ...] = ()
    asleep: tuple[str, ...] = ()
    """Those that are suspended."""
    never: tuple[str, ...] = ()
    """Those whose only time is past."""
    late: tuple[tuple[str, datetime], ...] = ()
    """Those whose first Run is due when the test is over, and when that is."""


def cast(fleets: Iterable[Fleet], now: datetime, within: timedelta) -> Casting:
    """Return which Waves can have a Run within a time."""
    awaited, asleep, never, late = [], [], [], []
    for fleet, wave in _waves(fleets):
        name = f"{fleet.name}/{wave.name}"
        first = _first(wave, now)
        if fleet.spec.suspend or wave.suspend:
            asleep.append(name)
        elif first is None:
            never.append(name)
        elif first > now + within:
            late.append((name, first))
        else:
            expect = wave.expect
            may_fail = expect is not None and expect.failures is not None
            awaited.append(Awaited(fleet.name, wave.name, first, expect is not None, may_fail))
    return Casting(tuple(awaited), tuple(asleep), tuple(never), tuple(late))


def _waves(fleets: Iterable[Fleet]) -> Iterator[tuple[Fleet, Wave]]:
    for fleet in fleets:
        for wave in fleet.spec.waves:
            yield fleet, wave


def _first(wave: Wave, now: datetime) -> datetime | None:
    """Return when a Wave that is seen now for the first time has its first Run; None: never."""
    centuries = timedelta(days=366 * 100)
    run = next(schedule.runs_between(wave.start, now, now - _INSTANT, now + centuries), None)
    return run.start if run else None


class Step(StrEnum):
    """How far a Wave has come."""

    WAITING = "waiting"
    PLAYING = "playing"
    """Objects are being submitted."""
    MEASURING = "measuring"
    """All are submitted; not all are complete."""
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Part:
    """How one Run of a Wave fares, or a Wave that has none yet."""

    fleet: str
    wave: str
    awaited: Awaited | None
    """None: the test does not wait for it."""
    entry: RunRecord | None = None
    result: Result | None = None

    @property
    def name(self) -> str:
        """How people call it: the Run is named where there may be several."""
        run = f"/{self.entry.name}" if self.entry and self.entry.name != "0" else ""
        return f"{self.fleet}/{self.wave}{run}"

    @property
    def step(self) -> Step:
        """How far it has come."""
        if self.entry is None:
            return Step.WAITING
        if self.entry.verdict:
            return Step.OVER
        return Step.PLAYING if self.entry.state is RunState.RUNNING else Step.MEASURING

    @property
    def took(self) -> timedelta | None:
        """From when it was due to when all was over; None if it is not."""
        ended = self.result.end if self.result else None
        return ended - self.entry.start if ended is not None and self.entry is not None else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why the answer is no, if it is."""
        if self.entry is None:
            return ()
        found = [
            f"{gate.name}: wanted {gate.want}, got {gate.got}{f' ({gate.why})' if gate.why else ''}"
            for gate in (self.result.gates if self.result else ())
            if not gate.passed
        ]
        if self.entry.state is RunState.CANCELLED:
            found.append(f"it was cancelled{f': {self.entry.error}' if self.entry.error else ''}")
        elif self.entry.rejected_count and not (self.awaited and self.awaited.may_fail):
            found.append(f"{self.entry.rejected_count} of {self.entry.total} objects were refused: {self.entry.error}")
        elif self.entry.verdict in ("Failed", "NoData") and not found:
            found.append("a gate did not hold" if self.entry.verdict == "Failed" else "there is no data for a gate")
        return tuple(found)


def parts(awaited: Iterable[Awaited], entries: Mapping[Name, RunRecord], results: Mapping[Name, Result]) -> list[Part]:
    """Return how each Wave fares, in the order of the files; of one with several Runs, the first is waited for."""
    made: list[Part] = []
    for each in awaited:
        mine = sorted((entry.start, name) for name, entry in entries.items() if name[:2] == (each.fleet, each.wave))
        if not mine:
            made.append(Part(each.fleet, each.wave, each))
        for number, (_, name) in enumerate(mine):
            made.append(Part(each.fleet, each.wave, each if not number else None, entries[name], results.get(name)))
    return made


def over(found: Iterable[Part]) -> bool:
    """Return whether nothing is left to wait for."""
    return all(each.step is Step.OVER for each in found if each.awaited)


def entries(pages: Pages) -> dict[Name, RunRecord]:
    """Return all Runs that the Ledgers know of."""
    return {
        (fleet, wave, entry.name): entry
        for fleet, waves in pages.items()
        for wave, page in waves.items()
        for entry in page.runs
    }


def some(names: Iterable[object]) -> str:
    """Return a few names and how many more there are."""
    known = [str(each) for each in names]
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + more
