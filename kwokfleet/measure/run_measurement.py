"""The measurement of one Run: its Collector, its gaps, and its files in the ResultStore."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
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
from kwokfleet.waves.ledger import RunRecord, RunState
from kwokfleet.waves.run_executor import Submission

log = structlog.get_logger()

RESULT_INTERVAL_S = 10.0
"""Between two interim Results of a running Run."""
INTERVAL_FACTOR = 100
"""The interval is at least this many times the time that the last interim Result took."""
SETTLE_S = 1.0
"""How long late events are awaited after the last object ended: pod events use another watch."""
LIST_TIMEOUT_S = 30.0
"""How long a Run past its deadline waits for its first list."""
MAX_STORED_RUNS = 100
"""Runs of a Wave in the ResultStore."""
NOT_RUNNING = "kwokfleet was not running"
BEFORE_RETRY = "the Run had ended and was retried later"


@dataclass(frozen=True, slots=True)
class MeasurementEnvironment:
    """Parts of the daemon that a RunMeasurement uses."""

    store: result_store.ResultStore
    pool_of: Callable[[str], str]
    """Returns the pool of a node."""
    origin: Mapping[str, str]
    """Fields of the Result: cluster and revision."""


class RunMeasurement:
    """Measures one Run. For one thread at a time."""

    def __init__(
        self,
        context: workloads.RunContext,
        record: RunRecord,
        total: int,
        kinds: AbstractSet[Kind],
        environment: MeasurementEnvironment,
    ) -> None:
        self.key = (context.fleet.name, context.wave.name, record.name)
        self.kinds, self.record = kinds, record
        self._expect = context.wave.expect
        self._store = environment.store
        self._origin = {"version": kwokfleet.__version__, **environment.origin}
        self._notes = result_store.Notes(self._store.folder(*self.key, record.start))
        self._collector = Collector(_run_info(context, record, total), environment.pool_of)
        self._namespaces: set[str] = set()
        self._lost_kinds: set[Kind] = set()
        """Kinds whose watch is interrupted."""
        self._lost_since, self._lost_reason = 0.0, ""
        self._started = time.time()
        self._changed = True
        self._last_result = 0.0
        self._result_interval_s = RESULT_INTERVAL_S
        self._over_since: float | None = None
        self._store_error_logged = False

    # events

    def restore(self) -> None:
        """Restore the notes of an earlier process. The time since its last note is a gap."""
        last = None
        with self._store_errors_logged():
            last = self._collector.restore(self._notes)
        reason = BEFORE_RETRY if self._had_ended() else NOT_RUNNING
        for kind in self.kinds:
            self.watch_lost(kind, last or self.record.start.timestamp(), reason)

    def _had_ended(self) -> bool:
        """Return whether the Run has a final Result, so that this is a retry."""
        try:
            return result_store.load(self._store.folder(*self.key, self.record.start)).state != "Running"
        except errors.InputError:
            return False

    def event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Record a watch event."""
        if kind == requests.POD:
            self._namespaces.add(manifest["metadata"].get("namespace", ""))
            self._collector.pod(EventType[event_type], manifest, received)
        else:
            self._collector.workload(EventType[event_type], manifest, received)
        self._changed = True

    def submitted(self, submission: Submission) -> None:
        """Record a submission."""
        due, sent = submission.due.timestamp(), submission.sent.timestamp()
        self._collector.submitted(submission.index, due, sent, submission.error, submission.retries)
        self._changed = True

    def mark(self, at: float, text: str) -> None:
        """Record a mark for the timeline."""
        self._collector.mark(at, text)
        self._changed = True

    def listing(self, kind: Kind) -> None:
        """Handle the start of a list."""
        if kind in self.kinds:
            self._collector.listing(kind.kind)

    def listed(self, kind: Kind, at: float) -> None:
        """Handle the end of a list."""
        if kind in self.kinds:
            self._collector.listed(kind.kind, at, self.record.submitted)
            self._changed = True

    def watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        """Handle an interrupted watch."""
        if kind in self.kinds:
            if not self._lost_kinds:
                self._lost_since, self._lost_reason = at, reason
            self._lost_kinds.add(kind)

    def watch_resumed(self, kind: Kind, at: float) -> None:
        """Handle a resumed watch. Interruptions of several kinds make one gap."""
        if kind in self._lost_kinds:
            self._lost_kinds.discard(kind)
            if not self._lost_kinds:
                self.gap(self._lost_since, at, self._lost_reason)

    def gap(self, start: float, end: float, reason: str) -> None:
        """Record a gap: a time without watch events."""
        self._collector.gap(start, max(start, end), reason)
        self._changed = True

    def update_record(self, record: RunRecord | None) -> None:
        """Update the RunRecord. A Run that the Ledger has dropped was done."""
        self.record = record if record is not None else replace(self.record, state=RunState.DONE)

    # files

    def tick(self, now: float, capacity: Mapping[str, Mapping[str, float]]) -> None:
        """Take a sample, write the notes, and from time to time an interim Result."""
        self._collector.tick(now, capacity)
        with self._store_errors_logged():
            self._notes.add(self._collector.notes())
            if self._changed and time.monotonic() - self._last_result >= self._result_interval_s:
                self._store_interim_result(now)

    def _result(self, now: float, state: ResultState) -> Result:
        result = self._collector.result(now, state=state, **self._origin)
        return result.model_copy(update={"gates": gates.evaluate(self._expect, result)}) if state == "Done" else result

    def _store_interim_result(self, now: float) -> None:
        started = time.monotonic()
        self._store.put(self._result(now, "Running"))
        self._changed, self._last_result = False, time.monotonic()
        self._result_interval_s = max(RESULT_INTERVAL_S, INTERVAL_FACTOR * (self._last_result - started))

    def is_over(self, now: float) -> bool:
        """Return whether all objects ended, or the deadline has passed."""
        awaits_list = bool(self._lost_kinds) and now - self._started < LIST_TIMEOUT_S
        if self._is_late(now) and not awaits_list:
            return True
        if self.record.state is RunState.RUNNING or not self._collector.is_over():  # churn rounds may be left
            self._over_since = None
            return False
        self._over_since = now if self._over_since is None else self._over_since
        return now - self._over_since >= SETTLE_S

    def _is_late(self, now: float) -> bool:
        deadline = self._expect.deadline if self._expect is not None else None
        if deadline is None or self.record.paused_at:
            return False
        return now >= (self.record.shifted_start + deadline).timestamp()

    def finish(self, api: requests.RequestSender, state: ResultState) -> Result:
        """Store the final Result with all pods and workloads. No event may follow."""
        now = time.time()
        if self._lost_kinds:
            self.gap(self._lost_since, now, self._lost_reason)
        self._add_scheduled_events(api)
        result = self._result(now, state)
        with self._store_errors_logged():
            self._store.put(result, self._collector.pods(), self._collector.workloads())
            self._notes.add(self._collector.notes())
            self._notes.close()
            self._store.remove_oldest(*self.key[:2], keep=MAX_STORED_RUNS)
        return result

    def _add_scheduled_events(self, api: requests.RequestSender) -> None:
        """Add the times of Scheduled Events. They have microseconds and expire after an hour."""
        try:
            for namespace in sorted(self._namespaces):
                for event in client.list_objects(api, requests.EVENT, namespace=namespace, fields="reason=Scheduled"):
                    if binding := _parse_binding(event):
                        self._collector.scheduled_event(*binding)
        except errors.ClusterError as error:
            log.debug("events_not_listed", run="/".join(self.key), error=str(error))

    def release(self) -> None:
        """Write notes and an interim Result, for the process that continues."""
        with self._store_errors_logged():
            self._notes.add(self._collector.notes())
            self._store_interim_result(time.time())
        self._notes.close()

    @contextlib.contextmanager
    def _store_errors_logged(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._store_error_logged:  # it would repeat every second
                self._store_error_logged = True
                log.warning("result_not_stored", run="/".join(self.key), error=str(error), hint="check --results-dir")


def _run_info(context: workloads.RunContext, record: RunRecord, total: int) -> RunInfo:
    wave = context.wave
    expects_completion = wave.expect is not None and wave.expect.completion is not None
    kind, ends = str(wave.template["kind"]), workloads.completes(context) or expects_completion
    return RunInfo(context.fleet.name, wave.name, record.name, record.start, kind, total, ends)


def _parse_binding(event: Manifest) -> tuple[str, str, float] | None:
    """Return namespace, pod and time of a Scheduled Event, None if one is missing."""
    pod, text = event.get("involvedObject") or {}, event.get("eventTime") or event.get("firstTimestamp")
    if pod.get("kind") != "Pod" or not text:
        return None
    try:
        return str(pod["namespace"]), str(pod["name"]), datetime.fromisoformat(str(text)).timestamp()
    except (KeyError, ValueError):
        return None
