"""Measures Runs while they execute: passes events of their objects and pods to one Collector per Run.

Watches only receive; one thread processes. So receive times do not depend on the processing time, and Collectors
need no lock. Without a measured Run there is no watch and no request.

Data that cannot be read from the cluster again is written to the notes file every second. After a crash, the next
process continues from the notes. The time between is a gap in the Result.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from kwokfleet.kube import objects, requests
from kwokfleet.kube.informer import reflector, timed_events
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.kube.requests import Kind
from kwokfleet.measure import result_store, summaries, watches
from kwokfleet.measure.result import ResultState
from kwokfleet.measure.run_measurement import MeasurementEnvironment, RunMeasurement
from kwokfleet.render import desired, workloads
from kwokfleet.waves.ledger import RunRecord, RunState, WaveLedger
from kwokfleet.waves.run_executor import RunKey, Submission

log = structlog.get_logger()

TICK_S = 1.0
"""Between two samples, and between two writes of notes."""
WATCH_TIMEOUT_S = 2.0
"""How long a Run waits for its watches. Objects created before have no creation event."""
STALL_S = 5.0
"""A tick that is later than this shows that the process was paused."""
STOP_TIMEOUT_S = 5.0
BATCH_S = 0.05
"""How long events are collected: a wake-up per event costs as much as its processing."""
MAX_QUEUED = 2000
QUEUE_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class MeasurerDependencies:
    """The daemon's parts that the measurer uses."""

    nodes: Callable[[], Inventory]
    revision: Callable[[], str]
    on_change: Callable[[], None]
    """Called when a Run has a final Result."""
    count_submission: Callable[[str, str, bool], None]
    """Called for each submitted object: Fleet, Wave, and whether it was rejected."""


