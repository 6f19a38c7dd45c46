"""The Runs of a daemon: played, measured, and told of when they are judged."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kwokfleet.daemon import event_log
from kwokfleet.kube import events, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import measurer, result_store, verdicts
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile import status_writer
from kwokfleet.source import loader
from kwokfleet.waves import controller
from kwokfleet.waves.ledger import RunVerdict

_REASONS = {
    RunVerdict.PASSED: ("RunPassed", events.NORMAL, "all gates held"),
    RunVerdict.FAILED: ("RunFailed", events.WARNING, ""),
    RunVerdict.NO_DATA: ("RunNotMeasured", events.WARNING, "nothing was measured"),
    RunVerdict.MEASURED: (
        "RunMeasured",
        events.NORMAL,
        "its wave has no gates; kwokfleet report shows what was measured",
    ),
}

_CANCELLED = ("RunCancelled", events.NORMAL, "it was cancelled; what was measured until then is kept")


Around = measurer.MeasurerDependencies


class Watches(Protocol):
    """Who counts what happens: the metrics."""

    def submitted(self, fleet: str, wave: str, refused: bool) -> None:  # noqa: FBT001  # what became of it
        """Take note of an object of a Wave."""


class Runs:
    """What the worker does about Waves; used by it alone, but for what is measured."""

    def __init__(  # noqa: PLR0913, PLR0917  # what it is made of
        self,
        api: informer.Api,
        sender: throttled_client.Sender,
        told: event_log.Journal,
        writes: status_writer.Recorder,
        around: Around,
        results: Path | None,
    ) -> None:
        self._journal, self._recorder = told, writes
        kept = result_store.ResultStore(results) if results is not None else None
        self._measurer = measurer.Measurer(api, sender, kept, around) if kept is not None else None
        self._player = controller.WaveController(sender, around.news, self._measurer)
        self.perform, self.next_start = self._player.perform, self._player.next_start

    def measured(self) -> tuple[ResultSummary, ...]:
        """Return the last Result of each Wave, in short."""
        found = self._measurer.last() if self._measurer is not None else {}
        return tuple(found[name] for name in sorted(found))

    @property
    def busy(self) -> bool:
        """Whether something is being played or measured."""
        return self._player.playing or (self._measurer is not None and self._measurer.busy)

    def rest(self) -> None:
        """Let everything rest until it is attended to again."""
        self._player.rest(datetime.now(UTC))

    def attend(self, loaded: loader.Loaded, ready: Callable[[str], bool], wanted: controller.CommandsByFleet) -> bool:
        """Note the Runs that are due, heed orders, go on with what is not judged; return whether there are new ones.

        They begin once the Ledger in the cluster has them.
        """
        for fleet in loaded.tree.fleets:
            self._player.learn(fleet.name, self._recorder.status(fleet.name))
        begun = self._player.attend(loaded.tree, ready, datetime.now(UTC), wanted)
        for fleet_name, wave, run in begun:
            if self._measurer is not None:
                self._measurer.expect((fleet_name, wave, run.name))
            said = f"run {run.name} of wave {wave}"
            self._journal.tell("wave", f"{said} begins", fleet=fleet_name, wave=wave, run=run.name)
            self._recorder.event(fleet_name, "RunStarted", said)
        if self._measurer is not None:
            self._measurer.heed(loaded.tree, self._player.pages(), whole=loaded.whole)
        return bool(begun)

    def ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet, what was judged included."""
        if self._measurer is not None:
            self._player.judge(self._measurer.verdicts())
            self._measurer.learn(self._player.pages())
        return self._player.ledgers()

    def conditions(self, loaded: loader.Loaded) -> dict[str, Manifest]:
        """Return of each Fleet with gates whether they held."""
        pages, known = self._player.pages(), self._measurer.last() if self._measurer is not None else {}
        found = {
            fleet.name: verdicts.condition(fleet.spec.waves, pages.get(fleet.name, {}), known, fleet.name)
            for fleet in loaded.tree.fleets
        }
        return {name: each for name, each in found.items() if each is not None}

    def tell(self) -> None:
        """Tell of what was judged since the last time."""
        for each in self._measurer.ended() if self._measurer is not None else ():
            reason, kind, otherwise = _CANCELLED if each.cancelled else _REASONS[RunVerdict(each.verdict)]
            message = f"run {each.run} of wave {each.wave}: {each.why or otherwise}"
            bad = kind == events.WARNING
            self._journal.tell("wave", message, fleet=each.fleet, warning=bad, wave=each.wave, run=each.run,
                               verdict=each.verdict)  # fmt: skip
            self._recorder.event(each.fleet, reason, message, kind=kind)

    def forget(self) -> None:
        """Leave off, and forget everything: somebody else leads."""
        self._player.forget()
        if self._measurer is not None:
            self._measurer.forget()

    def stop(self) -> None:
        """Leave off, and wait for what is under way."""
        self._player.stop()
        if self._measurer is not None:
            self._measurer.stop()
