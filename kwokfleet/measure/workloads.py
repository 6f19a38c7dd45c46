"""The objects of a Run other than pods, and the owners of its pods.

The owner of a pod may not be the Run's object: a Deployment's pods belong to a ReplicaSet, a JobSet's to Jobs. Owners
are rows too, but no objects of the Run. An owner without an event belongs to the object whose name is its prefix.
"""

from collections.abc import Iterator, Sequence
from math import isnan

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, milestones
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.pods import EventType, index_of
from kwokfleet.measure.submissions import Submissions

CREATED, STARTED, READY, OVER, GONE, POD_CREATED, POD_RUNNING = range(7)
"""Watch clock. The last two: of the first pod."""
API_CREATED, API_STARTED, API_READY, API_OVER, API_POD_CREATED, API_POD_STARTED = range(7, 13)
"""API clock. The last two: of the first pod."""
TIMES = 13
NAMESPACE, KIND, INDEX, PARENT, FLAGS = range(5)
INTEGERS = 5
OBJECT, FAILED = 1, 2
"""Flags."""
_POD_TIMES = (POD_CREATED, POD_RUNNING, API_POD_CREATED, API_POD_STARTED)


class WorkloadTable:
    """Rows of objects and owners."""

    def __init__(self, names: columns.Names, kind: str, submissions: Submissions, *, ends: bool) -> None:
        self.table = columns.Table("w", TIMES, INTEGERS)
        self.names = names
        self.total = self.unsettled = self.queued = 0
        """Numbers of objects: all, those that have not ended, those that have not started."""
        self._kind, self._submissions, self._ends = kind, submissions, ends
        self._orphans: set[int] = set()
        """Owners of pods whose parent is unknown."""
        self._resolved_at = (0, 0)
        """Numbers of objects and orphans at the last `resolve_owners`."""
        self._unconfirmed: set[int] = set()

    def add_event(self, event_type: EventType, manifest: Manifest, received: float) -> None:
        """Record an event of an object."""
        metadata, table = manifest["metadata"], self.table
        state = milestones.parse_workload(manifest)
        row = self._row(metadata["uid"], metadata["name"], metadata.get("namespace") or "", manifest.get("kind") or "")
        before = self._state(row)
        if not self.is_object(row):
            table.put(row, INDEX, index_of(manifest))
            table.put(row, FLAGS, OBJECT)
        at = -received if event_type is EventType.LISTED else received
        table.merge(row, CREATED, received if event_type is EventType.ADDED else -received)
        table.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        for reached, column in (
            (state.started, STARTED),
            (state.ready, READY),
            (state.completed or state.failed, OVER),
            (event_type is EventType.DELETED, GONE),
        ):
            if reached:
                table.merge(row, column, at)
        for column, api_time in (
            (API_STARTED, state.started_at),
            (API_READY, state.ready_at),
            (API_OVER, state.over_at),
        ):
            table.merge(row, column, api_time)
        if state.failed and not self.failed(row):
            self._submissions.failures.add(state.reason, f"{manifest.get('kind')} {metadata['name']}")
            table.put(row, FLAGS, OBJECT | FAILED)
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
        row = self.table.rows.get(key)
        if row is None:
            row = self.table.add(key, name)
            self.table.put(row, NAMESPACE, self.names.number(namespace))
            self.table.put(row, KIND, self.names.number(kind))
            self.table.put(row, FLAGS, 0)
            self._add_orphan(row)
        return row

    def _add_orphan(self, row: int) -> None:
        if self.kind(row) != self._kind:
            self._orphans.add(row)

    def add_pod_times(self, row: int, times: Sequence[float]) -> None:
        """Record the times of a pod (created, running, API created, API started) for its owner and their parents."""
        while row != NONE:
            before = self._state(row)
            for column, at in zip(_POD_TIMES, times, strict=True):
                self.table.merge(row, column, at)
            self._update_counts(row, before)
            row = self.table.integers[PARENT][row]

    def resolve_owners(self) -> None:
        """Find the parents of pod owners by their names."""
        if not self._orphans or self._resolved_at == (self.total, len(self._orphans)):
            return
        table, namespaces = self.table, self.table.integers[NAMESPACE]
        rows = {(namespaces[row], table.names[row]): row for row in range(len(table)) if self.is_object(row)}
        for row in sorted(self._orphans):
            parent = self._parent(row, rows)
            if parent != NONE:
                self._orphans.discard(row)
                table.put(row, PARENT, parent)
                self.add_pod_times(parent, [table.times[column][row] for column in _POD_TIMES])
        self._resolved_at = (self.total, len(self._orphans))

    def _parent(self, row: int, rows: dict[tuple[int, str], int]) -> int:
        name, namespace = self.table.names[row], self.table.integers[NAMESPACE][row]
        while name:
            name = name.rpartition("-")[0]
            if (namespace, name) in rows:
                return rows[namespace, name]
        return NONE

    def listing(self) -> None:
        """Mark all objects that are not gone as unconfirmed."""
        gone = self.table.times[GONE]
        self._unconfirmed = {row for row in range(len(self.table)) if self.is_object(row) and isnan(gone[row])}

    def listed(self, at: float) -> None:
        """Mark unconfirmed objects as gone, at an unknown time."""
        for row in sorted(self._unconfirmed):
            before = self._state(row)
            self.table.merge(row, GONE, -at)
            self._update_counts(row, before)
        self._unconfirmed = set()

    # ------------------------------------------------------------------------------------
    # states and counts

    def is_object(self, row: int) -> bool:
        """Return whether a row is an object of the Run, and not only the owner of a pod."""
        return self.table.integers[FLAGS][row] > 0

    def failed(self, row: int) -> bool:
        """Return whether an object failed."""
        return bool(self.table.integers[FLAGS][row] & FAILED)

    def kind(self, row: int) -> str:
        """Return the kind of an object."""
        return self.names.text(self.table.integers[KIND][row])

    def root_owner(self, row: int) -> int:
        """Return the last parent of an owner."""
        while self.table.integers[PARENT][row] != NONE:
            row = self.table.integers[PARENT][row]
        return row

    def started(self, row: int) -> bool:
        """Return whether an object or one of its pods has started."""
        times = self.table.times
        return not all(isnan(times[column][row]) for column in (STARTED, POD_RUNNING, OVER, GONE))

    def settled(self, row: int) -> bool:
        """Return whether an object has ended, or is ready if it never ends."""
        times = self.table.times
        return not all(isnan(times[column][row]) for column in (OVER, GONE, *(() if self._ends else (READY,))))

    def _state(self, row: int) -> tuple[bool, bool, bool]:
        is_object = self.is_object(row)
        return is_object, is_object and not self.settled(row), is_object and not self.started(row)

    def _update_counts(self, row: int, before: tuple[bool, bool, bool]) -> None:
        is_object, unsettled, queued = self._state(row)
        self.total += is_object - before[0]
        self.unsettled += unsettled - before[1]
        self.queued += queued - before[2]
        if is_object and not before[0]:
            self._orphans.discard(row)
            self._submissions.confirm(self.table.integers[INDEX][row])

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
        before = self._state(row)
        self.table.restore_values(row, pairs)
        if len(self.table) > size:
            self._add_orphan(row)
        if self.table.integers[PARENT][row] != NONE:
            self._orphans.discard(row)
        self._update_counts(row, before)
        return columns.latest(pairs, POD_RUNNING)
