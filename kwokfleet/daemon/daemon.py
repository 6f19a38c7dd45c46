"""The daemon: keeps the cluster equal to the files, for as long as it runs.

One worker makes one pass after the other. Everything else only *asks* for one: a file that was
saved, an object that somebody changed, a moment that has come, a push, a person. What is asked for
while a pass runs is done by the next one, however often it was asked. What a pass finds to do is done
by hands, one for each Fleet, so that a Fleet that takes long or fails delays no other.
"""

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import structlog

from kwokfleet import errors
from kwokfleet.daemon import dispatcher, event_log, gc_tuning, kwok_manager, next_wakeup, timer, wave_runs
from kwokfleet.daemon.trigger import Why
from kwokfleet.documents import problems
from kwokfleet.kube import events, leader, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.reconcile import fleet_status, reconciler, status_writer, sync
from kwokfleet.reconcile.changes import SHARED, Plan, digest
from kwokfleet.render import desired
from kwokfleet.source import loader, sources
from kwokfleet.waves import run_commands

if TYPE_CHECKING:
    from kwokfleet.kube.observed import Inventory

log = structlog.get_logger()

ROUNDS = 10
"""So often in a minute a field may come back changed before it is given up."""
BREATH_S = 0.05
"""Between passes that only changes in the cluster ask for: there may be thousands of them."""
STATUS_S = 0.5
"""Between writes of how the Fleets stand."""
BLIND_S = 3.0
"""So long it need not be told that the cluster is out of sight."""
TELLING_S = 2.0
"""How long the API server may stay away before nobody waits any longer to tell it something."""
LONGEST_WAIT_S = 5.0


class Trigger:
    """Collects what asks for a pass until somebody makes one."""

    def __init__(self) -> None:
        self._asked = threading.Condition()
        self._why: set[Why] = set()

    def ask(self, why: Why) -> None:
        """Ask for a pass."""
        with self._asked:
            self._why.add(why)
            self._asked.notify_all()

    def waiting(self) -> tuple[str, ...]:
        """Return what has asked since the last pass began."""
        with self._asked:
            return tuple(sorted(self._why))

    def wait(self, timeout_s: float) -> frozenset[Why]:
        """Return what asked for a pass, nothing if nobody did in time."""
        with self._asked:
            self._asked.wait_for(lambda: self._why, timeout_s)
            why, self._why = frozenset(self._why), set()
            return why


@dataclass(frozen=True, slots=True)
class How:
    """What whoever starts a daemon may decide."""

    me: str
    interval: timedelta = timedelta(minutes=10)
    limits: throttled_client.Limits = field(default_factory=throttled_client.Limits)
    stop_s: float = 20.0
    prepare: Callable[[sync.Sync, AbstractSet[str]], None] = lambda _sync, _kinds: None
    """Puts definitions of kinds that are needed in place."""
    results: Path | None = None
    """Where Results are kept; without it, Runs are played and not measured."""


class Watches(dispatcher.Watches, wave_runs.Watches, Protocol):
    """Who counts what happens: the metrics."""


