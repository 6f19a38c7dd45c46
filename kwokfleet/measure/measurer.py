"""Runs measured while they are played: what is received about their objects and pods goes into their Books.

Watches only receive; one thread makes something of it. So a time is taken when bytes arrive, however much there
is to reckon, and no Book needs a lock. While no Run is measured there is no watch, and not one request.

What cannot be had again is noted down every second. Who goes on after a crash takes up these notes, and
the time in between is a gap that the Result tells of.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from kwokfleet import errors
from kwokfleet.kube import discovery, objects, requests
from kwokfleet.kube.informer import reflector, timed_events
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.kube.requests import Kind
from kwokfleet.measure import result_store, verdicts, watches
from kwokfleet.measure.result import Result, ResultSummary
from kwokfleet.measure.result import ResultState as End
from kwokfleet.measure.run_measurement import RunMeasurement
from kwokfleet.render import desired, workloads
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict, WaveLedger
from kwokfleet.waves.run_executor import RunKey

log = structlog.get_logger()

TICK_S = 1.0
"""Between samples, and between notes."""
SIGHT_S = 2.0
"""How long a Run waits for the watches: what is made before them has no birth that anybody has seen."""
STILL_S = 5.0
"""A tick that comes so late tells of a machine that stood still."""
CLOSING_S = 5.0
GATHER_S = 0.05
"""How long events are gathered: waking a thread for each costs as much as all that it reckons."""
MOST_WAITING = 2000
ROOM_S = 0.005


@dataclass(frozen=True, slots=True)
class MeasurerDependencies:
    """What a measurer sees of the daemon around it."""

    nodes: Callable[[], Inventory]
    revision: Callable[[], str]
    news: Callable[[], None]
    """Hears that there is something to tell."""
    submitted: Callable[[str, str, bool], None] | None = None
    """Hears of each object of a Fleet's Wave, and whether it was refused."""


