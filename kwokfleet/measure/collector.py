"""The Collector of a Run: takes every event of its objects, and computes its Result.

A pod costs about 400 bytes, a Job another 350; no manifest is kept. Two clocks are kept side by side (result.Clock):
the time when our watch received a state, and the timestamps in the objects.

Data that cannot be read from the cluster again is returned by `notes`, line by line. After a crash, the next process
calls `restore` with the notes and lists the objects. What happened between is known from API timestamps only, and
*missing* for the watch clock.

After `restore`, and for each new list of the watch: `listing` first, then `pod` and `workload` with EventType.LISTED
for each object, then `listed` for each kind.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, gaps, latencies, pods, workloads
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.pods import EventType, PodTable
from kwokfleet.measure.result import Counts, Gap, Latency, Mark, PodTimes, Result, Series, WorkloadTimes
from kwokfleet.measure.submissions import FailureGroups, Submissions
from kwokfleet.measure.time_series import SeriesRecorder, throughput
from kwokfleet.measure.workloads import WorkloadTable

POD = "Pod"
_DIGITS = 6
_WATCH_FIELDS = ("created", "scheduled", "running", "ready", "over", "gone")
_API_FIELDS = (
    "created", "scheduled", "readyToStart", "initialized", "started", "containersReady", "ready", "over", "event",
)  # fmt: skip
_POD_ENDS = ((pods.OVER, pods.API_OVER), (pods.GONE, None))
_POD_READY = (pods.READY, pods.API_READY)
_WORKLOAD_OVER = (workloads.OVER, workloads.API_OVER)
_WORKLOAD_ENDS = (_WORKLOAD_OVER, (workloads.GONE, None))
_WORKLOAD_READY = (workloads.READY, workloads.API_READY)


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
        self._names = columns.Names()
        self._failures = FailureGroups()
        self._submissions = Submissions(self._failures)
        self._pods = PodTable(
            self._names, pool_of, self._submissions, are_objects=self._has_pod_template, ends=run.ends
        )
        self._workloads = WorkloadTable(self._names, run.template_kind, self._submissions, ends=run.ends)
        self._series = SeriesRecorder()
        self._marks: list[tuple[float, str]] = []
        self._gaps: list[tuple[float, float, str]] = []
        self._new_notes: list[Note] = []
        self._was_restored = False
        self._restorers: dict[str, Callable[[Note], float]] = {
            "n": self._names.restore_note,
            "w": self._workloads.restore_note,
            "p": self._pods.restore_note,
            "x": self._failures.restore_note,
            "s": self._submissions.restore_note,
            "t": self._series.restore_note,
        }

    # ------------------------------------------------------------------------------------
    # events

    def pod(self, event_type: EventType, manifest: Manifest, received: float) -> None:
        """Record an event of a pod."""
        row = self._pods.add_event(event_type, manifest, round(received, _DIGITS), self._workloads.owner)
        table = self._pods.table
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
        parts = (self._names, self._workloads, self._pods, self._failures, self._submissions, self._series)
        notes = [*self._new_notes, *(note for part in parts for note in part.notes())]
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
        return self._restorers[tag](note)

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
        if self._has_pod_template:
            last = latencies.last_end(self._pods, _POD_ENDS if self.run.ends else (*_POD_ENDS, _POD_READY))
        else:
            ends = _WORKLOAD_ENDS if self.run.ends else (*_WORKLOAD_ENDS, _WORKLOAD_READY)
            last = latencies.last_end(self._workloads, ends)
        return max(last, self._submissions.last_sent, self.run.start.timestamp())

    def counts(self) -> tuple[Counts, Counts]:
        """Return the Counts of objects and of pods."""
        total, unseen = self.run.total, self._submissions.vanished
        pod_counts = latencies.pod_counts(self._pods)
        if self._has_pod_template:
            object_counts = pod_counts.model_copy(update={"total": total})
        else:
            object_counts = latencies.workload_counts(self._workloads, total, ends=self.run.ends)
        with_unseen = {"created": object_counts.created + unseen, "deleted": object_counts.deleted + unseen}
        return object_counts.model_copy(update=with_unseen), pod_counts

    def result(self, now: float, **more: object) -> Result:
        """Return the Result at *now*; *more*: fields that the Collector does not have."""
        self._finish_tables()
        run, (object_counts, pod_counts), end = self.run, self.counts(), self.ended_at()
        fields: dict[str, object] = {
            "fleet": run.fleet,
            "wave": run.wave,
            "run": run.run,
            "start": run.start,
            "end": None if end is None else _utc(min(end, now)),
            "template_kind": run.template_kind,
            "objects": object_counts,
            "pods": pod_counts,
            "pacing": self._submissions.pacing(),
            "latencies": tuple(self._latencies()),
            "throughput": throughput(latencies.bindings(self._pods)),
            "series": self._time_series(),
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
        spans = [(start, end) for start, end, _ in self._gaps]
        gaps.discard_delayed_times(self._pods.table, gaps.PODS, spans)
        gaps.discard_delayed_times(self._workloads.table, gaps.WORKLOADS, spans)

    def _latencies(self) -> Iterator[Latency]:
        yield from latencies.of_pods(self._pods)
        if not self._has_pod_template:
            yield from latencies.of_workloads(self._workloads, self.run.template_kind, ends=self.run.ends)

    def _time_series(self) -> Series | None:
        has_schedulers = len(self._pods.waiting) > 1
        spans = [(start, end) for start, end, _ in self._gaps]
        return self._series.series(spans, hidden=() if has_schedulers else ("pending/", "scheduled/s/"))

    def pods(self) -> Iterator[PodTimes]:
        """Yield every pod, in the order of their first events."""
        self._finish_tables()
        for key, row in self._pods.table.rows.items():
            yield self._pod_times(columns.uid(key), row)

    def _pod_times(self, uid: str, row: int) -> PodTimes:
        pod_table, workload_table = self._pods, self._workloads
        integers, times = pod_table.table.integers, [column[row] for column in pod_table.table.times]
        owner = integers[pods.OWNER][row]
        owner = workload_table.root_owner(owner) if owner != NONE else NONE
        index = integers[pods.INDEX][row] if owner == NONE else workload_table.table.integers[workloads.INDEX][owner]
        return PodTimes.model_construct(
            name=pod_table.table.names[row],
            namespace=self._names.text(integers[pods.NAMESPACE][row]),
            uid=uid,
            index=None if index == NONE else index,
            owner="" if owner == NONE else f"{workload_table.kind(owner)}/{workload_table.table.names[owner]}",
            node=self._names.text(integers[pods.NODE][row]),
            pool=pod_table.pool(row),
            scheduler=pod_table.scheduler(row),
            stateless=not integers[pods.FLAGS][row] & pods.STATEFUL,
            phase=pod_table.phase(row),
            deleted=not isnan(times[pods.GONE]),
            seen={name: at for name, at in zip(_WATCH_FIELDS, times, strict=False) if at > 0},
            api={name: at for name, at in zip(_API_FIELDS, times[len(_WATCH_FIELDS) :], strict=True) if at > 0},
        )

    def workloads(self) -> Iterator[WorkloadTimes]:
        """Yield every object of the Run other than pods, in the order of their first events."""
        self._finish_tables()
        for key, row in self._workloads.table.rows.items():
            if self._workloads.is_object(row) and self._workloads.kind(row) == self.run.template_kind:
                yield self._workload_times(columns.uid(key), row)

    def _workload_times(self, uid: str, row: int) -> WorkloadTimes:
        table = self._workloads.table
        index = table.integers[workloads.INDEX][row]
        over, api_over = _WORKLOAD_OVER if self.run.ends else _WORKLOAD_READY

        def known_times(**fields: tuple[int, ...]) -> dict[str, float]:
            times = {
                name: latencies.earliest(table.times[column][row] for column in time_columns)
                for name, time_columns in fields.items()
            }
            return {name: at for name, at in times.items() if at > 0}

        return WorkloadTimes.model_construct(
            kind=self._workloads.kind(row),
            name=table.names[row],
            namespace=self._names.text(table.integers[workloads.NAMESPACE][row]),
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
            failed=self._workloads.failed(row),
        )


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
