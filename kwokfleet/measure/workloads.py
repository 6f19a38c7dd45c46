"""The objects of a Run that are not pods, and whatever else pods belong to.

A pod names its owner, which need not be the Run's own object: a Deployment's pods belong to a
ReplicaSet, a JobSet's to Jobs. Owners are rows like the others, not yet *known*; one that never
becomes so belongs to the object whose name its own begins with.
"""

from collections.abc import Iterator
from math import isnan

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, milestones
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.pods import EventType, index_of
from kwokfleet.measure.submissions import Submissions

CREATED, STARTED, READY, OVER, GONE, POD_CREATED, POD_RUNNING = range(7)
"""When our watch received it; the last two: of its first pod."""
API_CREATED, API_STARTED, API_READY, API_OVER, API_POD_CREATED, API_POD_STARTED = range(7, 13)
"""What is written in it; the last two: in its first pod."""
TIMES = 13
NAMESPACE, KIND, INDEX, PARENT, FLAGS = range(5)
WHOLE = 5
KNOWN, FAILED = 1, 2
"""Flags."""
_FROM_POD = (POD_CREATED, POD_RUNNING, API_POD_CREATED, API_POD_STARTED)


class WorkloadTable:
    """Rows of objects."""

    def __init__(self, names: columns.Names, kind: str, submissions: Submissions, *, ends: bool) -> None:
        self.table = columns.Table("w", TIMES, WHOLE)
        self.names = names
        self.known = self.unsettled = self.queued = 0
        """How many objects there are; are still waited for; have not started."""
        self._kind, self._submissions, self._ends = kind, submissions, ends
        self._orphans: set[int] = set()
        """Owners of pods, of which it is not known whose they are."""
        self._tried = (0, 0)
        self._unconfirmed: set[int] = set()

    def take(self, seen: EventType, manifest: Manifest, received: float) -> None:
        """Note what an event says of an object."""
        metadata, table = manifest["metadata"], self.table
        state = milestones.parse_workload(manifest)
        row = self._row(metadata["uid"], metadata["name"], metadata.get("namespace") or "", manifest.get("kind") or "")
        before = self._before(row)
        if not self.is_known(row):
            table.put(row, INDEX, index_of(manifest))
            table.put(row, FLAGS, KNOWN)
        stamp = -received if seen is EventType.LISTED else received
        table.merge(row, CREATED, received if seen is EventType.ADDED else -received)
        table.merge(row, API_CREATED, milestones.seconds(metadata.get("creationTimestamp") or ""))
        for happened, column in (
            (state.started, STARTED),
            (state.ready, READY),
            (state.completed or state.failed, OVER),
            (seen is EventType.DELETED, GONE),
        ):
            if happened:
                table.merge(row, column, stamp)
        for column, at in ((API_STARTED, state.started_at), (API_READY, state.ready_at), (API_OVER, state.over_at)):
            table.merge(row, column, at)
        if state.failed and not self.failed(row):
            self._submissions.troubles.add(state.why, f"{manifest.get('kind')} {metadata['name']}")
            table.put(row, FLAGS, KNOWN | FAILED)
        self._unconfirmed.discard(row)
        self._moved(row, before)

    def owner(self, manifest: Manifest) -> int:
        """Return the row of the object that a pod belongs to, NONE if it is its own."""
        metadata = manifest["metadata"]
        for each in metadata.get("ownerReferences") or ():
            if each.get("controller"):
                return self._row(each["uid"], each["name"], metadata.get("namespace") or "", each["kind"])
        return NONE

    def _row(self, uid: str, name: str, namespace: str, kind: str) -> int:
        key = columns.key(uid)
        row = self.table.rows.get(key)
        if row is None:
            row = self.table.add(key, name)
            self.table.put(row, NAMESPACE, self.names.number(namespace))
            self.table.put(row, KIND, self.names.number(kind))
            self.table.put(row, FLAGS, 0)
            self._orphan(row)
        return row

    def _orphan(self, row: int) -> None:
        if self.kind(row) != self._kind:
            self._orphans.add(row)

    def first_pod(self, row: int, created: float, running: float, api_created: float, api_started: float) -> None:
        """Note how far a pod has come that belongs to an object, and to what that belongs to."""
        while row != NONE:
            before = self._before(row)
            for column, at in zip(_FROM_POD, (created, running, api_created, api_started), strict=True):
                self.table.merge(row, column, at)
            self._moved(row, before)
            row = self.table.whole[PARENT][row]

    def resolve(self) -> None:
        """Find out which objects the owners of pods belong to, by their names."""
        if not self._orphans or self._tried == (self.known, len(self._orphans)):
            return
        table, namespaces = self.table, self.table.whole[NAMESPACE]
        rows = {(namespaces[row], table.names[row]): row for row in range(len(table)) if self.is_known(row)}
        for row in sorted(self._orphans):
            found = self._parent(row, rows)
            if found != NONE:
                self._orphans.discard(row)
                table.put(row, PARENT, found)
                self.first_pod(found, *(table.times[column][row] for column in _FROM_POD))
        self._tried = (self.known, len(self._orphans))

    def _parent(self, row: int, rows: dict[tuple[int, str], int]) -> int:
        name, namespace = self.table.names[row], self.table.whole[NAMESPACE][row]
        while name:
            name = name.rpartition("-")[0]
            if (namespace, name) in rows:
                return rows[namespace, name]
        return NONE

    def listing(self) -> None:
        """Doubt every object that is not known to be gone, until it is seen again."""
        gone = self.table.times[GONE]
        self._unconfirmed = {row for row in range(len(self.table)) if self.is_known(row) and isnan(gone[row])}

    def listed(self, at: float) -> None:
        """Take those that were not seen again as gone, nobody knows when."""
        for row in sorted(self._unconfirmed):
            before = self._before(row)
            self.table.merge(row, GONE, -at)
            self._moved(row, before)
        self._unconfirmed = set()

    # ------------------------------------------------------------------------------------
    # how many are where

    def is_known(self, row: int) -> bool:
        """Return whether this is an object of the Run, not just the owner of a pod."""
        return self.table.whole[FLAGS][row] > 0

    def failed(self, row: int) -> bool:
        """Return whether an object failed."""
        return bool(self.table.whole[FLAGS][row] & FAILED)

    def kind(self, row: int) -> str:
        """Return its kind."""
        return self.names.text(self.table.whole[KIND][row])

    def belongs_to(self, row: int) -> int:
        """Return the object at the end of the chain of owners."""
        while self.table.whole[PARENT][row] != NONE:
            row = self.table.whole[PARENT][row]
        return row

    def started(self, row: int) -> bool:
        """Return whether an object says that it has started, or one of its pods has run."""
        times = self.table.times
        return not all(isnan(times[column][row]) for column in (STARTED, POD_RUNNING, OVER, GONE))

    def settled(self, row: int) -> bool:
        """Return whether an object is not waited for any longer."""
        times = self.table.times
        return not all(isnan(times[column][row]) for column in (OVER, GONE, *(() if self._ends else (READY,))))

    def _before(self, row: int) -> tuple[bool, bool, bool]:
        known = self.is_known(row)
        return known, known and not self.settled(row), known and not self.started(row)

    def _moved(self, row: int, before: tuple[bool, bool, bool]) -> None:
        known, unsettled, queued = self._before(row)
        self.known += known - before[0]
        self.unsettled += unsettled - before[1]
        self.queued += queued - before[2]
        if known and not before[0]:
            self._orphans.discard(row)
            self._submissions.met(self.table.whole[INDEX][row])

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
        before = self._before(row)
        self.table.restore(row, pairs)
        if len(self.table) > size:
            self._orphan(row)
        if self.table.whole[PARENT][row] != NONE:
            self._orphans.discard(row)
        self._moved(row, before)
        return columns.latest(pairs, POD_RUNNING)
