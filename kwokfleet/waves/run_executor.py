"""Executes one Run: renders objects ahead of time, submits them at their instants, retries rejected ones, then churns.

Object names derive from Fleet, Wave, Run and index, so submitting an object again after a crash creates nothing.
Progress is in the RunRecord; the next leader continues from the Ledger.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Protocol

import structlog

from kwokfleet import errors
from kwokfleet.api import wave as wave_api
from kwokfleet.kube import objects, rejections, requests, throttled_client
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.discovery import KindResolver
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workloads
from kwokfleet.waves import churn, deadline_queue, ledger
from kwokfleet.waves.ledger import RunRecord, RunState
from kwokfleet.waves.namespaces import Namespaces

log = structlog.get_logger()

MAX_QUEUED = 256
"""Objects rendered ahead of their instants."""
UNREACHABLE_RETRY_S = 0.5
"""Delay before a retry when the API server does not answer."""
FIRST_RETRY_S, MAX_RETRY_S = 0.5, 15.0
"""Delay before an object is submitted again after a transient rejection."""
FIRST_REPLACE_RETRY_S = 0.05
"""Delay before a churned object is created again while the old one is being deleted."""
RETRY_TIMEOUT_S = 120.0
"""How long transient rejections are retried if the Wave has no deadline."""

RunKey = tuple[str, str, str]
"""Fleet, Wave and Run."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One object that was created or finally rejected."""

    index: int
    due: datetime
    sent: datetime
    """When the first request was sent."""
    error: str = ""
    """Why it was rejected, `KIND NAME: reason`. Empty: it exists."""
    retries: int = 0


