"""The pods of a Run: their times and their current counts."""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from math import isnan

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, milestones, pod_requests
from kwokfleet.measure.columns import NONE, Names, State, Table
from kwokfleet.measure.submissions import Submissions

CREATED, SCHEDULED, RUNNING, READY, OVER, GONE = range(6)
"""Watch clock."""
API_CREATED, API_SCHEDULED, API_READY_TO_START, API_INITIALIZED, API_STARTED = range(6, 11)
API_CONTAINERS_READY, API_READY, API_OVER, EVENT = range(11, 15)
"""API clock. EVENT: the Scheduled Event of the pod."""
FOR_OWNERS = (CREATED, RUNNING, API_CREATED, API_STARTED)
"""Times that its owner needs."""
NAMESPACE, INDEX, OWNER, SCHEDULER, REQUESTS, NODE, POOL, FLAGS = range(8)
STATEFUL, FAILED = 1, 2
"""Flags."""
WAITING, STARTING, RUNS, DONE = range(4)
"""Stages of a pod: without a node, on a node, running, ended or gone."""
DEFAULT_SCHEDULER = "default-scheduler"


class EventType(StrEnum):
    """Type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    LISTED = "LISTED"
    """It existed before the watch: the times of its states are unknown."""


class PodTable(Table):
    """Rows of pods, by UID: a later pod of the same name is another row."""

    tag, gone = "p", GONE
    clock_pairs = (
        (CREATED, API_CREATED),
        (SCHEDULED, API_SCHEDULED),
        (RUNNING, API_STARTED),
        (READY, API_READY),
        (OVER, API_OVER),
    )

    def __init__(
        self, texts: Names, pool_of: Callable[[str], str], submissions: Submissions, *, are_objects: bool, ends: bool
    ) -> None:
        super().__init__(texts, times=EVENT + 1, watch_times=GONE + 1, integers=FLAGS + 1)
        self.by_stage = [0, 0, 0, 0]
        """Number of pods in each stage."""
        self.waiting: Counter[str] = Counter()
        self.bound: Counter[str] = Counter()
        """Numbers of waiting pods and of observed bindings, by scheduler."""
        self.completed = 0
        """Number of observed completions."""
        self.used: dict[str, dict[str, float]] = {}
        """Requests of bound pods that have not ended, by pool and resource."""
        self.resources: set[str] = set()
        self.unsettled = 0
        """If pods are the Run's objects: the number that has not ended."""
        self._are_objects, self._ends = are_objects, ends
        self._pool_of, self._submissions = pool_of, submissions
        self._requests_by_number: dict[int, pod_requests.PodRequests] = {}
        self._pods_by_pool: Counter[str] = Counter()
        self._by_name: dict[tuple[str, str], list[int]] = {}

    def add_event(
        self, event_type: EventType, manifest: Manifest, received: float, owner_of: Callable[[Manifest], int]
    ) -> int:
        """Record an event of a pod; return its row."""
        row = self.rows.get(columns.key(manifest["metadata"]["uid"]))
        state = milestones.parse_pod(manifest)
        if row is None:
            row = self._add_pod(manifest, owner_of)
        before = self._state(row)
        at = -received if event_type is EventType.LISTED else received
        self.merge(row, CREATED, received if event_type is EventType.ADDED else -received)
        if state.node:
            if self.integers[NODE][row] == NONE:
                self.put_text(row, NODE, state.node)
                self.put_text(row, POOL, self._pool_of(state.node))
            self.merge(row, SCHEDULED, at)
        if state.ready:
            self.merge(row, READY, at)
        if state.phase == "Running":
            self.merge(row, RUNNING, at)
        elif state.phase in milestones.OVER:
            self._record_end(row, state, at, manifest)
        if event_type is EventType.DELETED:
            self.merge(row, GONE, at)
        for column, api_time in enumerate(state[3:], start=API_SCHEDULED):
            self.merge(row, column, api_time)
        self._unconfirmed.discard(row)
        self._update_counts(row, before)
        return row

    def _add_pod(self, manifest: Manifest, owner_of: Callable[[Manifest], int]) -> int:
        """Add a row with the fields that never change."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        row = self.add(columns.key(metadata["uid"]), metadata["name"])
        self.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        self.put_text(row, NAMESPACE, metadata.get("namespace") or "")
        self.put(row, INDEX, index_of(manifest))
        self.put(row, OWNER, owner_of(manifest))
        self.put_text(row, SCHEDULER, spec.get("schedulerName") or DEFAULT_SCHEDULER)
        self.put_text(row, REQUESTS, orjson.dumps(dict(pod_requests.total_requests(manifest))).decode())
        self.put(row, FLAGS, 0 if milestones.is_stateless(manifest) else STATEFUL)
        self._by_name.clear()
        self._count_row(row)
        return row

    def _record_end(self, row: int, state: milestones.PodMilestones, at: float, manifest: Manifest) -> None:
        """Record the end. A pod that ended has run, even without a Running event."""
        self.merge(row, OVER, at)
        if state.phase == "Succeeded" or not isnan(state.started_at):
            self.merge(row, RUNNING, -abs(at))
        if state.phase == "Failed" and not self.failed(row):
            self._submissions.failures.add(milestones.pod_failure(manifest), f"Pod {self.names[row]}")
            self.put(row, FLAGS, self.integers[FLAGS][row] | FAILED)
        if state.phase == "Succeeded" and at < 0:
            self.merge(row, READY, at)

    def add_scheduled_event(self, namespace: str, name: str, at: float) -> None:
        """Record the time of a Scheduled Event for the latest pod of that name that existed then."""
        if not self._by_name:
            for row, pod_name in enumerate(self.names):
                self._by_name.setdefault((self.text(row, NAMESPACE), pod_name), []).append(row)
        rows = self._by_name.get((namespace, name), [])
        existing = [row for row in rows if not self.times[API_CREATED][row] > at + 1]
        if existing:
            self.merge(existing[-1], EVENT, at)

    # ------------------------------------------------------------------------------------
    # stages and counts

    def is_object(self, row: int) -> bool:  # noqa: ARG002
        """Return True: every row is a pod."""
        return True

    def _stage(self, row: int) -> int:
        if self.is_reached(row, OVER) or self.is_reached(row, GONE):
            return DONE
        if self.is_reached(row, RUNNING):
            return RUNS
        return STARTING if self.is_reached(row, SCHEDULED) else WAITING

    def _count_row(self, row: int) -> None:
        self.by_stage[WAITING] += 1
        self.waiting[self.text(row, SCHEDULER)] += 1
        if self._are_objects:
            self.unsettled += 1
            self._submissions.confirm(self.integers[INDEX][row])

    def _state(self, row: int) -> State:
        """Return the stage of a pod, and whether it is bound, over, and settled: ended, or ready if it never ends."""
        stage = self._stage(row)
        settled = stage == DONE or (not self._ends and self.is_reached(row, READY))
        return stage, self.is_reached(row, SCHEDULED), self.is_reached(row, OVER), settled

    def _update_counts(self, row: int, before: State) -> None:
        stage, was_bound, was_over, was_settled = before
        (now, _, _, settled), scheduler = self._state(row), self.text(row, SCHEDULER)
        if not was_bound and self.times[SCHEDULED][row] > 0:
            self.bound[scheduler] += 1
        if not was_over and self.times[OVER][row] > 0 and not self.failed(row):
            self.completed += 1
        if settled and not was_settled:
            self.unsettled -= self._are_objects
        if now == stage:
            return
        self.by_stage[stage] -= 1
        self.by_stage[now] += 1
        if stage == WAITING:
            self.waiting[scheduler] -= 1
            if now != DONE:
                self._add_usage(row, 1)
        elif now == DONE:
            self._add_usage(row, -1)

    def _add_usage(self, row: int, sign: int) -> None:
        pool = self.text(row, POOL)
        used = self.used.setdefault(pool, {})
        self._pods_by_pool[pool] += sign
        for resource, amount in self._requests(row):
            self.resources.add(resource)
            used[resource] = used.get(resource, 0.0) + sign * amount
        if not self._pods_by_pool[pool]:
            used.clear()  # removes rounding errors of the subtraction

    def _requests(self, row: int) -> pod_requests.PodRequests:
        number = self.integers[REQUESTS][row]
        if number not in self._requests_by_number:
            self._requests_by_number[number] = tuple(orjson.loads(self.text(row, REQUESTS) or "{}").items())
        return self._requests_by_number[number]

    # ------------------------------------------------------------------------------------
    # one pod

    def pool(self, row: int) -> str:
        """Return the pool of a pod's node; empty if it has none."""
        node = self.text(row, NODE)
        return self.text(row, POOL) or (self._pool_of(node) if node else "")

    def failed(self, row: int) -> bool:
        """Return whether a pod failed."""
        return bool(self.integers[FLAGS][row] & FAILED)

    def phase(self, row: int) -> str:
        """Return a pod's phase."""
        if self.is_reached(row, OVER):
            return "Failed" if self.failed(row) else "Succeeded"
        return "Running" if self.is_reached(row, RUNNING) else "Pending"


def index_of(manifest: Manifest) -> int:
    """Return the index of an object in its Run, NONE without the annotation."""
    text = (manifest["metadata"].get("annotations") or {}).get(objects.INDEX) or ""
    return int(text) if text.isdecimal() else NONE