class Measurer:
    """Measures all Runs of a daemon. An Audience of the player, and told by the watches; by any thread."""

    def __init__(
        self,
        api: reflector.WatchApi,
        sender: requests.RequestSender,
        kept: result_store.ResultStore,
        around: MeasurerDependencies,
    ) -> None:
        self._api, self._sender, self._shelf, self._around = api, sender, kept, around
        self._kinds = discovery.KindResolver(sender)
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._fresh: set[RunKey] = set()
        """Runs that begin here and now: nobody has missed anything of them."""
        self._known: set[RunKey] = set()
        """Runs that are measured, or about to be."""
        self._verdicts: dict[RunKey, RunVerdict] = {}
        self._last: dict[tuple[str, str], ResultSummary] = {}
        self._looked: set[tuple[str, str]] = set()
        self._ended: list[ResultSummary] = []
        self._concluding: list[threading.Thread] = []
        self._stopping = False
        # Of the thread alone:
        self._runs: dict[RunKey, RunMeasurement] = {}
        self._sights = watches.WatchSet(api, self)
        self._offers = watches.NodeCapacity(around.nodes)
        self._ticked = 0.0

    # what the daemon asks

    def expect(self, name: RunKey) -> None:
        """Take note of a Run that begins here and now: nobody has missed anything of it."""
        with self._lock:
            self._fresh.add(name)

    def heed(self, tree: desired.Tree, pages: Mapping[str, Mapping[str, WaveLedger]], *, whole: bool) -> None:
        """Go on with what the Ledger says is not judged yet; leave off what belongs to a Wave that has vanished.

        *whole*: whether the tree is all there is, so that what is not in it has vanished.
        """
        waves = {(fleet.name, wave.name): (fleet, wave) for fleet in tree.fleets for wave in fleet.spec.waves}
        fleets = {fleet.name for fleet in tree.fleets}

        def vanished(name: tuple[str, ...]) -> bool:
            return name[:2] not in waves and (whole or name[0] in fleets)

        for name in filter(vanished, tuple(self._known)):
            self._put(self._finish, name, "Cancelled")
        with self._lock:
            self._last = {name: each for name, each in self._last.items() if not vanished(name)}
        for (fleet_name, wave_name), (fleet, wave) in waves.items():
            self._remember(fleet_name, wave_name)
            page = pages.get(fleet_name, {}).get(wave_name)
            for entry in page.runs if page is not None else ():
                name = (fleet_name, wave_name, entry.name)
                if entry.state is not RunState.RUNNING and not entry.verdict and not self._is_known(name):
                    context = desired.run_context(tree, fleet, wave, entry.name)
                    self._aside(self.began, context, entry, entry.total)

    def learn(self, pages: Mapping[str, Mapping[str, WaveLedger]]) -> None:
        """Learn from the Ledger how far each Run is, and forget the verdicts that it has."""
        for name in tuple(self._known):
            page = pages.get(name[0], {}).get(name[1])
            if page is not None:
                self._put(self._learn, name, page.run(name[2]))
        with self._lock:
            for name in tuple(self._verdicts):
                page = pages.get(name[0], {}).get(name[1])
                entry = page.run(name[2]) if page is not None else None
                if entry is None or entry.verdict:
                    del self._verdicts[name]

    def _remember(self, fleet: str, wave: str) -> None:
        """Take a Wave's last Result from the shelf, if nothing is known of it yet."""
        if (fleet, wave) in self._looked:
            return
        self._looked.add((fleet, wave))
        for each in self._shelf.find(fleet, wave):
            with contextlib.suppress(errors.InputError):
                found = each.result()
                if found.state != "Running":
                    with self._lock:
                        self._last.setdefault((fleet, wave), verdicts.summarize(found))
                    return

    def _is_known(self, name: RunKey) -> bool:
        return name in self._known or name in self._verdicts

    @property
    def busy(self) -> bool:
        """Whether a Run is measured, or about to be."""
        return bool(self._known)

    def verdicts(self) -> dict[RunKey, RunVerdict]:
        """Return what the Runs came to that were measured here."""
        with self._lock:
            return dict(self._verdicts)

    def last(self) -> dict[tuple[str, str], ResultSummary]:
        """Return the last Result of each Wave, in short."""
        with self._lock:
            return dict(self._last)

    def ended(self) -> list[ResultSummary]:
        """Return what was judged since somebody last asked."""
        with self._lock:
            found, self._ended = self._ended, []
            return found

    def forget(self) -> None:
        """Leave off: somebody else leads, and goes on."""
        self._put(self._leave)
        with self._lock:
            self._fresh.clear()
            self._verdicts.clear()
            self._known.clear()

    def stop(self) -> None:
        """Leave off, and wait for it; who starts next goes on."""
        self._stopping = True
        self.forget()
        self._wake.set()
        for thread in (*([self._thread] if self._thread else ()), *self._concluding):
            thread.join(CLOSING_S)

    # what the player tells

    def began(self, context: workloads.RunContext, entry: RunRecord, total: int) -> None:
        """Begin to measure a Run, or go on with it; return when its objects are watched."""
        name: RunKey = (context.fleet.name, context.wave.name, entry.name)
        with self._lock:
            known, fresh = name in self._known, name in self._fresh
            self._known.add(name)
            self._fresh.discard(name)
        if known:
            self._put(self._learn, name, entry)
            return
        try:
            if fresh or not self._was_concluded(context, entry):
                self._begin(context, entry, total, fresh=fresh)
        except Exception:  # a Run is played, whether it can be measured or not
            log.exception("measuring_failed", run="/".join(name))

    def _begin(self, context: workloads.RunContext, entry: RunRecord, total: int, *, fresh: bool) -> None:
        about = {"cluster": self._api.host, "revision": self._around.revision()}
        pool_of = self._offers.pool_of(context.fleet.name)
        made = RunMeasurement(context, entry, total, self._watched(context), self._shelf, pool_of, about)
        opened, deadline = threading.Event(), time.monotonic() + SIGHT_S
        self._put(self._open, made, fresh, opened)
        opened.wait(SIGHT_S)
        for kind in made.kinds:
            if not self._sights.wait(kind, deadline):
                self._put(self._unseen, made, kind, time.time())

    def _watched(self, context: workloads.RunContext) -> frozenset[Kind]:
        try:
            return frozenset({requests.POD, self._kinds.kind(context.wave.template)})
        except errors.ClusterError as error:
            log.warning("kind_not_watched", wave=context.wave.name, error=str(error))
            return frozenset({requests.POD})

    def _was_concluded(self, context: workloads.RunContext, entry: RunRecord) -> bool:
        """Take a Result that is complete for what it is: who wrote it died before the Ledger had it."""
        try:
            found = result_store.load(
                self._shelf.folder(context.fleet.name, context.wave.name, entry.name, entry.start)
            )
        except errors.InputError:
            return False
        limit = context.wave.expect.deadline if context.wave.expect is not None else None
        late = limit is not None and datetime.now(UTC) >= entry.start + limit
        concluded = found.state != "Running" and (late or entry.state is not RunState.RUNNING)  # or else it is retried
        if concluded:
            self._judged(found)
        return concluded

    def submitted(  # noqa: PLR0913, PLR0917  # as the Audience
        self, name: RunKey, index: int, due: datetime, sent: datetime, trouble: str, retries: int
    ) -> None:
        """Take note of an object that was submitted."""
        if self._around.submitted is not None:
            self._around.submitted(name[0], name[1], bool(trouble))
        self._waiting.append((self._submitted, (name, index, due, sent, trouble, retries)))

    def marked(self, name: RunKey, what: str) -> None:
        """Take note of something worth a line."""
        self._put(self._marked, name, time.time(), what)

    # what the watches tell

    def event(self, kind: Kind, what: str, thing: Manifest, received: float) -> None:
        """Take an event. What is listed can wait until there is room: a long list must not lie in memory whole."""
        thing["metadata"].pop("managedFields", None)
        while what == timed_events.LISTED and len(self._waiting) > MOST_WAITING and not self._stopping:
            time.sleep(ROOM_S)
        self._waiting.append((self._event, (kind, what, thing, received)))

    def listing(self, kind: Kind) -> None:
        """Take note that a list begins."""
        self._put(self._each, RunMeasurement.listing, kind)

    def listed(self, kind: Kind, at: float) -> None:
        """Take note that a list is complete."""
        self._put(self._each, RunMeasurement.listed, kind, at)

    def lost(self, kind: Kind, at: float, why: str) -> None:
        """Take note that nobody sees what happens to a kind."""
        self._put(self._lost, kind, at, why)

    def back(self, kind: Kind, at: float) -> None:
        """Take note that it is seen again."""
        self._put(self._back, kind, at)

    # the thread

    def _put(self, call: Callable[..., None], *given: object) -> None:
        """Have something done at once."""
        self._waiting.append((call, given))
        self._wake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="measurer", daemon=True)
                    self._thread.start()

    def _aside(self, call: Callable[..., None], *given: object) -> None:
        """Do something that takes long, or waits for us, in a thread of its own."""
        thread = threading.Thread(target=call, args=given, name="measurer-aside", daemon=True)
        self._concluding = [each for each in self._concluding if each.is_alive()] + [thread]
        thread.start()

    def _work(self) -> None:
        due = 0.0
        while not self._stopping or self._waiting:
            self._wake.wait(GATHER_S if self._runs or self._stopping else None)
            self._wake.clear()
            self._do(self._sights.tell, ())
            for _ in range(len(self._waiting)):
                self._do(*self._waiting.popleft())
            if self._runs and time.monotonic() >= due:
                due = time.monotonic() + TICK_S
                self._do(self._tick, ())

    @staticmethod
    def _do(call: Callable[..., None], given: tuple[object, ...]) -> None:
        try:
            call(*given)
        except Exception:  # a bug in one reckoning must not end all others, and must be seen
            log.exception("measuring_failed")

    def _open(self, made: RunMeasurement, fresh: bool, opened: threading.Event) -> None:  # noqa: FBT001  # handed on
        try:
            self._runs[made.name] = made
            if not fresh:
                made.recall()
            for kind in made.kinds:
                self._sights.open(kind, anew=not fresh)
                if kind in self._sights.blind:
                    made.lost(kind, time.time(), self._sights.blind[kind])
        finally:
            opened.set()

    def _event(self, kind: Kind, what: str, thing: Manifest, received: float) -> None:
        run = self._runs.get(objects.run_of(thing))
        if run is not None:
            run.event(kind, what, thing, received)

    def _each(self, call: Callable[..., None], *given: object) -> None:
        for run in self._runs.values():
            call(run, *given)

    def _learn(self, name: RunKey, entry: RunRecord | None) -> None:
        run = self._runs.get(name)
        if run is not None:
            run.learn(entry)
            if run.entry.state is RunState.CANCELLED:
                self._finish(name, "Cancelled")

    def _unseen(self, made: RunMeasurement, kind: Kind, at: float) -> None:
        if not self._sights.wait(kind, 0.0):
            made.lost(kind, at, f"{kind.plural} could not be watched yet")

    def _lost(self, kind: Kind, at: float, why: str) -> None:
        self._sights.blind[kind] = why
        self._each(RunMeasurement.lost, kind, at, why)

    def _back(self, kind: Kind, at: float) -> None:
        self._sights.blind.pop(kind, None)
        self._each(RunMeasurement.back, kind, at)

    def _submitted(self, name: RunKey, *given: Any) -> None:  # noqa: ANN401  # handed on
        if name in self._runs:
            self._runs[name].submitted(*given)

    def _marked(self, name: RunKey, at: float, what: str) -> None:
        if name in self._runs:
            self._runs[name].marked(at, what)

    def _tick(self) -> None:
        now, before = time.time(), self._ticked
        self._ticked = now
        for run in tuple(self._runs.values()):
            if before and now - before > STILL_S:
                run.gap(before, now, "kwokfleet stood still")
            run.tick(now, self._offers.of(run.name[0]))
            if run.is_over(now):
                self._finish(run.name, "Done")

    # how it ends

    def _finish(self, name: RunKey, end: End) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            self._aside(self._conclude, run, end)
            self._rest()

    def _conclude(self, run: RunMeasurement, end: End) -> None:
        self._judged(run.conclude(self._sender, end))

    def _judged(self, made: Result) -> None:
        name: RunKey = (made.fleet, made.wave, made.run)
        short = verdicts.summarize(made)
        with self._lock:
            self._known.discard(name)
            self._verdicts[name] = RunVerdict(short.verdict)
            self._last[name[:2]] = short
            self._ended.append(short)
        self._around.news()

    def _leave(self) -> None:
        for run in self._runs.values():
            run.leave()
        self._runs.clear()
        self._rest()

    def _rest(self) -> None:
        """Watch only what somebody measures; nobody, nothing."""
        self._sights.keep({kind for run in self._runs.values() for kind in run.kinds})
        if not self._runs:
            self._ticked = 0.0
