"""What a pass finds to do is set going here: shared things first, then a hand for each Fleet.

What failed is left alone for a while, each Fleet by itself, longer each time; a Fleet whose file has
changed meanwhile is tried again at once, and a hand that still works for the old file leaves off.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from queue import SimpleQueue
from typing import Protocol

from kwokfleet.api import fleet as fleet_api
from kwokfleet.daemon import backoff, event_log, fleet_worker, snapshot, trigger
from kwokfleet.daemon.trigger import Why
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile import status_writer, sync
from kwokfleet.reconcile.changes import SHARED, Action, Change, Plan, digest
from kwokfleet.reconcile.outcomes import Outcome, Result
from kwokfleet.source import loader

PLANS = 10
"""So many of the last plans of a Fleet are told of."""
EVERYTHING = "*"
"""Stands for all Fleets where one is named: something failed that is no single Fleet's doing."""


@dataclass(slots=True)
class Round:
    """What one pass set going."""

    began: datetime
    clock: float
    why: frozenset[Why]
    digest: str
    revision: str
    open: set[str] = field(default_factory=set)
    outcomes: list[Outcome] = field(default_factory=list)
    failures: int = 0
    cancelled: bool = False
    withheld: int = 0


class Watches(Protocol):
    """Who counts what happens: the metrics."""

    def passed(self, done: snapshot.Pass) -> None:
        """Take note of a pass."""

    def drifted(self, count: int = 1) -> None:
        """Take note of objects that somebody else changed."""


