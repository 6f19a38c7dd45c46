"""Runs of a daemon: scheduled, executed, measured, and reported when they are judged."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from pathlib import Path

from kwokfleet.daemon.options import Dependencies
from kwokfleet.kube import events
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import measurer, result_store, verdicts
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile import status_writer
from kwokfleet.reconcile.changes import SHARED
from kwokfleet.source import loader
from kwokfleet.waves import controller, run_commands
from kwokfleet.waves.ledger import RunVerdict

_REASONS = {
    RunVerdict.PASSED: ("RunPassed", events.NORMAL, "all gates passed"),
    RunVerdict.FAILED: ("RunFailed", events.WARNING, ""),
    RunVerdict.NO_DATA: ("RunNotMeasured", events.WARNING, "no data was measured"),
    RunVerdict.MEASURED: ("RunMeasured", events.NORMAL, "the wave has no gates; see kwokfleet report"),
}
_CANCELLED = ("RunCancelled", events.NORMAL, "the run was cancelled; its measurements up to then are kept")


class WaveRuns:
    """Drives the wave controller and the measurer. Used by the worker thread only, except `measured`."""

    def __init__(
        self,
        dependencies: Dependencies,
        writer: status_writer.StatusWriter,
        on_change: Callable[[], None],
        results: Path,
    ) -> None:
        self._event_log, self._status_writer = dependencies.event_log, writer
        sender = dependencies.sync.sender
        context = measurer.MeasurerDependencies(
            lambda: dependencies.managed.view().objects,
            lambda: dependencies.source.revision,
            on_change,
            dependencies.metrics.submitted,
        )
        store = result_store.ResultStore(results)
        self._measurer = measurer.Measurer(dependencies.client, sender, store, context)
        self.controller = controller.WaveController(sender, on_change, self._measurer)

    def measured(self) -> tuple[ResultSummary, ...]:
        """Return a summary of the last Result of each Wave."""
        return tuple(summary for _, summary in sorted(self._measurer.summaries.last().items()))

    @property
    def busy(self) -> bool:
        """Whether a Run is being executed or measured."""
        return self.controller.is_running or self._measurer.busy

    def schedule(self, loaded: loader.Loaded, unfinished: AbstractSet[str], fleets: Iterable[Manifest]) -> bool:
        """Enter due Runs into the Ledger in memory and apply commands; return whether there are new Runs.

        A Fleet with *unfinished* changes starts no new Wave. The controller starts the Runs once the Ledger is in
        the cluster.
        """
        for fleet in loaded.tree.fleets:
            self.controller.load_ledger(fleet.name, self._status_writer.status_of(fleet.name))
        ready = (lambda _name: False) if SHARED in unfinished else (lambda name: name not in unfinished)
        commands = run_commands.by_fleet(fleets)
        new_runs = self.controller.schedule_due_runs(loaded.tree, ready, datetime.now(UTC), commands)
        for fleet_name, wave, run in new_runs:
            self._measurer.expect_run((fleet_name, wave, run.name))
            title = f"run {run.name} of wave {wave}"
            self._event_log.record("wave", f"{title} starts", fleet=fleet_name, wave=wave, run=run.name)
            self._status_writer.emit_event(fleet_name, "RunStarted", title)
        self._measurer.reconcile(loaded.tree, self.controller.wave_ledgers(), whole=loaded.whole)
        return bool(new_runs)

    def ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet, with the latest verdicts."""
        self.controller.record_verdicts(self._measurer.summaries.verdicts())
        self._measurer.update_records(self.controller.wave_ledgers())
        return self.controller.serialized_ledgers()

    def conditions(self, loaded: loader.Loaded) -> dict[str, Manifest]:
        """Return the gate condition of each Fleet with gates."""
        wave_ledgers, last = self.controller.wave_ledgers(), self._measurer.summaries.last()
        conditions = {
            fleet.name: verdicts.condition(fleet.spec.waves, wave_ledgers.get(fleet.name, {}), last, fleet.name)
            for fleet in loaded.tree.fleets
        }
        return {name: condition for name, condition in conditions.items() if condition is not None}

    def report_verdicts(self) -> None:
        """Log and emit an Event for each Run judged since the last call."""
        for run in self._measurer.summaries.take_new():
            reason, kind, text = _CANCELLED if run.cancelled else _REASONS[RunVerdict(run.verdict)]
            message = f"run {run.run} of wave {run.wave}: {run.why or text}"
            details = {"wave": run.wave, "run": run.run, "verdict": run.verdict}
            self._event_log.record("wave", message, fleet=run.fleet, warning=kind == events.WARNING, **details)
            self._status_writer.emit_event(run.fleet, reason, message, kind=kind)

    def reset(self) -> None:
        """Stop everything and clear all state: another daemon leads."""
        self.controller.reset()
        self._measurer.reset()

    def stop(self) -> None:
        """Stop, and wait for requests in flight."""
        self.controller.stop()
        self._measurer.stop()
