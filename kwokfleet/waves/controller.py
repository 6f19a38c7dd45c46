"""Waves played: which Runs are due, wanted, suspended or cancelled, and how each fares.

Each Run is played by a Performance, and tidied up after by a Sweeper; the Ledger says how far they are, so
that whoever leads next goes on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.wave import Wave
from kwokfleet.kube import discovery, throttled_client
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired, workloads
from kwokfleet.waves import cleanup, deadline_queue, ledger, run_executor
from kwokfleet.waves.ledger import CleanupState, RunRecord, RunState, RunVerdict, WaveLedger
from kwokfleet.waves.run_commands import RunCommand

LEAVING_S = 1.0
"""How long a Run that is to rest is given to end what it has under way."""

RunListener = run_executor.RunListener
RunKey = run_executor.RunKey
CommandsByFleet = Mapping[str, Sequence[RunCommand]]
"""By Fleet."""


class NullListener:
    """An Audience that does not listen."""

    def began(self, context: workloads.RunContext, entry: RunRecord, total: int) -> None:
        """Do nothing."""

    def submitted(  # noqa: PLR0913, PLR0917  # as the Audience
        self, name: RunKey, index: int, due: datetime, sent: datetime, trouble: str, retries: int
    ) -> None:
        """Do nothing."""

    def marked(self, name: RunKey, what: str) -> None:
        """Do nothing."""


class WaveController:
    """Starts Runs when they are due, and knows how each one fares. Used by the worker alone."""

    def __init__(
        self, sender: throttled_client.ThrottledClient, news: Callable[[], None], audience: RunListener | None = None
    ) -> None:
        self._audience = audience or NullListener()
        threads = deadline_queue.DeadlineQueue(lambda: sender.room)
        self._tools = run_executor.RunServices(sender, threads, discovery.KindResolver(sender), self._audience, news)
        self._pages: dict[str, dict[str, WaveLedger]] = {}
        self._playing: dict[RunKey, run_executor.RunExecutor] = {}
        self._sweeping: dict[RunKey, cleanup.RunCleanup] = {}
        self._wanted: dict[RunKey, tuple[fleet_api.Fleet, Wave]] = {}
        """The Runs that are open and not suspended."""

    def learn(self, fleet: str, status: Manifest) -> None:
        """Take a Fleet's Ledger from the cluster, if nothing is known of it yet."""
        if fleet not in self._pages:
            self._pages[fleet] = ledger.parse(status.get("waves") or ())

    def forget(self) -> None:
        """Leave off, and forget everything: somebody else leads."""
        for each in self._threads():
            each.cancel()
        self._playing.clear()
        self._sweeping.clear()
        self._wanted.clear()
        self._pages.clear()

    def attend(
        self, tree: desired.Tree, ready: Callable[[str], bool], now: datetime, wanted: CommandsByFleet | None = None
    ) -> list[tuple[str, str, RunRecord]]:
        """Note what is due, leave off what is not wanted, heed orders; return what is new.

        It is begun by `perform`. *ready* tells whether a Fleet is so far that its Waves can be played.
        """
        begun: list[tuple[str, str, RunRecord]] = []
        self._fold()
        self._wanted = {}
        self._lay_down(self._pages.keys() - {fleet.name for fleet in tree.fleets}, now)
        for fleet in tree.fleets:
            pages = self._pages.setdefault(fleet.name, {})
            self._drop(pages, fleet)
            mine = (wanted or {}).get(fleet.name, ())
            for wave in fleet.spec.waves:
                if wave.name in pages or (ready(fleet.name) and not _is_suspended(fleet, wave)):
                    begun += [(fleet.name, wave.name, each) for each in self._attended(fleet, wave, mine, now)]
        self._leave_off()
        return begun

    def _attended(
        self, fleet: fleet_api.Fleet, wave: Wave, wanted: Sequence[RunCommand], now: datetime
    ) -> list[RunRecord]:
        """Bring one Wave's page up to date; return the Runs that are new in it."""
        pages, suspended = self._pages[fleet.name], _is_suspended(fleet, wave)
        before = pages.get(wave.name) or ledger.new_wave_ledger(now + ledger.LEAD_TIME)
        page = ledger.apply_commands(before, wave.name, wanted, now)
        if not suspended:
            page, _ = ledger.add_due_runs(page, wave.start, now + ledger.LEAD_TIME)
        page = ledger.suspend_runs(page, now) if suspended else ledger.resume_runs(page, now)
        page = pages[wave.name] = ledger.set_cleanup(page, tidy=_is_tidied(wave))
        self._tell(fleet.name, wave.name, before, page)
        if not suspended:
            names = ((fleet.name, wave.name, each.name) for each in page.runs if each.is_open)
            self._wanted |= dict.fromkeys(names, (fleet, wave))
        return [each for each in page.runs if before.run(each.name) is None]

    @staticmethod
    def _drop(pages: dict[str, WaveLedger], fleet: fleet_api.Fleet) -> None:
        for name in pages.keys() - {wave.name for wave in fleet.spec.waves}:
            del pages[name]

    def _tell(self, fleet: str, wave: str, before: WaveLedger, after: WaveLedger) -> None:
        """Tell what has become of Runs that were known."""
        for each in after.runs:
            old = before.run(each.name)
            if old is not None and old.state is not each.state:
                what = "cancelled" if each.state is RunState.CANCELLED else "resumed"
                self._audience.marked((fleet, wave, each.name), what)
            elif old is not None and bool(old.paused) != bool(each.paused):
                self._audience.marked((fleet, wave, each.name), "suspended" if each.paused else "resumed")

    def rest(self, now: datetime) -> None:
        """Let everything rest until it is attended to again."""
        self._fold()
        self._lay_down(self._pages.keys(), now)
        self._wanted = {}
        self._leave_off()

    def _lay_down(self, fleets: Iterable[str], now: datetime) -> None:
        """Note that all Runs of some Fleets rest: they are suspended, or their files cannot be read at present."""
        for fleet in fleets:
            for wave, page in self._pages[fleet].items():
                self._pages[fleet][wave] = ledger.suspend_runs(page, now)
                self._tell(fleet, wave, page, self._pages[fleet][wave])

    def _leave_off(self) -> None:
        """End what is not wanted any more, and note how far it came."""
        running = {name for name in self._wanted if self._entry(name).state is RunState.RUNNING}
        leaving = {name: self._playing.pop(name) for name in self._playing.keys() - running}
        for name in self._sweeping.keys() - self._wanted.keys():
            self._sweeping.pop(name).cancel()
        for playing in leaving.values():
            playing.cancel()
        for name, playing in leaving.items():
            playing.join(LEAVING_S)
            self._update(name, partial(_advanced, played=playing))

    def _entry(self, name: RunKey) -> RunRecord:
        page = self._pages[name[0]][name[1]]
        return next(each for each in page.runs if each.name == name[2])

    def perform(self, tree: desired.Tree, status: Callable[[str], Manifest]) -> None:
        """Begin, and go on with, the Runs that the cluster's Ledger knows of.

        What is written there first is finished by whoever leads next, however soon this one dies.
        """
        for name, (fleet, wave) in self._wanted.items():
            entry = self._entry(name)
            written = ledger.parse(status(fleet.name).get("waves") or ()).get(wave.name)
            if written is None or written.run(entry.name) is None:
                continue
            context = desired.run_context(tree, fleet, wave, entry.name)
            if entry.state is RunState.RUNNING and name not in self._playing:
                self._playing[name] = run_executor.RunExecutor(self._tools, context, entry)
                self._playing[name].start()
            if entry.upkeep is CleanupState.DUE and name not in self._sweeping:
                self._sweeping[name] = cleanup.RunCleanup(self._tools, context, self._page(name))
                self._sweeping[name].start()

    def _page(self, name: RunKey) -> Callable[[], WaveLedger | None]:
        return lambda: self._pages.get(name[0], {}).get(name[1])

    def _fold(self) -> None:
        """Note how the Runs fare, and let go of those that are over."""
        for name, playing in tuple(self._playing.items()):
            self._update(name, partial(_advanced, played=playing))
            if not playing.is_alive() and playing.entry.state is RunState.DONE:
                del self._playing[name]
        for name, sweeping in tuple(self._sweeping.items()):
            self._update(name, partial(replace, upkeep=sweeping.state))
            if sweeping.state is CleanupState.DONE:
                del self._sweeping[name]

    def _update(self, name: RunKey, change: Callable[[RunRecord], RunRecord]) -> None:
        page = self._pages.get(name[0], {}).get(name[1])
        entry = page.run(name[2]) if page else None
        if page is not None and entry is not None:
            self._pages[name[0]][name[1]] = page.with_run(change(entry))

    def ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet that has Waves, as its status has it."""
        self._fold()
        return {name: ledger.serialize(pages) for name, pages in self._pages.items() if pages}

    def judge(self, verdicts: Mapping[RunKey, RunVerdict]) -> None:
        """Write into the Ledger what Runs came to."""
        for name, verdict in verdicts.items():
            self._update(name, partial(replace, verdict=verdict))

    def next_start(self, tree: desired.Tree, now: datetime) -> datetime | None:
        """Return when somebody must attend to the next Run, None if none is near."""
        moments = [
            moment - ledger.LEAD_TIME
            for fleet in tree.fleets
            for wave in fleet.spec.waves
            if not _is_suspended(fleet, wave)
            if (page := self._pages.get(fleet.name, {}).get(wave.name)) is not None
            if (moment := ledger.next_start(page, wave.start, now)) is not None
        ]
        return min(moments, default=None)

    def stop(self) -> None:
        """Leave off, and wait for what is under way."""
        for each in self._threads():
            each.cancel()
        for each in self._threads():
            each.join()

    def _threads(self) -> list[run_executor.RunExecutor | cleanup.RunCleanup]:
        return [*self._playing.values(), *self._sweeping.values()]

    @property
    def playing(self) -> bool:
        """Whether a Run is being played."""
        return any(page.running for pages in self.pages().values() for page in pages.values())

    def pages(self) -> Mapping[str, Mapping[str, WaveLedger]]:
        """Return what is known of all Waves."""
        self._fold()
        return self._pages


def _advanced(entry: RunRecord, played: run_executor.RunExecutor) -> RunRecord:
    """Return what is known of a Run with what its Performance knows better; what was ordered stays."""
    far = played.entry
    if far.state is RunState.DONE and entry.state is RunState.RUNNING:
        entry = replace(entry, state=far.state, ended=far.ended, paused=None)
    return replace(entry, submitted=far.submitted, total=far.total, refused=far.refused, why=far.why, rounds=far.rounds)


def _is_suspended(fleet: fleet_api.Fleet, wave: Wave) -> bool:
    return fleet.spec.suspend or wave.suspend


def _is_tidied(wave: Wave) -> bool:
    return wave.ttl is not None or wave.cleanup is not None
