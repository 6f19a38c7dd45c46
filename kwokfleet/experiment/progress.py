"""Progress of a test: the Waves it waits for, the state of their Runs, and their failures.

A test is finished when every expected Wave has had one Run, and that Run has a verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kwokfleet.api.fleet import Fleet
from kwokfleet.measure.result import Result
from kwokfleet.render import schedule
from kwokfleet.waves.ledger import RunRecord, RunState, WaveLedger

_HORIZON = timedelta(days=366 * 100)
MAX_NAMES = 3
"""Number of names in a message; the others are only counted."""

RunKey = tuple[str, str, str]
"""Fleet, Wave and Run."""


@dataclass(frozen=True, slots=True)
class ExpectedWave:
    """A Wave that must have a Run before the test is finished."""

    fleet: str
    wave: str
    has_gates: bool
    allows_failures: bool
    """Whether it has a gate for the number of failed objects."""

    def __str__(self) -> str:
        return f"{self.fleet}/{self.wave}"


@dataclass(frozen=True, slots=True)
class WaveSelection:
    """The Waves of a tree: those a test waits for, and those it does not start."""

    expected: tuple[ExpectedWave, ...] = ()
    suspended: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    """Waves whose only start time is in the past."""
    late: tuple[tuple[str, datetime], ...] = ()
    """Waves whose first Run starts after the end of the test, and its start time."""


def select_waves(fleets: Iterable[Fleet], now: datetime, within: timedelta) -> WaveSelection:
    """Return the Waves that can have a Run within a time, and the others by cause."""
    expected, suspended, past, late = [], [], [], []
    for fleet, wave in [(owner, wave) for owner in fleets for wave in owner.spec.waves]:
        name = f"{fleet.name}/{wave.name}"
        # The first Run if the Fleet were created now.
        run = next(schedule.runs_between(wave.start, now, now - timedelta(microseconds=1), now + _HORIZON), None)
        if fleet.spec.suspend or wave.suspend:
            suspended.append(name)
        elif run is None:
            past.append(name)
        elif run.start > now + within:
            late.append((name, run.start))
        else:
            gates = wave.expect
            allows_failures = gates is not None and gates.failures is not None
            expected.append(ExpectedWave(fleet.name, wave.name, gates is not None, allows_failures))
    return WaveSelection(tuple(expected), tuple(suspended), tuple(past), tuple(late))


class RunStep(StrEnum):
    """Step of a Run in a test."""

    WAITING = "waiting"
    """The Run has not started."""
    SUBMITTING = "submitting"
    MEASURING = "measuring"
    """All objects are submitted; some are not complete."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of one Run, or of a Wave without a Run."""

    wave: ExpectedWave
    expected: bool
    """Whether the test waits for this Run: the first of its Wave."""
    record: RunRecord | None = None
    result: Result | None = None

    @property
    def name(self) -> str:
        """`fleet/wave`; the first Run has no number."""
        run = f"/{self.record.name}" if self.record and self.record.name != "0" else ""
        return f"{self.wave}{run}"

    @property
    def step(self) -> RunStep:
        """The present step."""
        if self.record is None:
            return RunStep.WAITING
        if self.record.verdict:
            return RunStep.FINISHED
        return RunStep.SUBMITTING if self.record.state is RunState.RUNNING else RunStep.MEASURING

    @property
    def duration(self) -> timedelta | None:
        """Time from the scheduled start to the last completion; None while it is unknown."""
        end = self.result.end if self.result else None
        return end - self.record.start if end is not None and self.record is not None else None

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the Run fails the test; empty if it does not."""
        record = self.record
        if record is None:
            return ()
        failures = [
            f"{gate.name}: wanted {gate.want}, got {gate.got}{f' ({gate.why})' if gate.why else ''}"
            for gate in (self.result.gates if self.result else ())
            if not gate.passed
        ]
        if record.state is RunState.CANCELLED:
            failures.append(f"the run was cancelled{f': {record.error}' if record.error else ''}")
        elif record.rejected_count and not self.wave.allows_failures:
            failures.append(f"{record.rejected_count} of {record.total} objects were rejected: {record.error}")
        elif record.verdict in ("Failed", "NoData") and not failures:
            failures.append("a gate failed" if record.verdict == "Failed" else "a gate has no data")
        return tuple(failures)


def run_progress(
    expected: Iterable[ExpectedWave], records: Mapping[RunKey, RunRecord], results: Mapping[RunKey, Result]
) -> list[RunProgress]:
    """Return the progress of all Runs, in the order of the Waves; a test waits for the first Run of each."""
    progress: list[RunProgress] = []
    for wave in expected:
        runs = sorted((record.start, key) for key, record in records.items() if key[:2] == (wave.fleet, wave.wave))
        keys = [key for _, key in runs]
        progress += [RunProgress(wave, key == keys[0], records[key], results.get(key)) for key in keys]
        if not keys:
            progress.append(RunProgress(wave, expected=True))
    return progress


def all_finished(runs: Iterable[RunProgress]) -> bool:
    """Return whether every expected Run is finished."""
    return all(run.step is RunStep.FINISHED for run in runs if run.expected)


def run_records(fleet: str, ledgers: Mapping[str, WaveLedger]) -> dict[RunKey, RunRecord]:
    """Return all Runs in the Ledgers of a Fleet's Waves."""
    return {(fleet, wave, record.name): record for wave, ledger in ledgers.items() for record in ledger.runs}


def abbreviate(names: Iterable[object]) -> str:
    """Return the first names, and the number of the others."""
    texts = [str(name) for name in names]
    others = f" and {len(texts) - MAX_NAMES} more" if len(texts) > MAX_NAMES else ""
    return ", ".join(texts[:MAX_NAMES]) + others
