"""The controller of Waves: schedules, starts, suspends and cancels Runs.

The Ledger is written before a Run's first object: `schedule_due_runs` adds due Runs to the Ledger,
`serialized_ledgers` returns it for the Fleets' status, and `start_persisted_runs` starts only Runs that the status in
the cluster has. So the next leader finishes every Run that has objects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.wave import Wave
from kwokfleet.kube import discovery, throttled_client
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired
from kwokfleet.waves import cleanup, deadline_queue, ledger, run_executor
from kwokfleet.waves.ledger import CleanupState, RunRecord, RunState, RunVerdict, WaveLedger
from kwokfleet.waves.run_commands import RunCommand
from kwokfleet.waves.run_executor import RunExecutor, RunKey, RunListener

STOP_TIMEOUT_S = 1.0
"""How long a suspended or cancelled Run may finish its open requests."""


class WaveController:
    """Keeps the Ledger and the threads of all Runs. For one thread."""

    def __init__(
        self, sender: throttled_client.ThrottledClient, on_change: Callable[[], None], listener: RunListener
    ) -> None:
        self._listener, kinds = listener, discovery.KindResolver(sender)
        deadlines = deadline_queue.DeadlineQueue(lambda: sender.concurrency)
        self._services = run_executor.RunServices(sender, deadlines, kinds, listener, on_change)
        self._ledgers: dict[str, dict[str, WaveLedger]] = {}
        self._executors: dict[RunKey, RunExecutor] = {}
        self._cleanups: dict[RunKey, cleanup.RunCleanup] = {}
        self._active: dict[RunKey, tuple[fleet_api.Fleet, Wave]] = {}
        """Runs that are open and not suspended."""

    def load_ledger(self, fleet: str, status: Manifest) -> None:
        """Load a Fleet's Ledger from its status, unless it is loaded."""
        if fleet not in self._ledgers:
            self._ledgers[fleet] = ledger.parse(status.get("waves") or ())

    def reset(self) -> None:
        """Stop all Runs and discard all Ledgers: another process leads."""
        for thread in self._threads():
            thread.cancel()
        self._executors.clear()
        self._cleanups.clear()
        self._active.clear()
        self._ledgers.clear()

    # schedule, persist, start

    def schedule_due_runs(
        self,
        tree: desired.Tree,
        is_ready: Callable[[str], bool],
        now: datetime,
        commands: Mapping[str, Sequence[RunCommand]],
    ) -> list[tuple[str, str, RunRecord]]:
        """Update the Ledgers: add due Runs, apply commands, stop Runs that are suspended or removed.

        Returns the new Runs with Fleet and Wave. `start_persisted_runs` starts them once the cluster has the Ledger.
        *is_ready*: whether a Fleet's nodes are ready for new Waves.
        """
        new_runs: list[tuple[str, str, RunRecord]] = []
        self._collect_progress()
        self._active = {}
        self._suspend_runs(self._ledgers.keys() - {fleet.name for fleet in tree.fleets}, now)
        for fleet in tree.fleets:
            wave_ledgers = self._ledgers.setdefault(fleet.name, {})
            for name in wave_ledgers.keys() - {wave.name for wave in fleet.spec.waves}:
                del wave_ledgers[name]
            for wave in fleet.spec.waves:
                if wave.name in wave_ledgers or (is_ready(fleet.name) and not _is_suspended(fleet, wave)):
                    records = self._update_wave(fleet, wave, commands.get(fleet.name, ()), now)
                    new_runs += [(fleet.name, wave.name, record) for record in records]
        self._stop_inactive()
        return new_runs

    def _update_wave(
        self, fleet: fleet_api.Fleet, wave: Wave, commands: Sequence[RunCommand], now: datetime
    ) -> list[RunRecord]:
        """Update the Ledger of one Wave; return its new Runs."""
        is_suspended = _is_suspended(fleet, wave)
        before = self._ledgers[fleet.name].get(wave.name) or ledger.new_wave_ledger(now + ledger.LEAD_TIME)
        after = ledger.apply_commands(before, wave.name, commands, now)
        if is_suspended:
            after = ledger.suspend_runs(after, now)
        else:
            after, _ = ledger.add_due_runs(after, wave.start, now + ledger.LEAD_TIME)
            after = ledger.resume_runs(after, now)
        after = ledger.set_cleanup(after, enabled=wave.ttl is not None or wave.cleanup is not None)
        self._ledgers[fleet.name][wave.name] = after
        self._mark_changes(fleet.name, wave.name, before, after)
        if not is_suspended:
            keys = ((fleet.name, wave.name, run.name) for run in after.runs if run.is_open)
            self._active |= dict.fromkeys(keys, (fleet, wave))
        return [run for run in after.runs if before.run(run.name) is None]

    def _mark_changes(self, fleet: str, wave: str, before: WaveLedger, after: WaveLedger) -> None:
        """Report cancelled, suspended and resumed Runs to the listener."""
        for run in after.runs:
            old = before.run(run.name)
            if old is not None and old.state is not run.state:
                text = "cancelled" if run.state is RunState.CANCELLED else "resumed"
                self._listener.timeline_mark((fleet, wave, run.name), text)
            elif old is not None and bool(old.paused_at) != bool(run.paused_at):
                self._listener.timeline_mark((fleet, wave, run.name), "suspended" if run.paused_at else "resumed")

    def serialized_ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet with Waves, for its status."""
        return {fleet: ledger.serialize(waves) for fleet, waves in self.wave_ledgers().items() if waves}

    def start_persisted_runs(self, tree: desired.Tree, status: Callable[[str], Manifest]) -> None:
        """Start or continue the Runs in the cluster's Ledger; *status*: returns the status of a Fleet as written."""
        for key, (fleet, wave) in self._active.items():
            record = self._record(key)
            persisted = ledger.parse(status(fleet.name).get("waves") or ()).get(wave.name)
            if persisted is None or persisted.run(record.name) is None:
                continue
            context = desired.run_context(tree, fleet, wave, record.name)
            if record.state is RunState.RUNNING and key not in self._executors:
                self._executors[key] = RunExecutor(self._services, context, record)
                self._executors[key].start()
            if record.cleanup is CleanupState.DUE and key not in self._cleanups:
                self._cleanups[key] = cleanup.RunCleanup(self._services, context, partial(self._wave_ledger, key))
                self._cleanups[key].start()

    # suspend and stop

    def suspend_all(self, now: datetime) -> None:
        """Suspend all Runs until the next `schedule_due_runs`."""
        self._collect_progress()
        self._suspend_runs(self._ledgers.keys(), now)
        self._active = {}
        self._stop_inactive()

    def _suspend_runs(self, fleets: Iterable[str], now: datetime) -> None:
        """Suspend all Runs of some Fleets in the Ledger: they are suspended, or their files are invalid."""
        for fleet in fleets:
            for wave, wave_ledger in self._ledgers[fleet].items():
                self._ledgers[fleet][wave] = ledger.suspend_runs(wave_ledger, now)
                self._mark_changes(fleet, wave, wave_ledger, self._ledgers[fleet][wave])

    def _stop_inactive(self) -> None:
        """Stop the threads of Runs that are not active, and record their progress."""
        running = {key for key in self._active if self._record(key).state is RunState.RUNNING}
        stopped = {key: self._executors.pop(key) for key in self._executors.keys() - running}
        for key in self._cleanups.keys() - self._active.keys():
            self._cleanups.pop(key).cancel()
        for executor in stopped.values():
            executor.cancel()
        for key, executor in stopped.items():
            executor.join(STOP_TIMEOUT_S)
            self._update_record(key, partial(_with_progress, executor=executor))

    def stop(self) -> None:
        """Stop all Runs and wait for their open requests."""
        for thread in self._threads():
            thread.cancel()
        for thread in self._threads():
            thread.join()

    def _threads(self) -> list[RunExecutor | cleanup.RunCleanup]:
        return [*self._executors.values(), *self._cleanups.values()]

    # Ledgers

    def wave_ledgers(self) -> Mapping[str, Mapping[str, WaveLedger]]:
        """Return all WaveLedgers by Fleet and Wave, with current progress."""
        self._collect_progress()
        return self._ledgers

    @property
    def is_running(self) -> bool:
        """Whether a Run is running."""
        return any(wave.running for waves in self.wave_ledgers().values() for wave in waves.values())

    def record_verdicts(self, verdicts: Mapping[RunKey, RunVerdict]) -> None:
        """Add verdicts to the Ledgers."""
        for key, verdict in verdicts.items():
            self._update_record(key, partial(replace, verdict=verdict))

    def next_start(self, tree: desired.Tree, now: datetime) -> datetime | None:
        """Return when the next Run must be scheduled, None if none is due within a day."""
        times = [
            start - ledger.LEAD_TIME
            for fleet in tree.fleets
            for wave in fleet.spec.waves
            if not _is_suspended(fleet, wave)
            if (wave_ledger := self._ledgers.get(fleet.name, {}).get(wave.name)) is not None
            if (start := ledger.next_start(wave_ledger, wave.start, now)) is not None
        ]
        return min(times, default=None)

    def _collect_progress(self) -> None:
        """Copy the progress of all threads into the Ledgers, and drop finished threads."""
        for key, executor in tuple(self._executors.items()):
            self._update_record(key, partial(_with_progress, executor=executor))
            if not executor.is_alive() and executor.record.state is RunState.DONE:
                del self._executors[key]
        for key, run_cleanup in tuple(self._cleanups.items()):
            self._update_record(key, partial(replace, cleanup=run_cleanup.state))
            if run_cleanup.state is CleanupState.DONE:
                del self._cleanups[key]

    def _wave_ledger(self, key: RunKey) -> WaveLedger | None:
        return self._ledgers.get(key[0], {}).get(key[1])

    def _record(self, key: RunKey) -> RunRecord:
        return next(run for run in self._ledgers[key[0]][key[1]].runs if run.name == key[2])

    def _update_record(self, key: RunKey, change: Callable[[RunRecord], RunRecord]) -> None:
        wave_ledger = self._wave_ledger(key)
        record = wave_ledger.run(key[2]) if wave_ledger else None
        if wave_ledger is not None and record is not None:
            self._ledgers[key[0]][key[1]] = wave_ledger.with_run(change(record))


def _with_progress(record: RunRecord, executor: RunExecutor) -> RunRecord:
    """Return a RunRecord with the executor's progress. Its state changes from Running to Done only."""
    progress = executor.record
    if progress.state is RunState.DONE and record.state is RunState.RUNNING:
        record = replace(record, state=progress.state, ended_at=progress.ended_at, paused_at=None)
    return replace(
        record,
        submitted=progress.submitted,
        total=progress.total,
        rejected=progress.rejected,
        error=progress.error,
        churn_rounds=progress.churn_rounds,
    )


def _is_suspended(fleet: fleet_api.Fleet, wave: Wave) -> bool:
    return fleet.spec.suspend or wave.suspend
