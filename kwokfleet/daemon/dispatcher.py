"""Dispatches a Plan: shared objects first, then one worker per Fleet.

A Fleet whose changes failed backs off by itself, longer each time. When its file changes it is tried again at
once, and a worker that still applies the old file is cancelled.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from queue import SimpleQueue

from kwokfleet.api import fleet as fleet_api
from kwokfleet.daemon import event_log, fleet_backoff, fleet_worker, metrics, snapshot, trigger
from kwokfleet.daemon.trigger import PassReason
from kwokfleet.reconcile import outcomes as plan_outcomes
from kwokfleet.reconcile import status_writer, sync
from kwokfleet.reconcile.changes import SHARED, Change, ChangeAction, Plan, digest
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.source import loader

MAX_PLANS = 10
"""Plans of a Fleet that its status lists."""
ALL_FLEETS = "*"
"""Backoff key for a failure that concerns every Fleet."""


@dataclass(slots=True)
class PassProgress:
    """Progress of one pass until its last worker has finished."""

    started_at: datetime
    started: float
    """On the monotonic clock."""
    reasons: frozenset[PassReason]
    revision: str
    digest: str = ""
    withheld: int = 0
    open: set[str] = field(default_factory=set)
    """Fleets whose worker has not finished."""
    outcomes: list[Outcome] = field(default_factory=list)
    failures: int = 0
    cancelled: bool = False


class Dispatcher:
    """Starts workers and evaluates their outcomes. Used by the worker thread only, except `busy`."""

    def __init__(
        self,
        session: sync.Sync,
        events: event_log.EventLog,
        writer: status_writer.StatusWriter,
        on_finish: Callable[[], None],
        recorded_metrics: metrics.Metrics,
    ) -> None:
        self._sync, self._event_log, self._status_writer = session, events, writer
        self._on_finish, self._metrics = on_finish, recorded_metrics
        self._workers: dict[str, fleet_worker.FleetWorker] = {}
        self._finished: SimpleQueue[fleet_worker.FleetWorker] = SimpleQueue()
        self._progress: dict[str, PassProgress] = {}
        self._backoffs: dict[str, fleet_backoff.BackoffState] = {}
        self._failed: dict[str, list[Outcome]] = {}
        self.plans: dict[str, list[dict[str, object]]] = {}
        """The last applied Plans of each Fleet."""

    @property
    def busy(self) -> frozenset[str]:
        """Fleets with an active worker."""
        return frozenset(self._workers)

    @property
    def failed_outcomes(self) -> list[Outcome]:
        """Failed changes of the last attempt of each Fleet."""
        return [outcome for outcomes in self._failed.values() for outcome in outcomes]

    def cancel_all(self) -> list[fleet_worker.FleetWorker]:
        """Cancel all workers; return them."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        return workers

    # backoff

    def back_off_all(self, error: str) -> None:
        """Back off from every Fleet after a failed pass."""
        self._backoffs[ALL_FLEETS] = fleet_backoff.after(self._backoffs.get(ALL_FLEETS), time.monotonic(), error)
        self._event_log.record("trouble", error, warning=True)

    def reset_backoff(self, fleet: str) -> None:
        """Try a Fleet again at once: its file changed, or a pass succeeded."""
        self._backoffs.pop(fleet, None)

    def next_retry_at(self) -> float | None:
        """Return the time of the next retry, None if there is none."""
        return min((state.until for state in self._waiting()), default=None)

    def may_try(self, *, requested: bool) -> bool:
        """Return whether a pass is requested or a retry is due, and no failed pass is backing off."""
        now = time.monotonic()
        all_fleets = self._backoffs.get(ALL_FLEETS)
        if all_fleets is not None and not all_fleets.is_over(now):
            return False
        return requested or any(state.is_over(now) for state in self._waiting())

    def _waiting(self) -> list[fleet_backoff.BackoffState]:
        """Return the backoffs that no active worker delays; a finished worker requests a pass."""
        delayed = {*self._workers, *([SHARED] if self._workers else [])}
        return [state for name, state in self._backoffs.items() if name not in delayed]

    # dispatch

    def cancel_outdated(self, loaded: loader.Loaded) -> None:
        """Cancel workers whose Fleet has changed: they may wait for a state that never comes."""
        for name, worker in self._workers.items():
            if _find_fleet(worker.loaded, name) != _find_fleet(loaded, name):
                worker.cancel()

    def dispatch(self, loaded: loader.Loaded, plan: Plan, progress: PassProgress) -> None:
        """Start the changes of a Plan, except those of Fleets that are busy or back off."""
        now, busy = time.monotonic(), self._workers.keys()
        backing_off = {name for name, state in self._backoffs.items() if not state.is_over(now)}
        by_fleet: dict[str, list[Change]] = {}
        for change in plan.changes:
            if change.fleet not in busy and change.fleet not in backing_off:
                by_fleet.setdefault(change.fleet, []).append(change)
        self._clear_failures(
            self._backoffs.keys() - backing_off - busy - {change.fleet for change in plan.changes} - {ALL_FLEETS}
        )
        shared = by_fleet.pop(SHARED, [])
        self._apply_shared(loaded, [change for change in shared if change.action is not ChangeAction.DELETE], progress)
        if not by_fleet and not busy:  # shared objects go last, when no Fleet needs them any more
            self._apply_shared(loaded, [change for change in shared if change.action is ChangeAction.DELETE], progress)
        for name, changes in by_fleet.items():
            worker = fleet_worker.FleetWorker(self._sync, loaded, name, changes, self._worker_finished)
            self._workers[name], self._progress[name] = worker, progress
            progress.open.add(name)
            worker.start()

    def _clear_failures(self, fleets: Iterable[str]) -> None:
        """Clear the failures of Fleets that have no changes left."""
        for name in fleets:
            self._backoffs.pop(name, None)
            self._failed.pop(name, None)

    def _apply_shared(self, loaded: loader.Loaded, changes: Sequence[Change], progress: PassProgress) -> None:
        if changes:
            self._evaluate(SHARED, self._sync.apply_changes(loaded, changes), progress)
            self._on_finish()

    def _worker_finished(self, worker: fleet_worker.FleetWorker) -> None:
        self._finished.put(worker)
        self._on_finish()

    def collect_finished(self) -> None:
        """Evaluate the workers that finished since the last call."""
        while not self._finished.empty():
            worker = self._finished.get()
            del self._workers[worker.fleet]
            progress = self._progress.pop(worker.fleet)
            progress.open.discard(worker.fleet)
            progress.cancelled |= worker.cancelled
            self._evaluate(worker.fleet, worker.outcomes, progress, worker.error, cancelled=worker.cancelled)
            self._record_plan(worker, progress)
            if not progress.open:
                self.finish(progress)

    def _evaluate(
        self,
        fleet: str,
        outcomes: Sequence[Outcome],
        progress: PassProgress,
        error: str = "",
        *,
        cancelled: bool = False,
    ) -> None:
        """Record outcomes, and back off from a Fleet whose changes failed."""
        self._sync.record_outcomes(outcomes)
        progress.outcomes += outcomes
        if cancelled:
            return
        failed = plan_outcomes.failures(outcomes)
        progress.failures += len(failed) + bool(error)
        blocked = bool(outcomes) and all(outcome.result is ChangeResult.AGAIN for outcome in outcomes)
        if not (failed or error or blocked):
            self._clear_failures([fleet])
            return
        cause = error or (f"{failed[0].change.key.name}: {failed[0].message}" if failed else outcomes[0].message)
        self._backoffs[fleet] = fleet_backoff.after(self._backoffs.get(fleet), time.monotonic(), cause)
        self._failed[fleet] = failed
        if not blocked:
            self._event_log.record("failed", cause, fleet=fleet, warning=True, failures=len(failed))

    def finish(self, progress: PassProgress) -> None:
        """Record a finished pass in the metrics and, if anything happened, in the event log."""
        done = [outcome for outcome in progress.outcomes if outcome.result is ChangeResult.DONE]
        result = _pass_result(progress, changed=bool(done))
        counts = ((action, sum(outcome.change.action is action for outcome in done)) for action in ChangeAction)
        changes = {action.value: count for action, count in counts if count}
        duration_s = round(time.monotonic() - progress.started, 6)
        why, revision = trigger.join(progress.reasons), progress.revision
        finished = snapshot.Pass(
            progress.started_at, why, duration_s, result, changes, progress.failures, progress.digest, revision
        )
        self._metrics.passed(finished)
        last = self._event_log.passes[-1] if self._event_log.passes else None
        eventful = bool(changes or progress.failures)
        if eventful or last is None or last.result is not result or last.revision != revision:
            self._event_log.record_pass(finished)
        if eventful:
            counted = ", ".join(f"{count} {action}d" for action, count in changes.items()) or "no changes"
            message, failures = f"{counted} in {duration_s:.2f} s", progress.failures
            self._event_log.record("pass", message, why=why, failures=failures, revision=revision, changes=changes)

    def _record_plan(self, worker: fleet_worker.FleetWorker, progress: PassProgress) -> None:
        done = [outcome.change for outcome in worker.outcomes if outcome.result is ChangeResult.DONE]
        plan = {
            "digest": digest(worker.changes),
            "time": progress.started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "revision": progress.revision,
            "changes": len(done),
            "failed": len(plan_outcomes.failures(worker.outcomes)),
        }
        self.plans[worker.fleet] = [*self.plans.get(worker.fleet, ()), plan][-MAX_PLANS:]
        if done:
            summary = "; ".join(plan_outcomes.group_line(group) for group in plan_outcomes.groups(done))
            message = f"{summary}: {trigger.describe(progress.reasons)}"
            self._status_writer.emit_event(worker.fleet, "Reconciled", message)

    def report_drift(self, plan: Plan) -> None:
        """Report objects that another client changed."""
        for name in sorted({change.fleet for change in plan.changes}):
            changes = [change for change in plan.changes if change.fleet == name]
            key = changes[0].key
            message = f"{len(changes)} objects differ from the files, for example {key.kind} {key.name}"
            self._event_log.record("drift", message, fleet=name, count=len(changes))
            self._metrics.drifted(len(changes))


def _pass_result(progress: PassProgress, *, changed: bool) -> snapshot.PassResult:
    if progress.cancelled:
        return snapshot.PassResult.CANCELLED
    if progress.failures:
        return snapshot.PassResult.FAILED
    if changed:
        return snapshot.PassResult.CHANGED
    return snapshot.PassResult.WITHHELD if progress.withheld else snapshot.PassResult.UNCHANGED


def _find_fleet(loaded: loader.Loaded, name: str) -> fleet_api.Fleet | None:
    return next((fleet for fleet in loaded.tree.fleets if fleet.name == name), None)
