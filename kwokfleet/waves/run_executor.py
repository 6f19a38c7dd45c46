"""One Run played: its objects made ahead, submitted at their instants, what is refused tried again, churn after that.

Names derive from Fleet, Wave, Run and index, so that an object which is submitted again after a crash
is there already. What is done is in the Ledger's entry; who leads next goes on from there.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Protocol

import structlog

from kwokfleet import errors
from kwokfleet.api.wave import Churn
from kwokfleet.kube import objects, rejections, requests, throttled_client
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.discovery import KindResolver
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workloads
from kwokfleet.waves import churn as upkeep
from kwokfleet.waves import deadline_queue, ledger
from kwokfleet.waves.ledger import RunRecord, RunState
from kwokfleet.waves.namespaces import Namespaces

log = structlog.get_logger()

AHEAD = 256
"""So many objects are made before their instants."""
PATIENCE_S = 0.5
"""How long to wait for an API server that is away before it is asked again."""
FIRST_AGAIN_S, LONGEST_AGAIN_S = 0.5, 15.0
"""When an object is tried again that was refused for a reason that may pass."""
FIRST_RENEW_S = 0.05
"""How long an object that was deleted is given to be gone."""
PASSING_S = 120.0
"""How long such a reason may last, if the Wave expects no deadline of its own."""

RunKey = tuple[str, str, str]
"""Fleet, Wave and Run."""


class RunListener(Protocol):
    """Whoever wants to know what is played. It is told from many threads, and must not take long."""

    def began(self, context: workloads.RunContext, entry: RunRecord, total: int) -> None:
        """Hear that a Run begins, or is gone on with: of *total* objects the first `entry.submitted` are submitted."""

    def submitted(  # noqa: PLR0913, PLR0917  # all that is known of it
        self, name: RunKey, index: int, due: datetime, sent: datetime, trouble: str, retries: int
    ) -> None:
        """Hear that an object was submitted or, as *trouble* says, refused; *sent*: when it first left."""

    def marked(self, name: RunKey, what: str) -> None:
        """Hear what is worth a line in the timeline: suspended, resumed, a churn round, cancelled, cleaned up."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """What all Runs share."""

    sender: throttled_client.ThrottledClient
    pacer: deadline_queue.DeadlineQueue
    kinds: KindResolver
    audience: RunListener
    news: Callable[[], None]
    """Is called when an entry has changed."""


@dataclass(slots=True)
class PendingObject:
    """One object on its way."""

    index: int
    at: datetime
    """When it is due."""
    due: float
    """The same moment, by the monotonic clock."""
    request: requests.Request | None = None
    """Made ahead; None if that was not possible, or must be done again."""
    passage: throttled_client.SendTiming = field(default_factory=throttled_client.SendTiming)
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_AGAIN_S, LONGEST_AGAIN_S))
    """How long to wait if it is refused for a reason that may pass."""
    queued: bool = True
    """Whether it waits to be submitted for the first time."""


class RunExecutor(threading.Thread):
    """Plays one Run."""

    def __init__(self, tools: RunServices, context: workloads.RunContext, entry: RunRecord) -> None:
        super().__init__(name=f"run-{context.wave.name}-{entry.name}", daemon=True)
        self._stop_asked = threading.Event()
        self._tools, self._context, self._entry = tools, context, entry
        self._name: RunKey = (context.fleet.name, context.wave.name, entry.name)
        self._sender = tools.sender.lane(self._stop_asked)
        self._line = tools.pacer.line()
        self._make = workloads.object_factory(context)
        self._namespaces = Namespaces(self._sender, context)
        self._changed = threading.Condition()
        self._queued = self._under_way = 0
        self._ahead: list[int] = []
        """Submitted, but something before them is not."""
        self._refused = {
            index for low, high in entry.refused for index in range(low, high + 1) if index < entry.submitted
        }
        self._groups: dict[str, tuple[int, str]] = {}
        """Why objects were refused for good: how many, and the first."""
        self._to_monotonic = time.monotonic() - datetime.now(UTC).timestamp()
        """Fixed for the whole Run: the time of day may jump."""

    @property
    def entry(self) -> RunRecord:
        """How far it is."""
        with self._changed:
            why = rejections.summary(self._groups) or self._entry.why
            return replace(self._entry, refused=ledger.index_ranges(self._refused), why=why)

    def cancel(self) -> None:
        """Leave off; what is submitted stays."""
        self._stop_asked.set()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Submit what is due, when it is due, then churn, until there is nothing left."""
        try:
            self._play()
        except errors.KwokfleetError as error:
            self._change(why=str(error))
        except Exception as error:  # a bug must not look like a Run that goes on
            log.exception("run_failed", wave=self._context.wave.name, run=self._entry.name)
            self._change(why=f"{type(error).__name__}: {error}")
        self._line.close()
        if not self._stop_asked.is_set():
            self._change(state=RunState.DONE, ended=datetime.now(UTC))
        self._tools.news()

    def _play(self) -> None:
        entry, now, total = self._entry, datetime.now(UTC), workloads.object_count(self._context)
        self._change(total=total)
        self._tools.audience.began(self._context, self._entry, total)
        waiting = itertools.islice(workloads.due_objects(self._context, entry.begins), entry.submitted, None)
        refused = [workloads.DueObject(now, entry.name, index, self._name[1]) for index in sorted(self._refused)]
        self._submit_all(itertools.chain(refused, waiting))
        if self._context.wave.churn is not None:
            self._churn(self._context.wave.churn, total)

    def _change(self, **fields: object) -> None:
        with self._changed:
            self._entry = replace(self._entry, **fields)  # type: ignore[arg-type]  # fields of Entry

    # submission

    def _submit_all(self, waiting: Iterable[workloads.DueObject]) -> None:
        """Make objects ahead of their instants and hand them to the pacer; return when all are submitted, or not."""
        for instant in waiting:
            with self._changed:
                if self._queued >= AHEAD:  # then half of them at once: who makes one at a time is always awake
                    self._changed.wait_for(lambda: self._queued <= AHEAD // 2 or self._stop_asked.is_set())
                if self._stop_asked.is_set():
                    return
                self._queued, self._under_way = self._queued + 1, self._under_way + 1
            piece = PendingObject(instant.index, instant.at, instant.at.timestamp() + self._to_monotonic)
            with suppress(errors.ClusterError):  # who submits it tries once more, and deals with that
                piece.request = self._request(piece)
            self._line.put(piece.due, partial(self._submit, piece))
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or self._stop_asked.is_set())

    def _request(self, piece: PendingObject) -> requests.Request:
        manifest = self._make(piece.index)
        self._namespaces.provide(manifest)
        return requests.create_any(self._tools.kinds.kind(manifest), manifest)

    def _submit(self, piece: PendingObject) -> None:
        """Submit one object, now or later; what neither passes nor succeeds is refused."""
        if piece.queued:
            self._taken(piece)
        if self._stop_asked.is_set():
            return
        try:
            request = piece.request or self._request(piece)
            piece.request = None
            answer = self._sender.send(request, piece.passage)
            trouble = self._trouble(piece, answer)
            passing = bool(trouble) and rejections.is_transient(answer)
        except errors.NotLeadingError:
            self.cancel()
            return
        except errors.UnreachableError:
            self._line.put(time.monotonic() + PATIENCE_S, partial(self._submit, piece))
            return
        except errors.ClusterError as error:
            if self._stop_asked.is_set():
                return
            trouble, passing = str(error), False
        if passing and time.monotonic() < self._passes_until(piece):
            self._again(piece)
        else:
            self._over(piece, trouble)

    def _taken(self, piece: PendingObject) -> None:
        piece.queued = False
        with self._changed:
            self._queued -= 1
            if self._queued == AHEAD // 2:
                self._changed.notify_all()

    def _trouble(self, piece: PendingObject, answer: requests.Response) -> str:
        """Return why an object was refused, empty if it is there."""
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.OK):
            return ""
        manifest = self._make(piece.index)
        if answer.status == HTTPStatus.CONFLICT and not rejections.is_transient(answer):
            there = self._sender.send(requests.get_any(self._tools.kinds.kind(manifest), manifest)).json()
            return "" if upkeep.belongs_to_run(there, self._name) else "there is one already, and it is not of this Run"
        self._namespaces.forget(manifest)
        return rejections.reason_text(answer)

    def _passes_until(self, piece: PendingObject) -> float:
        expect = self._context.wave.expect
        if expect is not None and expect.deadline is not None:
            return (self._entry.begins + expect.deadline).timestamp() + self._to_monotonic
        return piece.due + PASSING_S

    def _again(self, piece: PendingObject) -> None:
        """Try an object later: others go on, and the Ledger knows that it is missing."""
        self._note(piece.index, refused=True)
        self._line.put(time.monotonic() + piece.backoff.next_s(), partial(self._submit, piece))

    def _over(self, piece: PendingObject, trouble: str) -> None:
        left = piece.passage.at or time.monotonic()
        sent = piece.at + timedelta(seconds=left - piece.due)
        example = self._called(piece.index) if trouble else ""
        said = f"{example}: {trouble}" if trouble else ""
        self._tools.audience.submitted(self._name, piece.index, piece.at, sent, said, max(0, piece.passage.tries - 1))
        if trouble:
            with self._changed:
                count, first = self._groups.get(trouble, (0, example))
                self._groups[trouble] = (count + 1, first)
        self._note(piece.index, refused=bool(trouble))
        self._left()

    def _called(self, index: int) -> str:
        manifest = self._make(index)
        return f"{manifest['kind']} {manifest['metadata']['name']}"

    def _note(self, index: int, *, refused: bool) -> None:
        """Take note that an object was submitted: up to where all were, and which are missing."""
        with self._changed:
            (self._refused.add if refused else self._refused.discard)(index)
            done = self._entry.submitted
            if index >= done:
                heapq.heappush(self._ahead, index)
            while self._ahead and self._ahead[0] <= done:
                done = max(done, heapq.heappop(self._ahead) + 1)
            self._entry = replace(self._entry, submitted=done)
        self._tools.news()

    def _left(self) -> None:
        with self._changed:
            self._under_way -= 1
            if not self._under_way:
                self._changed.notify_all()

    # churn

    def _churn(self, churn: Churn, total: int) -> None:
        """Renew some of the objects in each round; a round that a crash cut short is done again."""
        begins = self._entry.begins
        last = max((each.at for each in workloads.due_objects(self._context, begins)), default=begins)
        for number in range(self._entry.rounds + 1, churn.total + 1):
            due = (last + number * churn.every).timestamp() + self._to_monotonic
            if self._stop_asked.wait(max(0.0, due - time.monotonic())):
                return
            chosen = upkeep.churned_indices(self._context.fleet, self._context.wave, self._entry.name, number, total)
            mine = [index for index in chosen if index not in self._refused]
            self._tools.audience.marked(self._name, f"churn round {number} of {churn.total}: {len(mine)} objects")
            with self._changed:
                self._under_way += len(mine)
            now = time.monotonic()
            for index in mine:
                self._line.put(
                    now, partial(self._renew, index, number, Backoff(FIRST_RENEW_S, LONGEST_AGAIN_S), now + PASSING_S)
                )
            self._wait_for_all()
            if self._stop_asked.is_set():
                return
            self._change(rounds=number)
            self._tools.news()

    def _renew(self, index: int, number: int, backoff: Backoff, until: float) -> None:
        """Delete an object and make it anew under its name, once the old one is gone."""
        if self._stop_asked.is_set():
            return
        try:
            done, trouble = self._renewed(upkeep.with_churn_round(self._make(index), number), number)
        except errors.NotLeadingError:
            self.cancel()
            return
        except errors.UnreachableError:
            done, trouble = False, "the API server does not answer"
        except errors.ClusterError as error:
            done, trouble = True, str(error)
        now = time.monotonic()
        if not done and now < until:
            self._line.put(now + backoff.next_s(), partial(self._renew, index, number, backoff, until))
            return
        if trouble:
            log.warning("not_renewed", wave=self._name[1], run=self._name[2], object=self._called(index), error=trouble)
        self._left()

    def _renewed(self, manifest: Manifest, number: int) -> tuple[bool, str]:
        """Do what can be done now for an object to be one of this round; return whether that is all, and why not."""
        kind = self._tools.kinds.kind(manifest)
        there = self._sender.send(requests.get_any(kind, manifest)).json()
        if there.get("metadata"):
            if not upkeep.belongs_to_run(there, self._name) or not objects.is_managed(there):
                return True, "the one that is there is not of this Run"
            if upkeep.churn_round(there) >= number:
                return True, ""
            if "deletionTimestamp" not in there["metadata"]:
                self._sender.send(requests.delete_any(kind, manifest, there["metadata"]["uid"]))
        self._namespaces.provide(manifest)
        answer = self._sender.send(requests.create_any(kind, manifest))
        if answer.status == HTTPStatus.CREATED:
            return True, ""
        later = answer.status == HTTPStatus.CONFLICT or rejections.is_transient(answer)
        return not later, rejections.reason_text(answer)
