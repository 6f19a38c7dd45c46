"""All pods of a Run: when each came how far, and how many are where right now."""

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
"""When our watch received it."""
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
"""What is written in the pod; EVENT in an Event about it."""
TIMES = 15
FOR_OWNERS = (CREATED, RUNNING, API_CREATED, API_STARTED)
"""What concerns whoever a pod belongs to."""
NAMESPACE, INDEX, OWNER, SCHEDULER, SIZE, NODE, POOL, FLAGS = range(8)
WHOLE = 8
STATEFUL, FAILED = 1, 2
"""Flags."""
WAITING, STARTING, RUNS, DONE = range(4)
"""Where a pod is: without a node, on one, running, over or gone."""
DEFAULT_SCHEDULER = "default-scheduler"


class EventType(StrEnum):
    """How an object came into sight."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    LISTED = "LISTED"
    """It was there when we began to look: what it is already, it became while nobody was watching."""


class PodTable:
    """Rows of pods. A pod is known by its UID: one of the same name that comes later is another."""

    def __init__(
        self,
        names: columns.Names,
        pool_of: Callable[[str], str],
        submissions: Submissions,
        *,
        are_objects: bool,
        ends: bool,
    ) -> None:
        self.table = columns.Table("p", TIMES, WHOLE)
        self.names = names
        self.where = [0, 0, 0, 0]
        """How many pods are WAITING, STARTING, and so on."""
        self.waiting: Counter[str] = Counter()
        self.bound: Counter[str] = Counter()
        """By scheduler: how many wait; how many were seen to get their node."""
        self.completed = 0
        """How many were seen to complete."""
        self.used: dict[str, dict[str, float]] = {}
        """Requests of pods that are bound and not over, by pool and resource."""
        self.resources: set[str] = set()
        self.unsettled = 0
        """If pods are the Run's objects: how many of them are still waited for."""
        self._are_objects, self._ends = are_objects, ends
        self._pool_of, self._submissions = pool_of, submissions
        self._sizes: dict[int, pod_requests.PodRequests] = {}
        self._held: Counter[str] = Counter()
        self._unconfirmed: set[int] = set()
        self._by_name: dict[tuple[int, str], list[int]] = {}

    def take(self, seen: EventType, manifest: Manifest, received: float, owner_of: Callable[[Manifest], int]) -> int:
        """Note what an event says of a pod; return its row."""
        metadata, table = manifest["metadata"], self.table
        row = table.rows.get(columns.key(metadata["uid"]))
        state = milestones.parse_pod(manifest)
        if row is None:
            row = self._born(manifest, owner_of)
        before = self._before(row)
        stamp = -received if seen is EventType.LISTED else received
        table.merge(row, CREATED, received if seen is EventType.ADDED else -received)
        if state.node:
            if table.whole[NODE][row] == NONE:
                table.put(row, NODE, self.names.number(state.node))
                table.put(row, POOL, self.names.number(self._pool_of(state.node)))
            table.merge(row, SCHEDULED, stamp)
        if state.ready:
            table.merge(row, READY, stamp)
        if state.phase == "Running":
            table.merge(row, RUNNING, stamp)
        elif state.phase in milestones.OVER:
            self._over(row, state, stamp, manifest)
        if seen is EventType.DELETED:
            table.merge(row, GONE, stamp)
        for column, at in enumerate(state[3:], start=API_SCHEDULED):
            if at == at:  # noqa: PLR0124  # NaN is not itself
                table.merge(row, column, at)
        self._unconfirmed.discard(row)
        self._moved(row, before)
        return row

    def _born(self, manifest: Manifest, owner_of: Callable[[Manifest], int]) -> int:
        """Note what never changes."""
        metadata, spec, table, number = manifest["metadata"], manifest.get("spec") or {}, self.table, self.names.number
        row = table.add(columns.key(metadata["uid"]), metadata["name"])
        table.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        table.put(row, NAMESPACE, number(metadata.get("namespace") or ""))
        table.put(row, INDEX, index_of(manifest))
        table.put(row, OWNER, owner_of(manifest))
        table.put(row, SCHEDULER, number(spec.get("schedulerName") or DEFAULT_SCHEDULER))
        table.put(row, SIZE, number(orjson.dumps(dict(pod_requests.total_requests(manifest))).decode()))
        table.put(row, FLAGS, 0 if milestones.is_stateless(manifest) else STATEFUL)
        self._by_name.clear()
        self._counted(row)
        return row

    def _over(self, row: int, state: milestones.PodState, stamp: float, manifest: Manifest) -> None:
        """Note the end; a pod that ended has run, even if nobody saw it run."""
        table = self.table
        table.merge(row, OVER, stamp)
        if state.phase == "Succeeded" or not isnan(state.started_at):
            table.merge(row, RUNNING, -abs(stamp))
        if state.phase == "Failed" and not self.failed(row):
            self._submissions.troubles.add(milestones.pod_failure(manifest), f"Pod {table.names[row]}")
            table.put(row, FLAGS, table.whole[FLAGS][row] | FAILED)
        if state.phase == "Succeeded" and stamp < 0:
            table.merge(row, READY, stamp)

    def event(self, namespace: str, name: str, at: float) -> None:
        """Note when an Event says that a pod was bound: the youngest of that name that was there by then."""
        table = self.table
        if not self._by_name:
            for row, each in enumerate(table.names):
                self._by_name.setdefault((table.whole[NAMESPACE][row], each), []).append(row)
        rows = self._by_name.get((self.names.number(namespace), name), [])
        found = [row for row in rows if not table.times[API_CREATED][row] > at + 1]
        if found:
            table.merge(found[-1], EVENT, at)

    def listing(self) -> None:
        """Doubt every pod that is not known to be gone, until it is seen again."""
        gone = self.table.times[GONE]
        self._unconfirmed = {row for row in range(len(self.table)) if isnan(gone[row])}

    def listed(self, at: float) -> None:
        """Take those that were not seen again as gone, nobody knows when."""
        for row in sorted(self._unconfirmed):
            before = self._before(row)
            self.table.merge(row, GONE, -at)
            self._moved(row, before)
        self._unconfirmed = set()

    # ------------------------------------------------------------------------------------
    # how many are where

    def _stage(self, row: int) -> int:
        times = self.table.times
        if not isnan(times[OVER][row]) or not isnan(times[GONE][row]):
            return DONE
        if not isnan(times[RUNNING][row]):
            return RUNS
        return WAITING if isnan(times[SCHEDULED][row]) else STARTING

    def settled(self, row: int) -> bool:
        """Return whether a pod is not waited for any longer."""
        return self._stage(row) == DONE or (not self._ends and not isnan(self.table.times[READY][row]))

    def _counted(self, row: int) -> None:
        self.where[WAITING] += 1
        self.waiting[self.scheduler(row)] += 1
        if self._are_objects:
            self.unsettled += 1
            self._submissions.met(self.table.whole[INDEX][row])

    def _before(self, row: int) -> tuple[int, bool, bool, bool]:
        times = self.table.times
        return self._stage(row), isnan(times[SCHEDULED][row]), isnan(times[OVER][row]), self.settled(row)

    def _moved(self, row: int, before: tuple[int, bool, bool, bool]) -> None:
        """Count a pod where it is now."""
        stage, unbound, unfinished, settled = before
        now, times = self._stage(row), self.table.times
        if unbound and times[SCHEDULED][row] > 0:
            self.bound[self.scheduler(row)] += 1
        if unfinished and times[OVER][row] > 0 and not self.table.whole[FLAGS][row] & FAILED:
            self.completed += 1
        if not settled and self.settled(row):
            self.unsettled -= self._are_objects
        if now == stage:
            return
        self.where[stage] -= 1
        self.where[now] += 1
        if stage == WAITING:
            self.waiting[self.scheduler(row)] -= 1
            if now != DONE:
                self._hold(row, 1)
        elif now == DONE:
            self._hold(row, -1)

    def _hold(self, row: int, sign: int) -> None:
        pool = self.names.text(self.table.whole[POOL][row])
        used = self.used.setdefault(pool, {})
        self._held[pool] += sign
        for resource, amount in self._size(row):
            self.resources.add(resource)
            used[resource] = used.get(resource, 0.0) + sign * amount
        if not self._held[pool]:
            used.clear()  # what is left is noise of the subtraction

    def _size(self, row: int) -> pod_requests.PodRequests:
        number = self.table.whole[SIZE][row]
        found = self._sizes.get(number)
        if found is None:
            found = self._sizes[number] = tuple(orjson.loads(self.names.text(number) or "{}").items())
        return found

    # ------------------------------------------------------------------------------------
    # what is known of one

    def scheduler(self, row: int) -> str:
        """Return the name of the scheduler that a pod asks for."""
        return self.names.text(self.table.whole[SCHEDULER][row])

    def pool(self, row: int) -> str:
        """Return the pool of a pod's node; empty if it has none, or the node is nobody's."""
        known = self.names.text(self.table.whole[POOL][row])
        node = self.names.text(self.table.whole[NODE][row])
        return known or (self._pool_of(node) if node else "")

    def failed(self, row: int) -> bool:
        """Return whether a pod failed."""
        return bool(self.table.whole[FLAGS][row] & FAILED)

    def phase(self, row: int) -> str:
        """Return a pod's phase."""
        times = self.table.times
        if not isnan(times[OVER][row]):
            return "Failed" if self.failed(row) else "Succeeded"
        return "Pending" if isnan(times[RUNNING][row]) else "Running"

    def notes(self) -> Iterator[Note]:
        """Yield what is new."""
        return self.table.notes()

    def recall(self, note: Note) -> float:
        """Take what somebody noted; return the latest time in it."""
        size = len(self.table)
        found = self.table.recall(note)
        if found is None:
            return 0.0
        row, pairs = found
        if len(self.table) > size:
            self.table.restore(row, pairs, whole_only=True)
            self._counted(row)
        before = self._before(row)
        self.table.restore(row, pairs)
        self._moved(row, before)
        return columns.latest(pairs, GONE)


def index_of(manifest: Manifest) -> int:
    """Return which of the Run's objects this is, NONE if it does not say."""
    text = (manifest["metadata"].get("annotations") or {}).get(objects.INDEX) or ""
    return int(text) if text.isdecimal() else NONE
