"""The Collector of a Run: takes every event of its objects, and computes its Result.

A pod costs about 400 bytes, a Job another 350; no manifest is kept. Two clocks are kept side by side (result.Clock):
the time when our watch received a state, and the timestamps in the objects.

Data that cannot be read from the cluster again is returned by `notes`, line by line. After a crash, the next process
calls `restore` with the notes and lists the objects. What happened between is known from API timestamps only, and
*missing* for the watch clock.

After `restore`, and for each new list of the watch: `listing` first, then `pod` and `workload` with EventType.LISTED
for each object, then `listed` for each kind.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, latencies, pods, workloads
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.pods import EventType, PodTable
from kwokfleet.measure.result import Counts, Gap, Mark, PodTimes, Result, WorkloadTimes
from kwokfleet.measure.submissions import FailureGroups, Submissions
from kwokfleet.measure.time_series import SeriesRecorder, throughput
from kwokfleet.measure.workloads import WorkloadTable

POD = "Pod"
_DIGITS = 6
_WATCH_FIELDS = ("created", "scheduled", "running", "ready", "over", "gone")
_API_FIELDS = (
    "created", "scheduled", "readyToStart", "initialized", "started", "containersReady", "ready", "over", "event",
)  # fmt: skip
_POD_ENDS = ((pods.OVER, pods.API_OVER), (pods.GONE, None), (pods.READY, pods.API_READY))
_WORKLOAD_ENDS = ((workloads.OVER, workloads.API_OVER), (workloads.GONE, None), (workloads.READY, workloads.API_READY))
"""The last one is an end only if the objects never complete."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The measured Run."""

    fleet: str
    wave: str
    run: str
    start: datetime
    template_kind: str
    total: int
    ends: bool
    """Whether its objects complete by themselves. If not, the Run is over when all are Ready."""


