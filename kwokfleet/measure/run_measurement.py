"""One Run that is being measured: its Book, what nobody saw of it, and what is kept of it on the shelf."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime

import structlog

import kwokfleet
from kwokfleet import errors
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind
from kwokfleet.measure import gates, result_store
from kwokfleet.measure.collector import Collector, RunInfo
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.result import Result, ResultState
from kwokfleet.render import workloads
from kwokfleet.waves.ledger import RunRecord
from kwokfleet.waves.ledger import RunState as Played

log = structlog.get_logger()

RESULT_S = 10.0
"""Between Results of a Run that goes on."""
SHARE = 100
"""A Result that takes long to make is made more seldom: one part in so many of the time goes into it at most."""
STRAGGLERS_S = 1.0
"""How long events are waited for after the last object is over: its pods come by another way."""
SIGHT_S = 30.0
"""How long a Run whose time was up before we came is given to be seen at all."""
MOST_KEPT = 100
"""Runs of a Wave that stay on the shelf."""
NOT_RUNNING = "kwokfleet was not running"
WAS_OVER = "it was over, until it was retried"


class RunMeasurement:
    """Measures one Run; used by one thread at a time."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a Run is measured with
        self,
        context: workloads.RunContext,
        entry: RunRecord,
        total: int,
        kinds: AbstractSet[Kind],
        kept: result_store.ResultStore,
        pool_of: Callable[[str], str],
        about: Mapping[str, str],
    ) -> None:
        self.name = (context.fleet.name, context.wave.name, entry.name)
        self.kinds, self.entry = kinds, entry
        self._expect = context.wave.expect
        self._shelf, self._about = kept, {"version": kwokfleet.__version__, **about}
        self._notes = result_store.Notes(kept.folder(*self.name, entry.start))
        self._book = Collector(_subject(context, entry, total), pool_of)
        self._namespaces: set[str] = set()
        self._blind: set[Kind] = set()
        """Kinds of which nobody sees what happens."""
        self._since, self._why = 0.0, ""
        """Since when that is so of the first of them, and why."""
        self._began = time.time()
        self._changed = True
        self._written = 0.0
        self._pause = RESULT_S
        self._over_at: float | None = None
        self._unkept = False

    # what is seen

    def recall(self) -> None:
        """Take up what was noted before a crash; without notes, nobody has seen anything since the start."""
        try:
            last = self._book.recall(self._notes)
        except OSError as error:
            self._not_kept(error)
            last = None
        for kind in self.kinds:
            self.lost(kind, last or self.entry.start.timestamp(), WAS_OVER if self._was_over() else NOT_RUNNING)

    def _was_over(self) -> bool:
        """Return whether it is gone on with because somebody retries it."""
        try:
            return result_store.load(self._shelf.folder(*self.name, self.entry.start)).state != "Running"
        except errors.InputError:
            return False

    def event(self, kind: Kind, what: str, thing: Manifest, received: float) -> None:
        """Take in an event."""
        if kind == requests.POD:
            self._namespaces.add(thing["metadata"].get("namespace", ""))
            self._book.pod(EventType[what], thing, received)
        else:
            self._book.workload(EventType[what], thing, received)
        self._changed = True

    def submitted(self, index: int, due: datetime, sent: datetime, trouble: str, retries: int) -> None:
        """Take note of an object that was submitted."""
        self._book.submitted(index, due.timestamp(), sent.timestamp(), trouble, retries)
        self._changed = True

    def marked(self, at: float, what: str) -> None:
        """Take note of something worth a line."""
        self._book.mark(at, what)
        self._changed = True

    def listing(self, kind: Kind) -> None:
        """Take note that a list is about to be asked for."""
        if kind in self.kinds:
            self._book.listing(kind.kind)

    def listed(self, kind: Kind, at: float) -> None:
        """Take note that all there is was told of."""
        if kind in self.kinds:
            self._book.listed(kind.kind, at, self.entry.submitted)
            self._changed = True

    def lost(self, kind: Kind, at: float, why: str) -> None:
        """Take note that nobody sees what happens to a kind."""
        if kind in self.kinds:
            if not self._blind:
                self._since, self._why = at, why
            self._blind.add(kind)

    def back(self, kind: Kind, at: float) -> None:
        """Take note that it is seen again; what nobody saw of any kind is one gap."""
        if kind in self._blind:
            self._blind.discard(kind)
            if not self._blind:
                self.gap(self._since, at, self._why)

    def gap(self, start: float, end: float, why: str) -> None:
        """Take note of a time in which nobody saw what happened."""
        self._book.gap(start, max(start, end), why)
        self._changed = True

    # what is kept

    def tick(self, now: float, capacity: Mapping[str, Mapping[str, float]]) -> None:
        """Take a sample, note down what is new, and write the Result now and then."""
        self._book.tick(now, capacity)
        try:
            self._notes.add(self._book.notes())
            if self._changed and time.monotonic() - self._written >= self._pause:
                self._put(now)
        except OSError as error:
            self._not_kept(error)

    def _made(self, now: float, state: ResultState) -> Result:
        made = self._book.result(now, state=state, **self._about)
        return made.model_copy(update={"gates": gates.evaluate(self._expect, made)}) if state == "Done" else made

    def _put(self, now: float) -> None:
        began = time.monotonic()
        self._shelf.put(self._made(now, "Running"))
        self._changed, self._written = False, time.monotonic()
        self._pause = max(RESULT_S, SHARE * (self._written - began))

    def learn(self, entry: RunRecord | None) -> None:
        """Take note of how far the Ledger says it is; one that it has forgotten was done."""
        self.entry = entry if entry is not None else replace(self.entry, state=Played.DONE)

    def is_over(self, now: float) -> bool:
        """Return whether there is nothing left to wait for, or the time is up."""
        blind = bool(self._blind) and now - self._began < SIGHT_S  # who has just come looks first
        if self._is_late(now) and not blind:
            return True
        if self.entry.state is Played.RUNNING or not self._book.over():  # there may be rounds of churn left
            self._over_at = None
            return False
        self._over_at = now if self._over_at is None else self._over_at
        return now - self._over_at >= STRAGGLERS_S

    def _is_late(self, now: float) -> bool:
        limit = self._expect.deadline if self._expect is not None else None
        return limit is not None and not self.entry.paused and now >= (self.entry.begins + limit).timestamp()

    def conclude(self, api: requests.RequestSender, state: ResultState) -> Result:
        """Write the last Result, and all pods and workloads beside it; nobody is to tell this one anything any more."""
        now = time.time()
        if self._blind:
            self.gap(self._since, now, self._why)
        self._add_bindings(api)
        made = self._made(now, state)
        try:
            self._shelf.put(made, self._book.pods(), self._book.workloads())
            self._notes.add(self._book.notes())
            self._notes.close()
            self._shelf.thin(*self.name[:2], MOST_KEPT)
        except OSError as error:
            self._not_kept(error)
        return made

    def _add_bindings(self, api: requests.RequestSender) -> None:
        """Add what the schedulers' Events say; they tell it to the microsecond, and are gone after an hour."""
        try:
            for namespace in sorted(self._namespaces):
                for event in client.list_objects(api, requests.EVENT, namespace=namespace, fields="reason=Scheduled"):
                    found = _binding(event)
                    if found is not None:
                        self._book.scheduled_event(*found)
        except errors.ClusterError as error:
            log.debug("events_not_listed", run="/".join(self.name), error=str(error))

    def leave(self) -> None:
        """Note down what is known, for whoever goes on."""
        try:
            self._notes.add(self._book.notes())
            self._put(time.time())
        except OSError as error:
            self._not_kept(error)
        self._notes.close()

    def _not_kept(self, error: OSError) -> None:
        if not self._unkept:  # said once: it will be so again in a second
            self._unkept = True
            log.warning("result_not_kept", run="/".join(self.name), error=str(error), hint="see --results-dir")


def _subject(context: workloads.RunContext, entry: RunRecord, total: int) -> RunInfo:
    """Return what is to be known of a Run before anything is seen of it."""
    wave = context.wave
    completes = wave.expect is not None and wave.expect.completion is not None  # who expects it knows that it comes
    return RunInfo(
        context.fleet.name,
        wave.name,
        entry.name,
        entry.start,
        str(wave.template["kind"]),
        total,
        workloads.completes(context) or completes,
    )


def _binding(event: Manifest) -> tuple[str, str, float] | None:
    """Return the namespace, the pod and the time of an Event about its binding, None if it tells too little."""
    about, text = event.get("involvedObject") or {}, event.get("eventTime") or event.get("firstTimestamp")
    if about.get("kind") != "Pod" or not text:
        return None
    try:
        return str(about["namespace"]), str(about["name"]), datetime.fromisoformat(str(text)).timestamp()
    except (KeyError, ValueError):
        return None
