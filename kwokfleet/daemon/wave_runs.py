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
from kwokfleet.render import desired
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
        results: Path | None,
    ) -> None:
        self._event_log, self._status_writer = dependencies.event_log, writer
        sender = dependencies.sync.sender
        context = measurer.MeasurerDependencies(
            lambda: dependencies.managed.view().objects,
            lambda: dependencies.source.revision,
            on_change,
            dependencies.metrics.submitted,
        )
        store = result_store.ResultStore(results) if results is not None else None
        self._measurer = measurer.Measurer(dependencies.client, sender, store, context) if store is not None else None
        self._controller = controller.WaveController(sender, on_change, self._measurer)

    def measured(self) -> tuple[ResultSummary, ...]:
        """Return a summary of the last Result of each Wave."""
        last = self._measurer.summaries.last() if self._measurer is not None else {}
        return tuple(last[name] for name in sorted(last))

    @property
    def busy(self) -> bool:
        """Whether a Run is being executed or measured."""
        return self._controller.is_running or (self._measurer is not None and self._measurer.busy)

    def suspend_all(self) -> None:
        """Suspend all Runs until they are scheduled again."""
        self._controller.suspend_all(datetime.now(UTC))

    def schedule(self, loaded: loader.Loaded, unfinished: AbstractSet[str], fleets: Iterable[Manifest]) -> bool:
        """Enter due Runs into the Ledger in memory and apply commands; return whether there are new Runs.

        A Fleet with *unfinished* changes starts no new Wave. `start_persisted` starts the Runs once the Ledger is
        in the cluster.
        """
        for fleet in loaded.tree.fleets:
            self._controller.load_ledger(fleet.name, self._status_writer.status_of(fleet.name))
        ready = (lambda _name: False) if SHARED in unfinished else (lambda name: name not in unfinished)
        new_runs = self._controller.schedule_due_runs(
            loaded.tree, ready, datetime.now(UTC), run_commands.by_fleet(fleets)
        )
        for fleet_name, wave, run in new_runs:
            if self._measurer is not None:
                self._measurer.expect_run((fleet_name, wave, run.name))
            title = f"run {run.name} of wave {wave}"
            self._event_log.record("wave", f"{title} starts", fleet=fleet_name, wave=wave, run=run.name)
            self._status_writer.emit_event(fleet_name, "RunStarted", title)
        if self._measurer is not None:
            self._measurer.reconcile(loaded.tree, self._controller.wave_ledgers(), whole=loaded.whole)
        return bool(new_runs)

    def start_persisted(self, tree: desired.Tree, status: Callable[[str], Manifest]) -> None:
        """Start, or resume, the Runs that the Ledger in the cluster contains."""
        self._controller.start_persisted_runs(tree, status)

    def next_start(self, tree: desired.Tree, now: datetime) -> datetime | None:
        """Return when the next Run has to be scheduled, None if none is near."""
        return self._controller.next_start(tree, now)

    def ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet, with the latest verdicts."""
        if self._measurer is not None:
            self._controller.record_verdicts(self._measurer.summaries.verdicts())
            self._measurer.update_records(self._controller.wave_ledgers())
        return self._controller.serialized_ledgers()

    def conditions(self, loaded: loader.Loaded) -> dict[str, Manifest]:
        """Return the gate condition of each Fleet with gates."""
        wave_ledgers = self._controller.wave_ledgers()
        last = self._measurer.summaries.last() if self._measurer is not None else {}
        conditions = {
            fleet.name: verdicts.condition(fleet.spec.waves, wave_ledgers.get(fleet.name, {}), last, fleet.name)
            for fleet in loaded.tree.fleets
        }
        return {name: condition for name, condition in conditions.items() if condition is not None}

    def report_verdicts(self) -> None:
        """Log and emit an Event for each Run judged since the last call."""
        for run in self._measurer.summaries.take_new() if self._measurer is not None else ():
            reason, kind, text = _CANCELLED if run.cancelled else _REASONS[RunVerdict(run.verdict)]
            message = f"run {run.run} of wave {run.wave}: {run.why or text}"
            self._event_log.record(
                "wave", message, fleet=run.fleet, warning=kind == events.WARNING, wave=run.wave, run=run.run,
                verdict=run.verdict,
            )  # fmt: skip
            self._status_writer.emit_event(run.fleet, reason, message, kind=kind)

    def reset(self) -> None:
        """Stop everything and clear all state: another daemon leads."""
        self._controller.reset()
        if self._measurer is not None:
            self._measurer.reset()

    def stop(self) -> None:
        """Stop, and wait for requests in flight."""
        self._controller.stop()
        if self._measurer is not None:
            self._measurer.stop()