class Foreman:
    """Sets hands to work, and judges what they did. Used by the worker alone."""

    def __init__(
        self,
        sync: sync.Sync,
        told: event_log.Journal,
        written: status_writer.Recorder,
        done: Callable[[], None],
        watches: Watches | None,
    ) -> None:
        self._sync, self._journal, self._recorder, self._done, self._watches = sync, told, written, done, watches
        self._hands: dict[str, fleet_worker.Hand] = {}
        self._finished: SimpleQueue[fleet_worker.Hand] = SimpleQueue()
        self._rounds: dict[str, Round] = {}
        self._rests: dict[str, backoff.Rest] = {}
        self._bad: dict[str, list[Outcome]] = {}
        self.plans: dict[str, list[dict[str, object]]] = {}
        """The last plans of each Fleet that were carried out."""

    @property
    def busy(self) -> frozenset[str]:
        """The Fleets that hands work for."""
        return frozenset(self._hands)

    @property
    def bad(self) -> list[Outcome]:
        """What could not be done, the last time it was tried."""
        return [each for found in self._bad.values() for each in found]

    def leave_off(self) -> list[fleet_worker.Hand]:
        """Let all hands leave off; return them."""
        mine = list(self._hands.values())
        for hand in mine:
            hand.cancel()
        return mine

    # pauses

    def stumbled(self, why: str) -> None:
        """Leave everything alone for a while."""
        self._rests[EVERYTHING] = backoff.after(self._rests.get(EVERYTHING), time.monotonic(), why)
        self._journal.tell("trouble", why, warning=True)

    def recovered(self) -> None:
        """Take note that a pass could be made."""
        self._rests.pop(EVERYTHING, None)

    def changed(self, fleet: str) -> None:
        """Try a Fleet again at once: its file has changed, and what was wrong may be right now."""
        self._rests.pop(fleet, None)

    def next_try(self) -> float | None:
        """Return when something is to be tried again, None if nothing is; what a hand is trying now is not."""
        return min((rest.until for rest in self._waiting()), default=None)

    def may_try(self, *, asked: bool) -> bool:
        """Return whether there is a reason for a pass, and nothing against it."""
        now = time.monotonic()
        everything = self._rests.get(EVERYTHING)
        if everything is not None and not everything.is_over(now):
            return False
        return asked or any(rest.is_over(now) for rest in self._waiting())

    def _waiting(self) -> list[backoff.Rest]:
        """Return the pauses of what no hand works at, or stands in the way of; when one is done, it asks."""
        at_work = {*self._hands, *([SHARED] if self._hands else [])}
        return [rest for name, rest in self._rests.items() if name not in at_work]

    # work

    def cancel_outdated(self, loaded: loader.Loaded) -> None:
        """Let hands leave off whose Fleet has another file by now: what they wait for may never come."""
        for name, hand in self._hands.items():
            if fleet_of(hand.loaded, name) != fleet_of(loaded, name):
                hand.cancel()

    def carry_out(self, loaded: loader.Loaded, wanted: Plan, made: Round) -> None:
        """Set going what a plan asks for, but for Fleets that hands work for already or that are left alone."""
        now = time.monotonic()
        busy = self._hands.keys()
        resting = {name for name, rest in self._rests.items() if not rest.is_over(now)}
        own: dict[str, list[Change]] = {}
        for change in wanted.changes:
            if change.fleet not in busy and change.fleet not in resting:
                own.setdefault(change.fleet, []).append(change)
        self._forget(self._rests.keys() - resting - busy - {change.fleet for change in wanted.changes} - {EVERYTHING})
        shared = own.pop("", [])
        self._share(loaded, [each for each in shared if each.action is not Action.DELETE], made)
        if not own and not busy:  # what Fleets share goes last, when nobody can need it any more
            self._share(loaded, [each for each in shared if each.action is Action.DELETE], made)
        for name, changes in own.items():
            hand = self._hands[name] = fleet_worker.Hand(self._sync, loaded, name, changes, self._hand_done)
            self._rounds[name] = made
            made.open.add(name)
            hand.start()

    def _forget(self, fleets: Iterable[str]) -> None:
        """Forget failures of Fleets of which nothing is left to do: somebody did it, or nobody asks for it."""
        for name in fleets:
            self._rests.pop(name, None)
            self._bad.pop(name, None)

    def _share(self, loaded: loader.Loaded, changes: Sequence[Change], made: Round) -> None:
        if changes:
            self._judge("", self._sync.make(loaded, changes), made)
            self._done()

    def _hand_done(self, hand: fleet_worker.Hand) -> None:
        self._finished.put(hand)
        self._done()

    def collect(self) -> None:
        """Take in what hands have done since the last look."""
        while not self._finished.empty():
            hand = self._finished.get()
            del self._hands[hand.fleet]
            made = self._rounds.pop(hand.fleet)
            made.open.discard(hand.fleet)
            made.cancelled |= hand.cancelled
            self._judge(hand.fleet, hand.outcomes, made, trouble=hand.trouble, cancelled=hand.cancelled)
            self._remember(hand, made)
            if not made.open:
                self.over(made)

    def _judge(
        self, fleet: str, outcomes: Sequence[Outcome], made: Round, *, trouble: str = "", cancelled: bool = False
    ) -> None:
        """Learn from what became of some changes; what failed is left alone for a while."""
        self._sync.learn(outcomes)
        made.outcomes += outcomes
        bad = report.bad(outcomes)
        if cancelled:
            return
        made.failures += len(bad) + bool(trouble)
        stuck = bool(outcomes) and all(each.result is Result.AGAIN for each in outcomes)
        if bad or trouble or stuck:
            why = trouble or (f"{bad[0].change.key.name}: {bad[0].message}" if bad else outcomes[0].message)
            self._rests[fleet] = backoff.after(self._rests.get(fleet), time.monotonic(), why)
            self._bad[fleet] = bad
            if not stuck:
                self._journal.tell("failed", why, fleet=fleet, warning=True, failures=len(bad))
        else:
            self._rests.pop(fleet, None)
            self._bad.pop(fleet, None)

    def over(self, made: Round) -> None:
        """Take note of a pass that is over."""
        done = [each for each in made.outcomes if each.result is Result.DONE]
        result = (
            snapshot.PassResult.CANCELLED if made.cancelled
            else snapshot.PassResult.FAILED if made.failures
            else snapshot.PassResult.CHANGED if done
            else snapshot.PassResult.WITHHELD if made.withheld
            else snapshot.PassResult.UNCHANGED
        )  # fmt: skip
        changes = {action.value: count for action in Action if (count := sum(e.change.action is action for e in done))}
        took = time.monotonic() - made.clock
        over = snapshot.Pass(
            made.began, trigger.word(made.why), took, result, changes, made.failures, made.digest, made.revision
        )
        if self._watches is not None:
            self._watches.passed(over)
        last = self._journal.passes[-1:]
        if changes or made.failures or not last or last[0].result is not result or last[0].revision != made.revision:
            self._journal.passed(over)
        if changes or made.failures:
            self._journal.tell(
                "pass", f"{_counted(changes)} in {took:.2f} s", why=trigger.word(made.why), failures=made.failures,
                revision=made.revision, changes=changes,
            )  # fmt: skip

    def _remember(self, hand: fleet_worker.Hand, made: Round) -> None:
        done = sum(each.result is Result.DONE for each in hand.outcomes)
        failed = len(report.bad(hand.outcomes))
        entry = {
            "digest": digest(hand.changes),
            "time": made.began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "revision": made.revision,
            "changes": done,
            "failed": failed,
        }
        self.plans[hand.fleet] = [*self.plans.get(hand.fleet, ()), entry][-PLANS:]
        if done:
            groups = "; ".join(
                report.line(group)
                for group in report.groups(each.change for each in hand.outcomes if each.result is Result.DONE)
            )
            self._recorder.event(hand.fleet, "Reconciled", f"{groups}: {trigger.because(made.why)}")

    def drifted(self, found: Plan) -> None:
        """Tell of what somebody else has changed."""
        for name in sorted({change.fleet for change in found.changes}):
            mine = [change for change in found.changes if change.fleet == name]
            first = mine[0]
            message = f"{len(mine)} objects were not as the files say, such as {first.key.kind} {first.key.name}"
            self._journal.tell("drift", message, fleet=name, count=len(mine))
            if self._watches is not None:
                self._watches.drifted(len(mine))


def fleet_of(loaded: loader.Loaded, name: str) -> fleet_api.Fleet | None:
    """Return a Fleet as the files have it, None if they do not."""
    return next((each for each in loaded.tree.fleets if each.name == name), None)


def _counted(changes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {action}d" for action, count in changes.items()) or "nothing done"