class RunListener(Protocol):
    """Receives the progress of Runs. Called from many threads; must return quickly."""

    def run_started(self, context: workloads.RunContext, record: RunRecord, total: int) -> None:
        """Handle the start of a Run, or its continuation after `record.submitted` of *total* objects."""

    def object_submitted(self, key: RunKey, submission: Submission) -> None:
        """Handle a submission."""

    def timeline_mark(self, key: RunKey, text: str) -> None:
        """Handle a mark for the timeline: suspended, resumed, churn round, cancelled, cleaned up."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """Services that all Runs share."""

    sender: throttled_client.ThrottledClient
    deadlines: deadline_queue.DeadlineQueue
    kinds: KindResolver
    listener: RunListener
    on_change: Callable[[], None]
    """Called when a RunRecord has changed."""


@dataclass(slots=True)
class PendingObject:
    """One object that is not submitted yet."""

    index: int
    instant: datetime
    due: float
    """The instant on the monotonic clock."""
    request: requests.Request | None = None
    """Rendered ahead. None if rendering failed or must be repeated."""
    timing: throttled_client.SendTiming = field(default_factory=throttled_client.SendTiming)
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_S, MAX_RETRY_S))
    is_queued: bool = True
    """Whether its first submission is still ahead."""


class RunThread(threading.Thread):
    """Thread of one Run. Its tasks run on the threads that all Runs share."""

    def __init__(self, role: str, services: RunServices, context: workloads.RunContext) -> None:
        super().__init__(name=f"{role}-{context.wave.name}-{context.run}", daemon=True)
        self._services, self._context = services, context
        self._key: RunKey = (context.fleet.name, context.wave.name, context.run)
        self._stop_event, self._changed = threading.Event(), threading.Condition()
        self._sender = services.sender.with_stop(self._stop_event)
        self._tasks = deadline_queue.TaskQueue()
        self._pending = 0
        """Tasks that have not finished."""

    def cancel(self) -> None:
        """Stop. Objects that exist stay."""
        self._stop_event.set()
        with self._changed:
            self._changed.notify_all()

    def _schedule(self, due: float, call: Callable[..., None], *arguments: object) -> None:
        """Call a function at a time on the monotonic clock."""
        self._services.deadlines.put(self._tasks, due, partial(call, *arguments))

    def _run_all(self, tasks: Sequence[deadline_queue.Task]) -> None:
        """Run tasks in parallel, taking turns with other Runs; return when all are finished or the Run is stopped."""
        with self._changed:
            self._pending += len(tasks)
        now = time.monotonic()
        for task in tasks:
            self._schedule(now, task)
        self._wait_for_pending()

    def _wait_for_pending(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._stop_event.is_set())

    def _finish_pending(self) -> None:
        with self._changed:
            self._pending -= 1
            if not self._pending:
                self._changed.notify_all()


class RunExecutor(RunThread):
    """Executes one Run."""

    def __init__(self, services: RunServices, context: workloads.RunContext, record: RunRecord) -> None:
        super().__init__("run", services, context)
        self._record = record
        self._render = workloads.object_factory(context)
        self._namespaces = Namespaces(self._sender, context)
        self._queued = 0
        self._above_watermark: list[int] = []
        """Heap of submitted indices above the watermark."""
        self._rejected = {
            index for low, high in record.rejected for index in range(low, high + 1) if index < record.submitted
        }
        self._rejection_groups: dict[str, tuple[int, str]] = {}
        """Number of objects and the first object, by reason of the final rejection."""
        self._to_monotonic = time.monotonic() - datetime.now(UTC).timestamp()
        """Fixed for the whole Run, because the wall clock may jump."""

    @property
    def record(self) -> RunRecord:
        """The current RunRecord."""
        with self._changed:
            error = rejections.summary(self._rejection_groups) or self._record.error
            return replace(self._record, rejected=ledger.index_ranges(self._rejected), error=error)

    def run(self) -> None:
        """Submit all objects at their instants, then churn."""
        try:
            self._execute()
        except errors.KwokfleetError as error:
            self._update(error=str(error))
        except Exception as error:  # after a bug, the Run must not look active
            log.exception("run_failed", wave=self._context.wave.name, run=self._record.name)
            self._update(error=f"{type(error).__name__}: {error}")
        self._services.deadlines.remove(self._tasks)
        if not self._stop_event.is_set():
            self._update(state=RunState.DONE, ended_at=datetime.now(UTC))
        self._services.on_change()

    def _execute(self) -> None:
        record, now, total = self._record, datetime.now(UTC), workloads.object_count(self._context)
        self._update(total=total)
        self._services.listener.run_started(self._context, self._record, total)
        instants = itertools.islice(workloads.due_objects(self._context, record.shifted_start), record.submitted, None)
        rejected = [workloads.DueObject(now, record.name, index, self._key[1]) for index in sorted(self._rejected)]
        self._submit_all(itertools.chain(rejected, instants))
        if self._context.wave.churn is not None:
            self._churn(self._context.wave.churn, total)

    def _update(self, **fields: object) -> None:
        with self._changed:
            self._record = replace(self._record, **fields)  # type: ignore[arg-type]  # fields of RunRecord

    # submission

    def _submit_all(self, instants: Iterable[workloads.DueObject]) -> None:
        """Render objects ahead and queue them; return when all are submitted or the Run is stopped."""
        for instant in instants:
            with self._changed:
                if self._queued >= MAX_QUEUED:  # then refill half the queue at once: fewer wake-ups
                    self._changed.wait_for(lambda: self._queued <= MAX_QUEUED // 2 or self._stop_event.is_set())
                if self._stop_event.is_set():
                    return
                self._queued, self._pending = self._queued + 1, self._pending + 1
            pending = PendingObject(instant.index, instant.at, instant.at.timestamp() + self._to_monotonic)
            with suppress(errors.ClusterError):  # _submit tries again and handles the error
                pending.request = self._create_request(pending.index)
            self._schedule(pending.due, self._submit, pending)
        self._wait_for_pending()

    def _create_request(self, index: int) -> requests.Request:
        manifest = self._render(index)
        self._namespaces.ensure(manifest)
        return requests.create_any(self._services.kinds.of_manifest(manifest), manifest)

    def _submit(self, pending: PendingObject) -> None:
        """Submit one object, or queue it again after a transient rejection."""
        if pending.is_queued:
            self._dequeue(pending)
        if self._stop_event.is_set():
            return
        try:
            request = pending.request or self._create_request(pending.index)
            pending.request = None
            answer = self._sender.send(request, pending.timing)
            reason = self._rejection(pending.index, answer)
            is_transient = bool(reason) and rejections.is_transient(answer)
        except errors.NotLeadingError:
            self.cancel()
            return
        except errors.UnreachableError:
            self._schedule(time.monotonic() + UNREACHABLE_RETRY_S, self._submit, pending)
            return
        except errors.ClusterError as error:
            if self._stop_event.is_set():
                return
            reason, is_transient = str(error), False
        if is_transient and time.monotonic() < self._retry_deadline(pending):
            self._record_submission(pending.index, rejected=True)  # in the Ledger, until it exists
            self._schedule(time.monotonic() + pending.backoff.next_s(), self._submit, pending)
        else:
            self._finish(pending, reason)

    def _dequeue(self, pending: PendingObject) -> None:
        pending.is_queued = False
        with self._changed:
            self._queued -= 1
            if self._queued == MAX_QUEUED // 2:
                self._changed.notify_all()

    def _rejection(self, index: int, answer: requests.Response) -> str:
        """Return why an object was rejected, empty if it exists."""
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.OK):
            return ""
        manifest = self._render(index)
        if answer.status == HTTPStatus.CONFLICT and not rejections.is_transient(answer):
            existing = self._sender.send(requests.get_any(self._services.kinds.of_manifest(manifest), manifest)).json()
            return "" if churn.belongs_to_run(existing, self._key) else "already exists and does not belong to this Run"
        self._namespaces.discard(manifest)
        return rejections.reason_text(answer)

    def _retry_deadline(self, pending: PendingObject) -> float:
        expect = self._context.wave.expect
        if expect is not None and expect.deadline is not None:
            return (self._record.shifted_start + expect.deadline).timestamp() + self._to_monotonic
        return pending.due + RETRY_TIMEOUT_S

    def _finish(self, pending: PendingObject, reason: str) -> None:
        sent = pending.instant + timedelta(seconds=(pending.timing.sent_at or time.monotonic()) - pending.due)
        name = self._object_name(pending.index) if reason else ""
        error, retries = f"{name}: {reason}" if reason else "", max(0, pending.timing.tries - 1)
        submission = Submission(pending.index, pending.instant, sent, error, retries)
        self._services.listener.object_submitted(self._key, submission)
        if reason:
            with self._changed:
                count, first = self._rejection_groups.get(reason, (0, name))
                self._rejection_groups[reason] = (count + 1, first)
        self._record_submission(pending.index, rejected=bool(reason))
        self._finish_pending()

    def _object_name(self, index: int) -> str:
        manifest = self._render(index)
        return f"{manifest['kind']} {manifest['metadata']['name']}"

    def _record_submission(self, index: int, *, rejected: bool) -> None:
        """Update the watermark and the rejected objects."""
        with self._changed:
            (self._rejected.add if rejected else self._rejected.discard)(index)
            watermark = self._record.submitted
            if index >= watermark:
                heapq.heappush(self._above_watermark, index)
            while self._above_watermark and self._above_watermark[0] <= watermark:
                watermark = max(watermark, heapq.heappop(self._above_watermark) + 1)
            self._record = replace(self._record, submitted=watermark)
        self._services.on_change()

    # churn

    def _churn(self, settings: wave_api.Churn, total: int) -> None:
        """Replace some of the objects in each round. A round that a crash interrupted is repeated."""
        start = self._record.shifted_start
        last = max((instant.at for instant in workloads.due_objects(self._context, start)), default=start)
        for number in range(self._record.churn_rounds + 1, settings.total + 1):
            due = (last + number * settings.every).timestamp() + self._to_monotonic
            if self._stop_event.wait(max(0.0, due - time.monotonic())):
                return
            chosen = churn.churned_indices(self._context.fleet, self._context.wave, self._record.name, number, total)
            indices = [index for index in chosen if index not in self._rejected]
            text = f"churn round {number} of {settings.total}: {len(indices)} objects"
            self._services.listener.timeline_mark(self._key, text)
            replace_object = partial(self._replace, number, time.monotonic() + RETRY_TIMEOUT_S)
            self._run_all(
                [partial(replace_object, Backoff(FIRST_REPLACE_RETRY_S, MAX_RETRY_S), index) for index in indices]
            )
            if self._stop_event.is_set():
                return
            self._update(churn_rounds=number)
            self._services.on_change()

    def _replace(self, number: int, deadline: float, backoff: Backoff, index: int) -> None:
        """Delete an object and create it again under the same name."""
        if self._stop_event.is_set():
            return
        try:
            done, reason = self._try_replace(churn.with_churn_round(self._render(index), number), number)
        except errors.NotLeadingError:
            self.cancel()
            return
        except errors.UnreachableError:
            done, reason = False, "the API server does not answer"
        except errors.ClusterError as error:
            done, reason = True, str(error)
        now = time.monotonic()
        if not done and now < deadline:
            self._schedule(now + backoff.next_s(), self._replace, number, deadline, backoff, index)
            return
        if reason:
            name = self._object_name(index)
            log.warning("object_not_replaced", wave=self._key[1], run=self._key[2], object=name, error=reason)
        self._finish_pending()

    def _try_replace(self, manifest: Manifest, number: int) -> tuple[bool, str]:
        """Take one step to replace an object; return whether no step is left, and the reason of a rejection."""
        kind = self._services.kinds.of_manifest(manifest)
        existing = self._sender.send(requests.get_any(kind, manifest)).json()
        if existing.get("metadata"):
            if not churn.belongs_to_run(existing, self._key) or not objects.is_managed(existing):
                return True, "the existing object does not belong to this Run"
            if churn.churn_round(existing) >= number:
                return True, ""
            if "deletionTimestamp" not in existing["metadata"]:
                self._sender.send(requests.delete_any(kind, manifest, existing["metadata"]["uid"]))
        self._namespaces.ensure(manifest)
        answer = self._sender.send(requests.create_any(kind, manifest))
        if answer.status == HTTPStatus.CREATED:
            return True, ""
        is_transient = answer.status == HTTPStatus.CONFLICT or rejections.is_transient(answer)
        return not is_transient, rejections.reason_text(answer)
