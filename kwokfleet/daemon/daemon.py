"""The daemon: keeps the cluster equal to the files until it is stopped.

One worker thread makes one pass after another. Everything else only requests a pass: a saved file, a changed
object, a scheduled time, a git push, a user. Requests that arrive during a pass are served by the next one,
however many there are. The Dispatcher applies a Plan with one worker thread per Fleet, so that a slow or
failing Fleet delays no other.
"""

import threading
import time
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from typing import Self

import structlog

from kwokfleet import errors
from kwokfleet.daemon import dispatcher, fleet_files, gc_tuning, status_publisher, timer, wave_runs
from kwokfleet.daemon.options import DaemonOptions, Dependencies
from kwokfleet.daemon.trigger import PassReason
from kwokfleet.reconcile import fleet_status, status_writer
from kwokfleet.reconcile.changes import SHARED, Plan, digest
from kwokfleet.render import desired
from kwokfleet.source import loader

log = structlog.get_logger()

BATCH_S = 0.05
"""Pause between passes that only cluster changes request: they arrive in thousands."""
STALE_GRACE_S = 3.0
"""Grace period before a stale cache is reported."""
STATUS_PATIENCE_S = 2.0
"""Retry limit of status writes while the API server does not answer."""
MAX_WAIT_S, STOP_TIMEOUT_S = 5.0, 20.0