class Measurer:
    """Measures all Runs of a daemon. A RunListener and a watch event handler; for any thread."""

    def __init__(
        self,
        api: reflector.WatchApi,
        sender: requests.RequestSender,
        store: result_store.ResultStore,
        dependencies: MeasurerDependencies,
    ) -> None:
        self._api, self._sender, self._store, self._dependencies = api, sender, store, dependencies
        self.summaries = summaries.ResultSummaries(store)
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._new_runs: set[RunKey] = set()
        """Runs that this process starts, so that no event is missed."""
        self._measured: set[RunKey] = set()
        """Runs that are measured or about to be."""
        self._helpers: list[threading.Thread] = []
        self._stopping = False
        # Only for the measurer thread:
        self._runs: dict[RunKey, RunMeasurement] = {}
        self._watches = watches.WatchSet(api, sender, self)
        self._capacity = watches.NodeCapacity(dependencies.nodes)
        self._last_tick = 0.0

    # called by the daemon

    def expect_run(self, key: RunKey) -> None:
        """Announce a Run that this process starts: it has no earlier events."""
        with self._lock:
            self._new_runs.add(key)

    def reconcile(self, tree: desired.Tree, ledgers: Mapping[str, Mapping[str, WaveLedger]], *, whole: bool) -> None:
        """Measure Runs without a verdict in the Ledger; stop measuring Runs of removed Waves.

        *whole*: whether the tree is complete, so that a Wave missing from it is removed.
        """
        waves = {(fleet.name, wave.name): (fleet, wave) for fleet in tree.fleets for wave in fleet.spec.waves}
        fleets = {fleet.name for fleet in tree.fleets}

        def is_removed(key: tuple[str, ...]) -> bool:
            return key[:2] not in waves and (whole or key[0] in fleets)

        for key in filter(is_removed, tuple(self._measured)):
            self._enqueue(self._finish, key, "Cancelled")
        self.summaries.discard_waves(is_removed)
        for (fleet_name, wave_name), (fleet, wave) in waves.items():
            self.summaries.load_last(fleet_name, wave_name)
            wave_ledger = ledgers.get(fleet_name, {}).get(wave_name)
            for record in wave_ledger.runs if wave_ledger is not None else ():
                key = (fleet_name, wave_name, record.name)
                is_measured = key in self._measured or key in self.summaries.verdicts()
                if record.state is not RunState.RUNNING and not record.verdict and not is_measured:
                    context = desired.run_context(tree, fleet, wave, record.name)
                    self._start_helper(self.run_started, context, record, record.total)

    def update_records(self, ledgers: Mapping[str, Mapping[str, WaveLedger]]) -> None:
        """Update the RunRecord of each measured Run, and discard verdicts that the Ledger has."""
        for key in tuple(self._measured):
            wave_ledger = ledgers.get(key[0], {}).get(key[1])
            if wave_ledger is not None:
                self._enqueue(self._update_record, key, wave_ledger.run(key[2]))
        self.summaries.discard_recorded(ledgers)

    @property
    def busy(self) -> bool:
        """Whether a Run is measured or about to be."""
        return bool(self._measured)

    def reset(self) -> None:
        """Stop measuring: another process leads and continues."""
        self._enqueue(self._release)
        self.summaries.discard_verdicts()
        with self._lock:
            self._new_runs.clear()
            self._measured.clear()

    def stop(self) -> None:
        """Stop measuring and wait. The next process continues from the notes."""
        self._stopping = True
        self.reset()
        self._wake.set()
        for thread in (*([self._thread] if self._thread else ()), *self._helpers):
            thread.join(STOP_TIMEOUT_S)

    # RunListener

    def run_started(self, context: workloads.RunContext, record: RunRecord, total: int) -> None:
        """Start or continue to measure a Run; return when its objects are watched."""
        key: RunKey = (context.fleet.name, context.wave.name, record.name)
        with self._lock:
            is_measured, is_new = key in self._measured, key in self._new_runs
            self._measured.add(key)
            self._new_runs.discard(key)
        if is_measured:
            self._enqueue(self._update_record, key, record)
            return
        try:
            if not is_new and self.summaries.add_stored(context, record):
                self._forget_run(key)
            else:
                self._start(context, record, total, is_new=is_new)
        except Exception:  # a Run executes even if it cannot be measured
            log.exception("measuring_failed", run="/".join(key))

    def _start(self, context: workloads.RunContext, record: RunRecord, total: int, *, is_new: bool) -> None:
        origin = {"cluster": self._api.host, "revision": self._dependencies.revision()}
        environment = MeasurementEnvironment(self._store, self._capacity.pool_lookup(context.fleet.name), origin)
        kinds = self._watches.kinds_of(context.wave.template)
        measurement = RunMeasurement(context, record, total, kinds, environment)
        opened, deadline = threading.Event(), time.monotonic() + WATCH_TIMEOUT_S
        self._enqueue(self._open, measurement, is_new, opened)
        opened.wait(WATCH_TIMEOUT_S)
        for kind in kinds:
            if not self._watches.wait_until_listed(kind, deadline):
                self._enqueue(self._not_listed, measurement, kind, time.time())

    def object_submitted(self, key: RunKey, submission: Submission) -> None:
        """Record a submission."""
        self._dependencies.count_submission(key[0], key[1], bool(submission.error))
        self._queue.append((self._for_run, (key, RunMeasurement.submitted, submission)))

    def timeline_mark(self, key: RunKey, text: str) -> None:
        """Record a mark."""
        self._enqueue(self._for_run, key, RunMeasurement.mark, time.time(), text)

    # watch event handler

    def event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Queue an event. Listed objects wait for room, so that a long list is not in memory as a whole."""
        manifest["metadata"].pop("managedFields", None)
        while event_type == timed_events.LISTED and len(self._queue) > MAX_QUEUED and not self._stopping:
            time.sleep(QUEUE_POLL_S)
        self._queue.append((self._event, (kind, event_type, manifest, received)))

    def list_started(self, kind: Kind) -> None:
        """Handle the start of a list."""
        self._enqueue(self._for_each_run, RunMeasurement.listing, kind)

    def list_completed(self, kind: Kind, at: float) -> None:
        """Handle the end of a list."""
        self._enqueue(self._for_each_run, RunMeasurement.listed, kind, at)

    def watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        """Handle an interrupted watch."""
        self._enqueue(self._watch_lost, kind, at, reason)

    def watch_restored(self, kind: Kind, at: float) -> None:
        """Handle a resumed watch."""
        self._enqueue(self._watch_resumed, kind, at)

    # the measurer thread

    def _enqueue(self, call: Callable[..., None], *arguments: object) -> None:
        """Queue a call for the measurer thread and wake it."""
        self._queue.append((call, arguments))
        self._wake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="measurer", daemon=True)
                    self._thread.start()

    def _start_helper(self, call: Callable[..., None], *arguments: object) -> None:
        """Run a call that is slow, or waits for the measurer thread, in a new thread."""
        thread = threading.Thread(target=call, args=arguments, name="measurer-helper", daemon=True)
        self._helpers = [helper for helper in self._helpers if helper.is_alive()] + [thread]
        thread.start()

    def _work(self) -> None:
        next_tick = 0.0
        while not self._stopping or self._queue:
            self._wake.wait(BATCH_S if self._runs or self._stopping else None)
            self._wake.clear()
            self._call(self._watches.deliver_events, ())
            for _ in range(len(self._queue)):
                self._call(*self._queue.popleft())
            if self._runs and time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                self._call(self._tick, ())

    @staticmethod
    def _call(call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            call(*arguments)
        except Exception:  # a bug in one call must not end the thread
            log.exception("measuring_failed")

    def _open(self, measurement: RunMeasurement, is_new: bool, opened: threading.Event) -> None:  # noqa: FBT001  # queued
        try:
            self._runs[measurement.key] = measurement
            if not is_new:
                measurement.restore()
            for kind in measurement.kinds:
                self._watches.open(kind, relist=not is_new)
                if kind in self._watches.lost:
                    measurement.watch_lost(kind, time.time(), self._watches.lost[kind])
        finally:
            opened.set()

    def _event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        self._for_run(objects.run_of(manifest), RunMeasurement.event, kind, event_type, manifest, received)

    def _for_run(self, key: RunKey, call: Callable[..., None], *arguments: object) -> None:
        if key in self._runs:
            call(self._runs[key], *arguments)

    def _for_each_run(self, call: Callable[..., None], *arguments: object) -> None:
        for run in self._runs.values():
            call(run, *arguments)

    def _update_record(self, key: RunKey, record: RunRecord | None) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.update_record(record)
            if run.record.state is RunState.CANCELLED:
                self._finish(key, "Cancelled")

    def _not_listed(self, measurement: RunMeasurement, kind: Kind, at: float) -> None:
        if not self._watches.wait_until_listed(kind, 0.0):
            measurement.watch_lost(kind, at, f"{kind.plural} were not listed yet")

    def _watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        self._watches.lost[kind] = reason
        self._for_each_run(RunMeasurement.watch_lost, kind, at, reason)

    def _watch_resumed(self, kind: Kind, at: float) -> None:
        self._watches.lost.pop(kind, None)
        self._for_each_run(RunMeasurement.watch_resumed, kind, at)

    def _tick(self) -> None:
        now, before = time.time(), self._last_tick
        self._last_tick = now
        for run in tuple(self._runs.values()):
            if before and now - before > STALL_S:
                run.gap(before, now, "kwokfleet was paused")
            run.tick(now, self._capacity.of_fleet(run.key[0]))
            if run.is_over(now):
                self._finish(run.key, "Done")

    # end of a measurement

    def _finish(self, key: RunKey, state: ResultState) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            self._start_helper(self._write_result, run, state)
            self._close_watches()

    def _write_result(self, run: RunMeasurement, state: ResultState) -> None:
        self.summaries.add(run.finish(self._sender, state))
        self._forget_run(run.key)

    def _forget_run(self, key: RunKey) -> None:
        with self._lock:
            self._measured.discard(key)
        self._dependencies.on_change()

    def _release(self) -> None:
        for run in self._runs.values():
            run.release()
        self._runs.clear()
        self._close_watches()

    def _close_watches(self) -> None:
        """Close the watches that no Run needs."""
        self._watches.close_except({kind for run in self._runs.values() for kind in run.kinds})
        if not self._runs:
            self._last_tick = 0.0
