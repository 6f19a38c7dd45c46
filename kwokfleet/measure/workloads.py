"""The objects of a Run other than pods, and the owners of its pods.

The owner of a pod may not be the Run's object: a Deployment's pods belong to a ReplicaSet, a JobSet's to Jobs. Owners
are rows too, but no objects of the Run. An owner without an event belongs to the object whose name is its prefix.
"""

from collections.abc import Sequence

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, milestones
from kwokfleet.measure.columns import NONE, Names, State, Table
from kwokfleet.measure.pods import EventType, index_of
from kwokfleet.measure.submissions import Submissions

CREATED, STARTED, READY, OVER, GONE, POD_CREATED, POD_RUNNING = range(7)
"""Watch clock. The last two: of the first pod."""
API_CREATED, API_STARTED, API_READY, API_OVER, API_POD_CREATED, API_POD_STARTED = range(7, 13)
"""API clock. The last two: of the first pod."""
NAMESPACE, KIND, INDEX, PARENT, FLAGS = range(5)
OBJECT, FAILED = 1, 2
"""Flags."""
_POD_TIMES = (POD_CREATED, POD_RUNNING, API_POD_CREATED, API_POD_STARTED)


class WorkloadTable(Table):
    """Rows of objects and owners."""

    tag, gone = "w", GONE
    clock_pairs = (
        (CREATED, API_CREATED),
        (STARTED, API_STARTED),
        (READY, API_READY),
        (OVER, API_OVER),
        (POD_CREATED, API_POD_CREATED),
        (POD_RUNNING, API_POD_STARTED),
    )

    def __init__(self, texts: Names, kind: str, submissions: Submissions, *, ends: bool) -> None:
        super().__init__(texts, times=API_POD_STARTED + 1, watch_times=POD_RUNNING + 1, integers=FLAGS + 1)
        self.total = self.unsettled = self.queued = 0
        """Numbers of objects: all, those that have not ended, those that have not started."""
        self._kind, self._submissions, self._ends = kind, submissions, ends
        self._orphans: set[int] = set()
        """Owners of pods whose parent is unknown."""
        self._resolved_at = (0, 0)
        """Numbers of objects and orphans at the last `resolve_owners`."""

    def add_event(self, event_type: EventType, manifest: Manifest, received: float) -> None:
        """Record an event of an object."""
        metadata, kind = manifest["metadata"], manifest.get("kind") or ""
        state = milestones.parse_workload(manifest)
        row = self._row(metadata["uid"], metadata["name"], metadata.get("namespace") or "", kind)
        before = self._state(row)
        if not self.is_object(row):
            self.put(row, INDEX, index_of(manifest))
            self.put(row, FLAGS, OBJECT)
        at = -received if event_type is EventType.LISTED else received
        self.merge(row, CREATED, received if event_type is EventType.ADDED else -received)
        self.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        for is_reached, column in (
            (state.started, STARTED),
            (state.ready, READY),
            (state.completed or state.failed, OVER),
            (event_type is EventType.DELETED, GONE),
        ):
            if is_reached:
                self.merge(row, column, at)
        self.merge(row, API_STARTED, state.started_at)
        self.merge(row, API_READY, state.ready_at)
        self.merge(row, API_OVER, state.over_at)
        if state.failed and not self.failed(row):
            self._submissions.failures.add(state.reason, f"{kind} {metadata['name']}")
            self.put(row, FLAGS, OBJECT | FAILED)
        self._unconfirmed.discard(row)
        self._update_counts(row, before)

    def owner(self, manifest: Manifest) -> int:
        """Return the row of a pod's owner, NONE if it has no owner."""
        metadata = manifest["metadata"]
        for reference in metadata.get("ownerReferences") or ():
            if reference.get("controller"):
                namespace = metadata.get("namespace") or ""
                return self._row(reference["uid"], reference["name"], namespace, reference["kind"])
        return NONE

    def _row(self, uid: str, name: str, namespace: str, kind: str) -> int:
        key = columns.key(uid)
        row = self.rows.get(key)
        if row is None:
            row = self.add(key, name)
            self.put_text(row, NAMESPACE, namespace)
            self.put_text(row, KIND, kind)
            self.put(row, FLAGS, 0)
            self._count_row(row)
        return row

    def add_pod_times(self, row: int, times: Sequence[float]) -> None:
        """Record the times of a pod (created, running, API created, API started) for its owner and their parents."""
        while row != NONE:
            before = self._state(row)
            for column, at in zip(_POD_TIMES, times, strict=True):
                self.merge(row, column, at)
            self._update_counts(row, before)
            row = self.integers[PARENT][row]

    def resolve_owners(self) -> None:
        """Find the parents of pod owners by their names."""
        if not self._orphans or self._resolved_at == (self.total, len(self._orphans)):
            return
        namespaces = self.integers[NAMESPACE]
        rows = {(namespaces[row], self.names[row]): row for row in self.objects()}
        for row in sorted(self._orphans):
            parent = self._parent(row, rows)
            if parent != NONE:
                self._orphans.discard(row)
                self.put(row, PARENT, parent)
                self.add_pod_times(parent, [self.times[column][row] for column in _POD_TIMES])
        self._resolved_at = (self.total, len(self._orphans))

    def _parent(self, row: int, rows: dict[tuple[int, str], int]) -> int:
        name, namespace = self.names[row], self.integers[NAMESPACE][row]
        while name:
            name = name.rpartition("-")[0]
            if (namespace, name) in rows:
                return rows[namespace, name]
        return NONE

    # ------------------------------------------------------------------------------------
    # states and counts

    def is_object(self, row: int) -> bool:
        """Return whether a row is an object of the Run, and not only the owner of a pod."""
        return self.integers[FLAGS][row] > 0

    def objects(self) -> list[int]:
        """Return the rows of objects."""
        return [row for row in range(len(self)) if self.is_object(row)]

    def failed(self, row: int) -> bool:
        """Return whether an object failed."""
        return bool(self.integers[FLAGS][row] & FAILED)

    def root_owner(self, row: int) -> int:
        """Return the last parent of an owner."""
        while self.integers[PARENT][row] != NONE:
            row = self.integers[PARENT][row]
        return row

    def _is_any_reached(self, row: int, *time_columns: int) -> bool:
        return any(self.is_reached(row, column) for column in time_columns)

    def _state(self, row: int) -> State:
        """Return whether a row is an object, has not ended, and has not started."""
        if not self.is_object(row):
            return False, False, False
        settled = self._is_any_reached(row, OVER, GONE, *(() if self._ends else (READY,)))
        return True, not settled, not self._is_any_reached(row, STARTED, POD_RUNNING, OVER, GONE)

    def _update_counts(self, row: int, before: State) -> None:
        is_object, unsettled, queued = self._state(row)
        self.total += is_object - before[0]
        self.unsettled += unsettled - before[1]
        self.queued += queued - before[2]
        if is_object and not before[0]:
            self._submissions.confirm(self.integers[INDEX][row])
        if is_object or self.integers[PARENT][row] != NONE:
            self._orphans.discard(row)

    def _count_row(self, row: int) -> None:
        if self.text(row, KIND) != self._kind:
            self._orphans.add(row)
        self._update_counts(row, (False, False, False))