class Daemon:
    """Makes passes until it is closed; use it in a `with` block."""

    def __init__(self, dependencies: Dependencies, options: DaemonOptions) -> None:
        self.options, self.source, self.kwok = options, dependencies.source, dependencies.kwok
        self.client, self.sync, self.trigger = dependencies.client, dependencies.sync, dependencies.trigger
        self.managed, self.fleets = dependencies.managed, dependencies.fleets
        self.event_log, self._metrics = dependencies.event_log, dependencies.metrics
        status_client = self.sync.sender.with_stop(self.sync.stop, STATUS_PATIENCE_S)
        self.status_writer = status_writer.StatusWriter(status_client, options.identity)
        self.files = fleet_files.FleetFiles(self.source, self.fleets, self.event_log)
        on_finish = partial(self.trigger.request, PassReason.DONE)
        self.dispatcher = dispatcher.Dispatcher(self.sync, self.event_log, self.status_writer, on_finish, self._metrics)
        self.runs = wave_runs.WaveRuns(dependencies, self.status_writer, self._request_status, options.results)
        self._publisher = status_publisher.StatusPublisher(self.status_writer, self.sync, self.managed, self.event_log)
        self._idle_collector = gc_tuning.IdleCollector()
        on_time = partial(self.trigger.request, PassReason.TIME)
        self._timer = timer.PassTimer(options.interval, options.identity, on_time)
        self.worker = threading.Thread(target=self._work, name="worker", daemon=True)
        self.started_at = datetime.now(UTC)
        self.worker_active_at = time.monotonic()
        """Last iteration of the worker."""
        self.plan = Plan()
        """Plan of the last pass: changes to make, and changes withheld."""
        self.suspended = False
        self.synced = False
        """Whether a pass once found nothing to do."""
        self.stale = ""
        """Why the cache of the cluster is stale; empty if it is not."""
        self._cache_known_at = time.monotonic()
        self._definitions_installed = self._lost_lease = False
        self._passed_at = 0.0

    # start and stop

    def __enter__(self) -> Self:
        """Start the worker, then start leader election."""
        self.managed.on_change(self._objects_changed)
        self.fleets.on_change(lambda _kind, _names: self.trigger.request(PassReason.FLEETS))
        self.source.start(partial(self.trigger.request, PassReason.FILES))
        self.trigger.request(PassReason.START)
        self.worker.start()
        self.client.start_election(self._leadership_changed)
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop in order: new work, running work, kwok, and the leader lease last."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        self.source.close()
        self._timer.close()
        self.sync.stop.set()
        self.trigger.request(PassReason.ASKED)
        for thread in (*self.dispatcher.cancel_all(), self.worker):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.runs.stop()
        if self.kwok is not None:
            self.kwok.stop()
            self.kwok.restore()
        self.client.resign()

    # requests

    def _leadership_changed(self, leads: bool) -> None:  # noqa: FBT001  # callback of the election
        if not leads:
            self.dispatcher.cancel_all()
            self._lost_lease = True
            if self.kwok is not None:
                threading.Thread(target=self.kwok.stop, name="kwok-stop", daemon=True).start()
        self.event_log.record("leader", "this daemon leads" if leads else "this daemon is on standby", leading=leads)
        self.trigger.request(PassReason.LEADING)

    def _request_status(self) -> None:
        """Request a status write; wake the worker once, not for each request."""
        if not self._publisher.requested:
            self._publisher.requested = True
            self.trigger.request(PassReason.NEWS)

    def _objects_changed(self, _kind: str, fleets: AbstractSet[str]) -> None:
        """Handle changed objects; those of a Fleet with an active worker are its own writes."""
        if fleets <= self.dispatcher.busy:
            self._publisher.requested = True
        else:
            self.trigger.request(PassReason.CLUSTER)

    # the worker

    def _work(self) -> None:
        while not self.sync.stop.is_set():
            reasons, requested_at = self.trigger.wait(self._wait_s())
            self.worker_active_at = time.monotonic()
            if not (reasons or self.dispatcher.busy or self.runs.busy):
                self._idle_collector.idle()
            if reasons and reasons <= {PassReason.CLUSTER, PassReason.DONE}:
                self.sync.stop.wait(max(0.0, self._passed_at + BATCH_S - self.worker_active_at))
            if requested_at is not None:
                self._metrics.triggered(time.monotonic() - requested_at)
            try:
                self._run_pass(reasons)
            except errors.KwokfleetError as error:
                if not self.sync.stop.is_set():
                    self.dispatcher.back_off_all(str(error))
            except Exception as error:  # a bug must not end the daemon, and must be visible
                log.exception("pass_failed")
                self.dispatcher.back_off_all(f"{type(error).__name__}: {error}")
        self.dispatcher.collect_finished()

    def _wait_s(self) -> float:
        """Return the time until a retry or a status write is due."""
        now = time.monotonic()
        due_times = [now + MAX_WAIT_S]
        can_write = self.client.leads and self.managed.settled  # a change of either requests a pass
        retry_at = self.dispatcher.next_retry_at()
        if can_write and retry_at is not None and not self.suspended:
            due_times.append(retry_at)
        if can_write and self._publisher.requested and self._definitions_installed:
            due_times.append(self._publisher.due_at)
        return max(0.0, min(due_times) - now)

    def _run_pass(self, reasons: frozenset[PassReason]) -> None:
        """Load, render, observe, plan, dispatch, publish status. Every pass comes through here."""
        self.dispatcher.collect_finished()
        self._load_files(reasons)
        if self._lost_lease:
            self._lost_lease = self._definitions_installed = False
            self.runs.reset()
        self._check_cache()
        loaded = self.files.loaded
        if loaded is None or not self.client.leads:
            return
        new_runs = False
        # Both caches must be complete: an unknown object is not an absent one. They request a pass when they are.
        observable = self.managed.settled and self.fleets.settled
        if observable and self.dispatcher.may_try(requested=bool(reasons - {PassReason.NEWS})):
            progress = self._begin_pass(reasons)
            self._install_definitions(loaded)
            effective = self.files.effective(loaded)
            self.plan = self.sync.plan(effective)
            self._dispatch(effective, progress)
            if self.kwok is not None and loaded.controller_known and not loaded.frozen:
                self.kwok.reconcile(loaded)
            new_runs = self._schedule_runs(effective)
            self.dispatcher.reset_backoff(dispatcher.ALL_FLEETS)
        if new_runs:
            self._persist_ledger(loaded)
        else:
            self._publish_status(loaded, requested=bool(reasons))
        if self._definitions_installed and not self.suspended:
            tree = self.files.effective(loaded).tree
            self.runs.controller.start_persisted_runs(tree, self.status_writer.status_of)
        self._timer.set_next(loaded.tree.fleets, self.runs.controller.next_start(loaded.tree, datetime.now(UTC)))

    # the steps of a pass

    def _load_files(self, reasons: frozenset[PassReason]) -> None:
        if not reasons & {PassReason.FILES, PassReason.START} and self.files.loaded is not None:
            return
        changed = self.files.load()
        for fleet in (*changed, SHARED) if changed is not None else ():
            self.dispatcher.reset_backoff(fleet)

    def _check_cache(self) -> None:
        """Report a cache that stays stale, and its recovery."""
        now, settled = time.monotonic(), self.managed.settled
        self._cache_known_at = now if settled else self._cache_known_at
        if bool(self.stale) == (now - self._cache_known_at > STALE_GRACE_S):
            return
        unknown = self.managed.view().unknown
        self.stale = "" if settled else next(iter(unknown.values()), "the first list is not complete")
        if self.stale:
            self.event_log.record("trouble", self.stale, warning=True)
        else:
            self.event_log.record("sighted", "the cluster cache is up to date again")

    def _begin_pass(self, reasons: frozenset[PassReason]) -> dispatcher.PassProgress:
        if not self._passed_at:  # the first pass is a start, whatever requested it last
            reasons |= {PassReason.START}
        return dispatcher.PassProgress(
            datetime.now(UTC), time.monotonic(), reasons or frozenset({PassReason.RETRY}), self.source.revision
        )

    def _install_definitions(self, loaded: loader.Loaded) -> None:
        kinds = desired.cluster_kinds(loaded.tree)
        if not self._definitions_installed or kinds & self.managed.view().missing:
            self.options.install_definitions(self.sync, kinds)
            self._definitions_installed = self.status_writer.load()

    def _dispatch(self, effective: loader.Loaded, progress: dispatcher.PassProgress) -> None:
        """Apply the Plan, unless the daemon is suspended."""
        self.dispatcher.cancel_outdated(effective)
        progress.digest, progress.withheld = digest(self.plan.changes), len(self.plan.withheld)
        if not self.suspended:
            self.dispatcher.dispatch(effective, self.plan, progress)
            if progress.reasons == {PassReason.CLUSTER} and progress.open and self.synced:
                self.dispatcher.report_drift(self.plan)
        if not progress.open:
            self.dispatcher.finish(progress)
        self.synced |= not self.plan.changes and bool(self.source.revision)  # without files, nothing differs
        self._passed_at = time.monotonic()

    def _schedule_runs(self, effective: loader.Loaded) -> bool:
        """Enter due Runs into the Ledger in memory; return whether there are new ones."""
        if not self._definitions_installed:
            return False
        if self.suspended:
            self.runs.controller.suspend_all(datetime.now(UTC))
            return False
        unfinished = {change.fleet for change in self.plan.changes} | self.dispatcher.busy
        fleets = [observed.manifest for observed in self.fleets.view().objects.values()]
        return self.runs.schedule(effective, unfinished, fleets)

    def _persist_ledger(self, loaded: loader.Loaded) -> None:
        """Write the Ledger before a Run's first object, so that the next leader finishes the Run after a crash."""
        if self._definitions_installed and self.managed.settled:
            self._write_status(loaded)

    def _publish_status(self, loaded: loader.Loaded, *, requested: bool) -> None:
        if not self._definitions_installed or not self.managed.settled:
            return
        if self._publisher.is_due(self.kwok_problem, requested=requested):
            self._write_status(loaded)

    def _write_status(self, loaded: loader.Loaded) -> None:
        source, ledgers = self.source.description(), self.runs.ledgers()
        details = fleet_status.StatusContext(
            source, self.kwok_problem, self.dispatcher.plans, ledgers, self.runs.conditions(loaded)
        )
        effective = self.files.effective(loaded)
        self._publisher.publish(loaded, effective, self.plan, self.dispatcher.failed_outcomes, details)
        self.runs.report_verdicts()

    @property
    def kwok_problem(self) -> str:
        """Why kwok does not drive all nodes; empty if it does, or if the daemon does not manage kwok."""
        return self.kwok.problem() if self.kwok is not None else ""
