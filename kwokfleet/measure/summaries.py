"""Verdicts and summaries of measured Runs, for the Ledger, the Fleet status and the daemon's API."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from kwokfleet import errors
from kwokfleet.measure import result_store, verdicts
from kwokfleet.measure.result import Result, ResultSummary
from kwokfleet.render import workloads
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict, WaveLedger
from kwokfleet.waves.run_executor import RunKey


class ResultSummaries:
    """Summaries of Results. For any thread."""

    def __init__(self, store: result_store.ResultStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._verdicts: dict[RunKey, RunVerdict] = {}
        """Verdicts that the Ledger does not have yet."""
        self._last: dict[tuple[str, str], ResultSummary] = {}
        self._loaded: set[tuple[str, str]] = set()
        self._new: list[ResultSummary] = []

    def add(self, result: Result) -> None:
        """Add the final Result of a Run."""
        summary = verdicts.summarize(result)
        with self._lock:
            self._verdicts[result.fleet, result.wave, result.run] = RunVerdict(summary.verdict)
            self._last[result.fleet, result.wave] = summary
            self._new.append(summary)

    def add_stored(self, context: workloads.RunContext, record: RunRecord) -> bool:
        """Add the stored final Result of a Run; return whether there is one.

        A process that died before it wrote the verdict into the Ledger leaves such a Result.
        """
        folder = self._store.folder(context.fleet.name, context.wave.name, record.name, record.start)
        try:
            result = result_store.load(folder)
        except errors.InputError:
            return False
        deadline = context.wave.expect.deadline if context.wave.expect is not None else None
        is_late = deadline is not None and datetime.now(UTC) >= record.start + deadline
        # A Run with a final Result that is running again is a retry: it is measured again.
        is_final = result.state != "Running" and (is_late or record.state is not RunState.RUNNING)
        if is_final:
            self.add(result)
        return is_final

    def load_last(self, fleet: str, wave: str) -> None:
        """Load the last stored Result of a Wave, once."""
        if (fleet, wave) in self._loaded:
            return
        self._loaded.add((fleet, wave))
        for stored in self._store.find(fleet, wave):
            with contextlib.suppress(errors.InputError):
                result = stored.result()
                if result.state != "Running":
                    with self._lock:
                        self._last.setdefault((fleet, wave), verdicts.summarize(result))
                    return

    def verdicts(self) -> dict[RunKey, RunVerdict]:
        """Return the verdicts that the Ledger does not have yet."""
        with self._lock:
            return dict(self._verdicts)

    def last(self) -> dict[tuple[str, str], ResultSummary]:
        """Return the last Result of each Wave, by Fleet and Wave."""
        with self._lock:
            return dict(self._last)

    def take_new(self) -> list[ResultSummary]:
        """Return the Results added since the last call."""
        with self._lock:
            new, self._new = self._new, []
            return new

    def discard_waves(self, is_removed: Callable[[tuple[str, str]], bool]) -> None:
        """Discard the last Results of removed Waves."""
        with self._lock:
            self._last = {wave: summary for wave, summary in self._last.items() if not is_removed(wave)}

    def discard_recorded(self, ledgers: Mapping[str, Mapping[str, WaveLedger]]) -> None:
        """Discard the verdicts that the Ledger has."""
        with self._lock:
            for key in tuple(self._verdicts):
                wave_ledger = ledgers.get(key[0], {}).get(key[1])
                record = wave_ledger.run(key[2]) if wave_ledger is not None else None
                if record is None or record.verdict:
                    del self._verdicts[key]

    def discard_verdicts(self) -> None:
        """Discard all verdicts: another process leads."""
        with self._lock:
            self._verdicts.clear()