class Daemon:
    """Makes passes until it is closed; use it in a `with` block."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a daemon is made of
        self,
        api: leader.Guarded,
        source_feed: sources.Feed,
        follower: informer.Mirror,
        fleets: informer.Mirror,
        how: How,
        watches: Watches | None = None,
    ) -> None:
        self.how, self.feed, self.mirror, self._fleets, self._api = how, source_feed, follower, fleets, api
        self.sync = sync.Sync(api, follower, reconciler.Options(rounds=ROUNDS), how.limits, mended_s=0.0)
        self.caretaker: kwok_manager.Caretaker | None = None
        self.journal = event_log.Journal()
        self.recorder = status_writer.Recorder(self.sync.sender.lane(self.sync.stop, TELLING_S), how.me)
        self.trigger = Trigger()
        self.foreman = dispatcher.Foreman(self.sync, self.journal, self.recorder, lambda: self.ask(Why.DONE), watches)
        counts = watches.submitted if watches is not None else None
        around = wave_runs.Around(lambda: follower.view().objects, lambda: source_feed.revision, self._news, counts)
        self.runs = wave_runs.Runs(api, self.sync.sender, self.journal, self.recorder, around, how.results)
        self._tidying = gc_tuning.Tidying()
        self._alarm = timer.Alarm(lambda: self.ask(Why.TIME))
        self._stop = self.sync.stop
        self.worker = threading.Thread(target=self._work, name="worker", daemon=True)
        self.began = datetime.now(UTC)
        self.turned = time.monotonic()
        """When the worker last came round."""
        self.loaded: loader.Loaded | None = None
        self.read_at: datetime | None = None
        """When the files were last read."""
        self.left = Plan()
        """What the last pass found to do, or withheld."""
        self.suspended = False
        self.synced = False
        """Whether nothing was left to do, once."""
        self._in_force: tuple[loader.Loaded, frozenset[str], loader.Loaded] | None = None
        self._prepared = self._unrecorded = self._lost = False
        self._recorded = self._passed = 0.0
        self.blind, self._sighted = "", time.monotonic()
        self._told: tuple[Inventory | None, str] = (None, "")
        """What was there when the cluster was last told how the Fleets stand, and what kwok lacked."""
        self._resyncs = 0
        self._resync_at = self.began

    # from start to stop

    def __enter__(self) -> Self:
        """Begin."""
        self.mirror.tell(self._heard)
        self._fleets.tell(lambda _kind, _names: self.ask(Why.FLEETS))
        self.feed.begin(lambda: self.ask(Why.FILES))
        self.ask(Why.START)
        self.worker.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop, in order: nothing new, what is under way, kwok, and the right to write last."""
        deadline = time.monotonic() + self.how.stop_s
        self.feed.close()
        self._alarm.close()
        self._stop.set()
        self.ask(Why.ASKED)
        for thread in (*self.foreman.leave_off(), self.worker):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.runs.stop()
        if self.caretaker is not None:
            self.caretaker.dismiss()
            self.caretaker.restore()
        self._api.resign()

    @property
    def leads(self) -> bool:
        """Whether we lead."""
        return self._api.leads

    @property
    def leader(self) -> str:
        """Who leads, as far as is known."""
        return self._api.leader

    def leading(self, leads: bool) -> None:  # noqa: FBT001  # told by the leader
        """Take note that we lead, or no longer do."""
        if not leads:
            self.foreman.leave_off()
            self._lost = True
            if self.caretaker is not None:
                threading.Thread(target=self.caretaker.dismiss, name="kwok-leave", daemon=True).start()
        self.journal.tell("leader", "we lead" if leads else "we stand by", leading=leads)
        self.ask(Why.LEADING)

    def ask(self, why: Why) -> None:
        """Ask for a pass; do not wait for it."""
        self.trigger.ask(why)

    def _news(self) -> None:
        """Take note that there is something to tell, without waking anybody for each bit of it."""
        if not self._unrecorded:
            self._unrecorded = True
            self.ask(Why.NEWS)

    def _heard(self, _kind: str, fleets: AbstractSet[str]) -> None:
        """Take note of changes in the cluster; those of a Fleet that a hand works for are its own doing."""
        if fleets <= self.foreman.busy:
            self._unrecorded = True
        else:
            self.ask(Why.CLUSTER)

    # the worker

    def _work(self) -> None:
        while not self._stop.is_set():
            why = self.trigger.wait(self._patience())
            self.turned = time.monotonic()
            if not (why or self.foreman.busy or self.runs.busy):
                self._tidying.quiet()
            if why and why <= {Why.CLUSTER, Why.DONE}:  # let what comes in thousands gather; one alone waits for nobody
                self._stop.wait(max(0.0, self._passed + BREATH_S - self.turned))
            try:
                self._turn(why)
            except errors.KwokfleetError as error:
                if not self._stop.is_set():
                    self.foreman.stumbled(str(error))
            except Exception as error:  # a bug must not end the daemon, and must be seen
                log.exception("pass_failed")
                self.foreman.stumbled(f"{type(error).__name__}: {error}")
        self.foreman.collect()

    def _patience(self) -> float:
        """Return how long nothing need be done."""
        now = time.monotonic()
        moments = [now + LONGEST_WAIT_S]
        able = self._api.leads and self.mirror.settled  # if not, who changes that asks
        again = self.foreman.next_try()
        if able and again is not None and not self.suspended:
            moments.append(again)
        if able and self._unrecorded and self._prepared:
            moments.append(self._recorded + STATUS_S)
        return max(0.0, min(moments) - now)

    def _turn(self, why: frozenset[Why]) -> None:
        """Look what has happened, and make a pass if there is a reason for one."""
        self.foreman.collect()
        if why & {Why.FILES, Why.START} or self.loaded is None:
            self._load()
        if self._lost:
            self._lost, self._prepared = False, False
            self.runs.forget()
        self._look_around()
        if self.loaded is None or not self._api.leads:
            return
        # If it is not known what there is, or who is suspended, the mirrors ask once it is.
        known = self.mirror.settled and self._fleets.settled
        if known and self.foreman.may_try(asked=bool(why - {Why.NEWS})):
            self._pass(self.loaded, why or frozenset({Why.RETRY}))
            self._play(self.loaded)
            self.foreman.recovered()
        self._record(self.loaded, asked=bool(why))
        if self._prepared and not self.suspended:
            self.runs.perform(self._as_suspended(self.loaded).tree, self.recorder.status)
        self._set_alarm(self.loaded)

    def _look_around(self) -> None:
        """Tell when the cluster is out of sight, and when it is back; for a moment it often is."""
        now, settled = time.monotonic(), self.mirror.settled
        self._sighted = now if settled else self._sighted
        if bool(self.blind) != (now - self._sighted > BLIND_S):
            self.blind = "" if settled else next(iter(self.mirror.view().unknown.values()), "nothing is known yet")
            self.journal.tell("trouble" if self.blind else "sighted", self.blind or "the cluster is in sight again",
                              warning=bool(self.blind))  # fmt: skip

    def _load(self) -> None:
        before, loaded = self.loaded, self.feed.load()
        self.loaded, self.read_at = loaded, datetime.now(UTC)
        if before is not None and _same(before, loaded):
            return
        known = {fleet.name: fleet for fleet in before.tree.fleets} if before else {}
        for fleet in loaded.tree.fleets:
            if known.get(fleet.name) is not fleet:
                self.foreman.changed(fleet.name)
        self.foreman.changed(SHARED)
        wrong = problems.errors(loaded.problems)
        at, trouble = self.feed.revision, loaded.frozen or (f"{len(wrong)} problems" if wrong else "")
        count = len(loaded.snapshot.files)
        self.journal.tell(
            "source",
            f"{count} file{'s' * (count != 1)}{at and f' at {at}'}{trouble and f': {trouble}'}",
            warning=bool(trouble),
            revision=self.feed.revision,
            problems=[str(each) for each in wrong[:10]],
        )

    def _pass(self, loaded: loader.Loaded, why: frozenset[Why]) -> None:
        """Make one pass: what differs is found out, and set going."""
        clock, began = time.monotonic(), datetime.now(UTC)
        why = why if self._passed else why | {Why.START}  # whatever asked last while it was not known what there is
        kinds = desired.cluster_kinds(loaded.tree)
        if not self._prepared or kinds & self.mirror.view().missing:
            self.how.prepare(self.sync, kinds)
            self._prepared = self.recorder.begin()
        meant = self._as_suspended(loaded)
        self.left = self.sync.plan(meant)
        self.foreman.cancel_outdated(meant)
        made = dispatcher.Round(began, clock, why, digest(self.left.changes), self.feed.revision)
        made.withheld = len(self.left.withheld)
        if not self.suspended:
            self.foreman.carry_out(meant, self.left, made)
            if why == {Why.CLUSTER} and made.open and self.synced:
                self.foreman.drifted(self.left)
        if not made.open:
            self.foreman.over(made)
        self.synced |= not self.left.changes and bool(self.feed.revision)  # before the files were seen, nothing differs
        if self.caretaker is not None and loaded.controller_known and not loaded.frozen:
            self.caretaker.attend(loaded)
        self._passed = time.monotonic()

    def _play(self, loaded: loader.Loaded) -> None:
        """Note the Runs that are due; they begin once the Ledger in the cluster has them."""
        if not self._prepared:
            return
        if self.suspended:
            self.runs.rest()
            return
        open_ones = {change.fleet for change in self.left.changes} | self.foreman.busy
        ready = lambda name: name not in open_ones and SHARED not in open_ones  # noqa: E731  # said once, used once
        wanted = run_commands.by_fleet(each.manifest for each in self._fleets.view().objects.values())
        if self.runs.attend(self._as_suspended(loaded), ready, wanted):
            self._recorded = 0.0  # which is at once

    def _as_suspended(self, loaded: loader.Loaded) -> loader.Loaded:
        """Return what is loaded, with those Fleets suspended that somebody suspended in the cluster."""
        names = fleet_status.suspended(each.manifest for each in self._fleets.view().objects.values())
        if self._in_force is None or self._in_force[0] is not loaded or self._in_force[1] != names:
            self._in_force = (loaded, names, reconciler.as_suspended(loaded, names))
        return self._in_force[2]

    # what others are told

    def _record(self, loaded: loader.Loaded, *, asked: bool) -> None:
        """Tell the cluster how the Fleets stand, not more often than anybody could read."""
        now = time.monotonic()
        if not self._prepared or not self.mirror.settled:
            return
        if now - self._recorded < STATUS_S:
            self._unrecorded = True
            return
        objects_now, lacking = self.mirror.view().objects, self.caretaker.lacking() if self.caretaker else ""
        if not (asked or self._unrecorded) and self._told[0] is objects_now and self._told[1] == lacking:
            return
        self._recorded, self._unrecorded = now, False
        told = self.runs.ledgers(), self.runs.conditions(loaded)
        about = fleet_status.About(self.feed.told(), lacking, self.foreman.plans, *told)
        made = self.sync.standing(self._as_suspended(loaded), self.left, self.foreman.bad, about)
        unread = loaded.broken | ((made.keys() - self.sync.rules.keys()) if not loaded.whole else set())
        made |= {
            name: fleet_status.with_old_wishes(made[name], self.recorder.status(name)) for name in made.keys() & unread
        }
        before = {name: _ready(self.recorder.status(name)) for name in made}
        alive = {each.fleet for each in objects_now.values()} if loaded.whole else None
        self._told = (objects_now, lacking) if self.recorder.record(made, alive) else (None, "")
        for name, status in made.items():
            self._tell_change(name, before[name], _ready(status))
        self.runs.tell()

    def _tell_change(self, fleet: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Tell of a Fleet that is in another state than before; that it is on its way is no news."""
        same = (before.get("status"), before.get("reason")) == (after["status"], after["reason"])
        if same or after["reason"] == "Progressing":
            return
        good = after["status"] == "True"
        self.journal.tell("fleet", after["message"], fleet=fleet, warning=not good, reason=after["reason"])
        kind = events.NORMAL if good else events.WARNING
        self.recorder.event(fleet, after["reason"], after["message"], kind=kind)

    def _set_alarm(self, loaded: loader.Loaded) -> None:
        now = datetime.now(UTC)
        if self._resync_at <= now:
            self._resyncs += 1
            self._resync_at = now + next_wakeup.resync(self.how.interval, self.how.me, self._resyncs)
        due = (
            self._resync_at,
            next_wakeup.next_moment(loaded.tree.fleets, now),
            self.runs.next_start(loaded.tree, now),
        )
        self._alarm.set(min(moment for moment in due if moment is not None))


def _same(before: loader.Loaded, after: loader.Loaded) -> bool:
    return (
        before.snapshot.digest == after.snapshot.digest
        and before.references == after.references
        and before.problems == after.problems
        and before.frozen == after.frozen
    )


def _ready(status: Mapping[str, object]) -> Mapping[str, str]:
    found = status.get("conditions")
    conditions: list[dict[str, str]] = found if isinstance(found, list) else []
    return next((each for each in conditions if each["type"] == "Ready"), {})
