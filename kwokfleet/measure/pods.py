"""The pods of a Run: their times and their current counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from math import isnan

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, milestones, pod_requests
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.submissions import Submissions

CREATED, SCHEDULED, RUNNING, READY, OVER, GONE = range(6)
"""Watch clock."""
(
    API_CREATED,
    API_SCHEDULED,
    API_READY_TO_START,
    API_INITIALIZED,
    API_STARTED,
    API_CONTAINERS_READY,
    API_READY,
    API_OVER,
    EVENT,
) = range(6, 15)
"""API clock. EVENT: the Scheduled Event of the pod."""
TIMES = 15
FOR_OWNERS = (CREATED, RUNNING, API_CREATED, API_STARTED)
"""Times that its owner needs."""
NAMESPACE, INDEX, OWNER, SCHEDULER, REQUESTS, NODE, POOL, FLAGS = range(8)
INTEGERS = 8
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


class PodTable:
    """Rows of pods, by UID: a later pod of the same name is another row."""

    def __init__(
        self,
        names: columns.Names,
        pool_of: Callable[[str], str],
        submissions: Submissions,
        *,
        are_objects: bool,
        ends: bool,
    ) -> None:
        self.table = columns.Table("p", TIMES, INTEGERS)
        self.names = names
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
        self._unconfirmed: set[int] = set()
        self._by_name: dict[tuple[int, str], list[int]] = {}

    def add_event(
        self, event_type: EventType, manifest: Manifest, received: float, owner_of: Callable[[Manifest], int]
    ) -> int:
        """Record an event of a pod; return its row."""
        metadata, table = manifest["metadata"], self.table
        row = table.rows.get(columns.key(metadata["uid"]))
        state = milestones.parse_pod(manifest)
        if row is None:
            row = self._add_pod(manifest, owner_of)
        before = self._state(row)
        at = -received if event_type is EventType.LISTED else received
        table.merge(row, CREATED, received if event_type is EventType.ADDED else -received)
        if state.node:
            if table.integers[NODE][row] == NONE:
                table.put(row, NODE, self.names.number(state.node))
                table.put(row, POOL, self.names.number(self._pool_of(state.node)))
            table.merge(row, SCHEDULED, at)
        if state.ready:
            table.merge(row, READY, at)
        if state.phase == "Running":
            table.merge(row, RUNNING, at)
        elif state.phase in milestones.OVER:
            self._record_end(row, state, at, manifest)
        if event_type is EventType.DELETED:
            table.merge(row, GONE, at)
        for column, api_time in enumerate(state[3:], start=API_SCHEDULED):
            if not isnan(api_time):
                table.merge(row, column, api_time)
        self._unconfirmed.discard(row)
        self._update_counts(row, before)
        return row

    def _add_pod(self, manifest: Manifest, owner_of: Callable[[Manifest], int]) -> int:
        """Add a row with the fields that never change."""
        metadata, spec, table, number = manifest["metadata"], manifest.get("spec") or {}, self.table, self.names.number
        row = table.add(columns.key(metadata["uid"]), metadata["name"])
        table.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        table.put(row, NAMESPACE, number(metadata.get("namespace") or ""))
        table.put(row, INDEX, index_of(manifest))
        table.put(row, OWNER, owner_of(manifest))
        table.put(row, SCHEDULER, number(spec.get("schedulerName") or DEFAULT_SCHEDULER))
        table.put(row, REQUESTS, number(orjson.dumps(dict(pod_requests.total_requests(manifest))).decode()))
        table.put(row, FLAGS, 0 if milestones.is_stateless(manifest) else STATEFUL)
        self._by_name.clear()
        self._count(row)
        return row

    def _record_end(self, row: int, state: milestones.PodMilestones, at: float, manifest: Manifest) -> None:
        """Record the end. A pod that ended has run, even without a Running event."""
        table = self.table
        table.merge(row, OVER, at)
        if state.phase == "Succeeded" or not isnan(state.started_at):
            table.merge(row, RUNNING, -abs(at))
        if state.phase == "Failed" and not self.failed(row):
            self._submissions.failures.add(milestones.pod_failure(manifest), f"Pod {table.names[row]}")
            table.put(row, FLAGS, table.integers[FLAGS][row] | FAILED)
        if state.phase == "Succeeded" and at < 0:
            table.merge(row, READY, at)

    def add_scheduled_event(self, namespace: str, name: str, at: float) -> None:
        """Record the time of a Scheduled Event for the latest pod of that name that existed then."""
        table = self.table
        if not self._by_name:
            for row, pod_name in enumerate(table.names):
                self._by_name.setdefault((table.integers[NAMESPACE][row], pod_name), []).append(row)
        rows = self._by_name.get((self.names.number(namespace), name), [])
        existing = [row for row in rows if not table.times[API_CREATED][row] > at + 1]
        if existing:
            table.merge(existing[-1], EVENT, at)

    def listing(self) -> None:
        """Mark all pods that are not gone as unconfirmed."""
        gone = self.table.times[GONE]
        self._unconfirmed = {row for row in range(len(self.table)) if isnan(gone[row])}

    def listed(self, at: float) -> None:
        """Mark unconfirmed pods as gone, at an unknown time."""
        for row in sorted(self._unconfirmed):
            before = self._state(row)
            self.table.merge(row, GONE, -at)
            self._update_counts(row, before)
        self._unconfirmed = set()

    # ------------------------------------------------------------------------------------
    # stages and counts

    def _stage(self, row: int) -> int:
        times = self.table.times
        if not isnan(times[OVER][row]) or not isnan(times[GONE][row]):
            return DONE
        if not isnan(times[RUNNING][row]):
            return RUNS
        return WAITING if isnan(times[SCHEDULED][row]) else STARTING

    def settled(self, row: int) -> bool:
        """Return whether a pod has ended, or is ready if it never ends."""
        return self._stage(row) == DONE or (not self._ends and not isnan(self.table.times[READY][row]))

    def _count(self, row: int) -> None:
        self.by_stage[WAITING] += 1
        self.waiting[self.scheduler(row)] += 1
        if self._are_objects:
            self.unsettled += 1
            self._submissions.confirm(self.table.integers[INDEX][row])

    def _state(self, row: int) -> tuple[int, bool, bool, bool]:
        times = self.table.times
        return self._stage(row), isnan(times[SCHEDULED][row]), isnan(times[OVER][row]), self.settled(row)

    def _update_counts(self, row: int, before: tuple[int, bool, bool, bool]) -> None:
        """Update all counts after a change of a pod."""
        stage, unbound, unfinished, settled = before
        now, times = self._stage(row), self.table.times
        if unbound and times[SCHEDULED][row] > 0:
            self.bound[self.scheduler(row)] += 1
        if unfinished and times[OVER][row] > 0 and not self.table.integers[FLAGS][row] & FAILED:
            self.completed += 1
        if not settled and self.settled(row):
            self.unsettled -= self._are_objects
        if now == stage:
            return
        self.by_stage[stage] -= 1
        self.by_stage[now] += 1
        if stage == WAITING:
            self.waiting[self.scheduler(row)] -= 1
            if now != DONE:
                self._add_usage(row, 1)
        elif now == DONE:
            self._add_usage(row, -1)

    def _add_usage(self, row: int, sign: int) -> None:
        pool = self.names.text(self.table.integers[POOL][row])
        used = self.used.setdefault(pool, {})
        self._pods_by_pool[pool] += sign
        for resource, amount in self._requests(row):
            self.resources.add(resource)
            used[resource] = used.get(resource, 0.0) + sign * amount
        if not self._pods_by_pool[pool]:
            used.clear()  # removes rounding errors of the subtraction

    def _requests(self, row: int) -> pod_requests.PodRequests:
        number = self.table.integers[REQUESTS][row]
        requests = self._requests_by_number.get(number)
        if requests is None:
            requests = self._requests_by_number[number] = tuple(orjson.loads(self.names.text(number) or "{}").items())
        return requests

    # ------------------------------------------------------------------------------------
    # one pod

    def scheduler(self, row: int) -> str:
        """Return the scheduler of a pod."""
        return self.names.text(self.table.integers[SCHEDULER][row])

    def pool(self, row: int) -> str:
        """Return the pool of a pod's node; empty if it has none."""
        pool = self.names.text(self.table.integers[POOL][row])
        node = self.names.text(self.table.integers[NODE][row])
        return pool or (self._pool_of(node) if node else "")

    def failed(self, row: int) -> bool:
        """Return whether a pod failed."""
        return bool(self.table.integers[FLAGS][row] & FAILED)

    def phase(self, row: int) -> str:
        """Return a pod's phase."""
        times = self.table.times
        if not isnan(times[OVER][row]):
            return "Failed" if self.failed(row) else "Succeeded"
        return "Pending" if isnan(times[RUNNING][row]) else "Running"

    def notes(self) -> Iterator[Note]:
        """Yield the new notes since the last call."""
        return self.table.notes()

    def restore_note(self, note: Note) -> float:
        """Restore a note; return its latest time."""
        size = len(self.table)
        restored = self.table.restore_row(note)
        if restored is None:
            return 0.0
        row, pairs = restored
        if len(self.table) > size:
            self.table.restore_values(row, pairs, integers_only=True)
            self._count(row)
        before = self._state(row)
        self.table.restore_values(row, pairs)
        self._update_counts(row, before)
        return columns.latest(pairs, GONE)


def index_of(manifest: Manifest) -> int:
    """Return the index of an object in its Run, NONE without the annotation."""
    text = (manifest["metadata"].get("annotations") or {}).get(objects.INDEX) or ""
    return int(text) if text.isdecimal() else NONE