class Collector:
    """All measurements of one Run. For one thread."""

    def __init__(self, run: RunInfo, pool_of: Callable[[str], str]) -> None:
        self.run = run
        self._has_pod_template = run.template_kind == POD
        names = columns.Names()
        self._failures = FailureGroups()
        self._submissions = Submissions(self._failures)
        is_pod = self._has_pod_template
        self._pods = PodTable(names, pool_of, self._submissions, are_objects=is_pod, ends=run.ends)
        self._workloads = WorkloadTable(names, run.template_kind, self._submissions, ends=run.ends)
        self._series = SeriesRecorder()
        self._marks: list[tuple[float, str]] = []
        self._gaps: list[tuple[float, float, str]] = []
        self._new_notes: list[Note] = []
        self._was_restored = False
        self._parts: dict[str, columns.Names | columns.Table | FailureGroups | Submissions | SeriesRecorder] = {
            "n": names,
            "w": self._workloads,
            "p": self._pods,
            "x": self._failures,
            "s": self._submissions,
            "t": self._series,
        }
        """Parts with notes, by tag. Tables refer to names, so names are first."""

    # ------------------------------------------------------------------------------------
    # events

    def pod(self, event_type: EventType, manifest: Manifest, received: float) -> None:
        """Record an event of a pod."""
        row = self._pods.add_event(event_type, manifest, round(received, _DIGITS), self._workloads.owner)
        table = self._pods
        owner = table.integers[pods.OWNER][row]
        if owner != NONE and table.is_changed(row, pods.FOR_OWNERS):
            self._workloads.add_pod_times(owner, [table.times[column][row] for column in pods.FOR_OWNERS])

    def workload(self, event_type: EventType, manifest: Manifest, received: float) -> None:
        """Record an event of an object of the Run other than a pod."""
        self._workloads.add_event(event_type, manifest, round(received, _DIGITS))

    def scheduled_event(self, namespace: str, pod: str, at: float) -> None:
        """Record the time of a pod's Scheduled Event."""
        self._pods.add_scheduled_event(namespace, pod, at)

    def submitted(self, index: int, due: float, sent: float, error: str, retries: int) -> None:
        """Record a submission; *error*: `KIND NAME: reason` if it was rejected."""
        self._submissions.add(index, round(due, _DIGITS), round(sent, _DIGITS), error, retries)

    def mark(self, at: float, text: str) -> None:
        """Record a mark for the timeline."""
        self._marks.append((at, text))
        self._new_notes.append(["m", at, text])

    def gap(self, start: float, end: float, reason: str) -> None:
        """Record a gap. Events of that time are unknown, even if they arrive after it."""
        self._gaps.append((start, end, reason))
        self._new_notes.append(["g", start, end, reason])

    def listing(self, kind: str) -> None:
        """Handle the start of a list: known objects of *kind* are unconfirmed until they are received again.

        Must be called before the request is sent. Events during the list confirm objects too.
        """
        if kind == POD:
            self._pods.listing()
        if kind == self.run.template_kind:
            self._workloads.listing()
            self._submissions.listing()

    def listed(self, kind: str, at: float, submitted: int = 0) -> None:
        """Handle the end of a list: unconfirmed objects are gone, at an unknown time.

        *submitted*: number of submitted objects in the Ledger, for a process without notes.
        """
        if kind == POD:
            self._pods.listed(at)
        if kind == self.run.template_kind:
            self._workloads.listed(at)
            self._submissions.listed(submitted)

    def tick(self, now: float, capacity: Mapping[str, Mapping[str, float]]) -> None:
        """Add a sample to the time series; *capacity*: of each pool's nodes, by resource."""
        self._workloads.resolve_owners()
        pod_counts = self._pods.by_stage
        gauges: dict[str, float] = {"pending": pod_counts[pods.WAITING], "running": pod_counts[pods.RUNS]}
        if not self._has_pod_template:
            gauges["queued"] = self._workloads.queued
        gauges |= {f"pending/{name}": count for name, count in self._pods.waiting.items()}
        gauges |= self._utilisation(capacity)
        totals: dict[str, float] = {
            "submitted/s": self._submissions.sent,
            "scheduled/s": self._pods.bound.total(),
            "completed/s": self._pods.completed,
        }
        totals |= {f"scheduled/s/{name}": count for name, count in self._pods.bound.items()}
        self._series.add(now, gauges, totals)

    def _utilisation(self, capacity: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        gauges: dict[str, float] = {}
        for resource in sorted(self._pods.resources):
            used = {pool: amounts.get(resource, 0.0) for pool, amounts in self._pods.used.items()}
            available = {pool: amounts[resource] for pool, amounts in capacity.items() if amounts.get(resource)}
            for pool, amount in available.items():
                gauges[f"utilisation/{pool}/{resource}"] = used.get(pool, 0.0) / amount
            if available:
                gauges[f"utilisation/*/{resource}"] = sum(used.values()) / sum(available.values())
        return gauges

    # ------------------------------------------------------------------------------------
    # notes

    def notes(self) -> list[bytes]:
        """Return the new notes since the last call, as lines without line ends."""
        notes = [*self._new_notes, *(note for part in self._parts.values() for note in part.notes())]
        line_end = [b""] if notes and self._was_restored else []
        self._new_notes, self._was_restored = [], self._was_restored and not notes
        return [*line_end, *(orjson.dumps(note) for note in notes)]

    def restore(self, lines: Iterable[bytes]) -> float | None:
        """Restore the notes of an earlier process, before any event; return the time of the last note.

        An incomplete line is skipped. It is ended by the empty line before the first new note. All restored objects
        are unconfirmed until they are received again, or `listed`.
        """
        last = 0.0
        for line in lines:
            try:
                last = max(last, self._restore_note(orjson.loads(line)))
            except (ValueError, TypeError, LookupError):
                continue
        self._was_restored = True
        for kind in (POD, self.run.template_kind):
            self.listing(kind)
        return last or None

    def _restore_note(self, note: Note) -> float:
        """Restore one note; return its time."""
        tag, *values = note
        if tag == "m":
            self._marks.append((values[0], values[1]))
            return float(values[0])
        if tag == "g":
            self._gaps.append((values[0], values[1], values[2]))
            return float(values[1])
        return self._parts[tag].restore_note(note)

    # ------------------------------------------------------------------------------------
    # the Result

    def is_over(self) -> bool:
        """Return whether every object was created or rejected, and all have ended."""
        unsettled = self._pods.unsettled if self._has_pod_template else self._workloads.unsettled
        return self._submissions.accounted >= self.run.total and not unsettled

    def ended_at(self) -> float | None:
        """Return when the Run was over, None if it is not."""
        if not self.is_over():
            return None
        ends = _POD_ENDS if self._has_pod_template else _WORKLOAD_ENDS
        table = self._pods if self._has_pod_template else self._workloads
        last = latencies.last_end(table, ends[:2] if self.run.ends else ends)
        return max(last, self._submissions.last_sent, self.run.start.timestamp())

    def counts(self) -> tuple[Counts, Counts]:
        """Return the Counts of objects and of pods."""
        counts = pod_counts = latencies.pod_counts(self._pods)
        if not self._has_pod_template:
            counts = latencies.workload_counts(self._workloads, ends=self.run.ends)
        unseen = self._submissions.vanished
        update = {"total": self.run.total, "created": counts.created + unseen, "deleted": counts.deleted + unseen}
        return counts.model_copy(update=update), pod_counts

    def result(self, now: float, **more: object) -> Result:
        """Return the Result at *now*; *more*: fields that the Collector does not have."""
        self._finish_tables()
        run, (object_counts, pod_counts), end = self.run, self.counts(), self.ended_at()
        object_latencies = latencies.of_workloads(self._workloads, run.template_kind, ends=run.ends)
        hidden = () if len(self._pods.waiting) > 1 else ("pending/", "scheduled/s/")
        fields: dict[str, object] = {
            **{name: getattr(run, name) for name in ("fleet", "wave", "run", "start", "template_kind")},
            "end": None if end is None else _utc(min(end, now)),
            "objects": object_counts,
            "pods": pod_counts,
            "pacing": self._submissions.pacing(),
            "latencies": (*latencies.of_pods(self._pods), *(() if self._has_pod_template else object_latencies)),
            "throughput": throughput(latencies.bindings(self._pods)),
            "series": self._series.series([(start, end) for start, end, _ in self._gaps], hidden=hidden),
            "gaps": tuple(Gap(start=_utc(a), end=_utc(b), why=reason) for a, b, reason in sorted(self._gaps)),
            "marks": tuple(Mark(at=_utc(at), what=text) for at, text in sorted(self._timeline(end, now))),
            "troubles": self._failures.groups(),
        }
        return Result.model_validate(fields | more)

    def _timeline(self, end: float | None, now: float) -> Iterator[tuple[float, str]]:
        yield self.run.start.timestamp(), "started"
        yield from self._marks
        if self._submissions.sent >= self.run.total > 0:
            yield self._submissions.last_sent, "last object submitted"
        if end is not None:
            yield min(end, now), "all over" if self.run.ends else "all ready"

    def _finish_tables(self) -> None:
        """Resolve owners, and discard receive times that a gap has delayed."""
        self._workloads.resolve_owners()
        self._pods.discard_delayed_times(self._gaps)
        self._workloads.discard_delayed_times(self._gaps)

    def pods(self) -> Iterator[PodTimes]:
        """Yield every pod, in the order of their first events."""
        self._finish_tables()
        for key, row in self._pods.rows.items():
            yield self._pod_times(columns.uid(key), row)

    def _pod_times(self, uid: str, row: int) -> PodTimes:
        pod_table, workload_table = self._pods, self._workloads
        integers, times = pod_table.integers, [column[row] for column in pod_table.times]
        index, owner, owner_name = integers[pods.INDEX][row], integers[pods.OWNER][row], ""
        if owner != NONE:
            owner = workload_table.root_owner(owner)
            index = workload_table.integers[workloads.INDEX][owner]
            owner_name = f"{workload_table.text(owner, workloads.KIND)}/{workload_table.names[owner]}"
        return PodTimes.model_construct(
            name=pod_table.names[row],
            namespace=pod_table.text(row, pods.NAMESPACE),
            uid=uid,
            index=None if index == NONE else index,
            owner=owner_name,
            node=pod_table.text(row, pods.NODE),
            pool=pod_table.pool(row),
            scheduler=pod_table.text(row, pods.SCHEDULER),
            stateless=not integers[pods.FLAGS][row] & pods.STATEFUL,
            phase=pod_table.phase(row),
            deleted=not isnan(times[pods.GONE]),
            seen={name: at for name, at in zip(_WATCH_FIELDS, times, strict=False) if at > 0},
            api={name: at for name, at in zip(_API_FIELDS, times[len(_WATCH_FIELDS) :], strict=True) if at > 0},
        )

    def workloads(self) -> Iterator[WorkloadTimes]:
        """Yield every object of the Run other than pods, in the order of their first events."""
        self._finish_tables()
        for key, row in self._workloads.rows.items():
            kind = self._workloads.text(row, workloads.KIND)
            if self._workloads.is_object(row) and kind == self.run.template_kind:
                yield self._workload_times(columns.uid(key), row)

    def _workload_times(self, uid: str, row: int) -> WorkloadTimes:
        table = self._workloads
        index = table.integers[workloads.INDEX][row]
        over, api_over = (
            (workloads.OVER, workloads.API_OVER) if self.run.ends else (workloads.READY, workloads.API_READY)
        )

        def known_times(**fields: Sequence[int]) -> dict[str, float]:
            times = ((name, latencies.earliest(table.times[column][row] for column in fields[name])) for name in fields)
            return {name: at for name, at in times if at > 0}

        return WorkloadTimes.model_construct(
            kind=self.run.template_kind,
            name=table.names[row],
            namespace=table.text(row, workloads.NAMESPACE),
            uid=uid,
            index=None if index == NONE else index,
            seen=known_times(
                created=(workloads.CREATED,),
                dispatched=(workloads.POD_CREATED,),
                started=(workloads.STARTED, workloads.POD_RUNNING),
                over=(over,),
            ),
            api=known_times(
                created=(workloads.API_CREATED,),
                started=(workloads.API_STARTED, workloads.API_POD_STARTED),
                over=(api_over,),
            ),
            failed=table.failed(row),
        )


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
