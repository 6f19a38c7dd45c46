"""The Book of a Run: every event of its objects goes in, its Result comes out.

What a pod costs: about 400 bytes, a Job beside it another 350; nothing of a manifest is kept. Two
clocks are kept side by side (result.Clock): when our watch received a state, and what the objects
say themselves.

A daemon that dies takes its Book along. So whatever cannot be had again from the cluster is noted,
line by line, while it happens; who goes on after it recalls the notes and lists the objects that
are there. What happened in between is known from the API's timestamps alone, and *missing* for the
watch's clock.

After `recall`, and whenever the watch has to list anew (`listing` first), the order is: `pod` and
`workload` with Seen.LISTED for everything that is there, then `listed` for each kind.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import columns, gaps, latencies, pods
from kwokfleet.measure import workloads as works
from kwokfleet.measure.columns import NONE, Note
from kwokfleet.measure.pods import EventType, PodTable
from kwokfleet.measure.result import Counts, Gap, Latency, Mark, PodTimes, Result, Series, WorkloadTimes
from kwokfleet.measure.submissions import FailureGroups, Submissions
from kwokfleet.measure.time_series import SeriesRecorder, throughput
from kwokfleet.measure.workloads import WorkloadTable

POD = "Pod"
_DIGITS = 6
_SEEN = ("created", "scheduled", "running", "ready", "over", "gone")
_API = ("created", "scheduled", "readyToStart", "initialized", "started", "containersReady", "ready", "over", "event")
_POD_ENDS = ((pods.OVER, pods.API_OVER), (pods.GONE, None))
_POD_READY = (pods.READY, pods.API_READY)
_WORK_ENDS = ((works.OVER, works.API_OVER), (works.GONE, None))
_WORK_READY = (works.READY, works.API_READY)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a Book is about."""

    fleet: str
    wave: str
    run: str
    start: datetime
    template_kind: str
    total: int
    ends: bool
    """Whether its objects complete by themselves; else Ready is all that is waited for."""


class Collector:
    """Everything measured of one Run. For one thread."""

    def __init__(self, subject: RunInfo, pool_of: Callable[[str], str]) -> None:
        of_pods = subject.template_kind == POD
        self.subject = subject
        self._names = columns.Names()
        self._troubles = FailureGroups()
        self._submissions = Submissions(self._troubles)
        self._pods = PodTable(self._names, pool_of, self._submissions, are_objects=of_pods, ends=subject.ends)
        self._works = WorkloadTable(self._names, subject.template_kind, self._submissions, ends=subject.ends)
        self._recorder = SeriesRecorder()
        self._marks: list[tuple[float, str]] = []
        self._gaps: list[tuple[float, float, str]] = []
        self._fresh: list[Note] = []
        self._recalled = False
        self._takers: dict[str, Callable[[Note], float]] = {
            "n": self._names.recall,
            "w": self._works.recall,
            "p": self._pods.recall,
            "x": self._troubles.recall,
            "s": self._submissions.recall,
            "t": self._recorder.recall,
        }

    # ------------------------------------------------------------------------------------
    # what happens

    def pod(self, seen: EventType, manifest: Manifest, received: float) -> None:
        """Note an event of a pod."""
        row = self._pods.take(seen, manifest, round(received, _DIGITS), self._works.owner)
        table = self._pods.table
        owner = table.whole[pods.OWNER][row]
        if owner != NONE and table.is_fresh(row, pods.FOR_OWNERS):
            made, ran = table.times[pods.CREATED][row], table.times[pods.RUNNING][row]
            self._works.first_pod(
                owner, made, ran, table.times[pods.API_CREATED][row], table.times[pods.API_STARTED][row]
            )

    def workload(self, seen: EventType, manifest: Manifest, received: float) -> None:
        """Note an event of one of the Run's own objects that is no pod."""
        self._works.take(seen, manifest, round(received, _DIGITS))

    def scheduled_event(self, namespace: str, pod: str, at: float) -> None:
        """Note when the Scheduled Event of a pod says that it was bound."""
        self._pods.event(namespace, pod, at)

    def submitted(self, index: int, due: float, sent: float, trouble: str, retries: int) -> None:
        """Note that an object was sent. *trouble* is empty if it went well, else `KIND NAME: what`."""
        self._submissions.add(index, round(due, _DIGITS), round(sent, _DIGITS), trouble, retries)

    def mark(self, at: float, what: str) -> None:
        """Note something worth a line in the timeline."""
        self._marks.append((at, what))
        self._fresh.append(["m", at, what])

    def gap(self, start: float, end: float, why: str) -> None:
        """Note that nobody was watching: what happened then is unknown, also if it is told of later, all at once."""
        self._gaps.append((start, end, why))
        self._fresh.append(["g", start, end, why])

    def listing(self, kind: str) -> None:
        """Note that a list of all objects of *kind* was asked for: what is remembered is in doubt until seen again.

        To be called before the request is sent. Events that arrive meanwhile count as having been seen.
        """
        if kind == POD:
            self._pods.listing()
        if kind == self.subject.template_kind:
            self._works.listing()
            self._submissions.listing()

    def listed(self, kind: str, at: float, submitted: int = 0) -> None:
        """Note that a complete list was delivered, object by object: what is still in doubt is gone, nobody knows when.

        *submitted* is how many objects the Ledger says were submitted, for who has no notes of that.
        """
        if kind == POD:
            self._pods.listed(at)
        if kind == self.subject.template_kind:
            self._works.listed(at)
            self._submissions.listed(submitted)

    def tick(self, now: float, capacity: Mapping[str, Mapping[str, float]]) -> None:
        """Take a sample of how things are; *capacity* is what the nodes of each pool have, by resource."""
        self._works.resolve()
        waits, runs = self._pods.where[pods.WAITING], self._pods.where[pods.RUNS]
        gauges: dict[str, float] = {"pending": waits, "running": runs}
        if self.subject.template_kind != POD:
            gauges["queued"] = self._works.queued
        gauges |= {f"pending/{name}": count for name, count in self._pods.waiting.items()}
        gauges |= self._utilisation(capacity)
        totals: dict[str, float] = {
            "submitted/s": self._submissions.sent,
            "scheduled/s": self._pods.bound.total(),
            "completed/s": self._pods.completed,
        }
        totals |= {f"scheduled/s/{name}": count for name, count in self._pods.bound.items()}
        self._recorder.add(now, gauges, totals)

    def _utilisation(self, capacity: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for resource in sorted(self._pods.resources):
            used = {pool: amounts.get(resource, 0.0) for pool, amounts in self._pods.used.items()}
            there = {pool: amounts[resource] for pool, amounts in capacity.items() if amounts.get(resource)}
            found |= {f"utilisation/{pool}/{resource}": used.get(pool, 0.0) / has for pool, has in there.items()}
            if there:
                found[f"utilisation/*/{resource}"] = sum(used.values()) / sum(there.values())
        return found

    # ------------------------------------------------------------------------------------
    # notes

    def notes(self) -> list[bytes]:
        """Return what is new since the last call, as lines without their ends."""
        parts = (self._names, self._works, self._pods, self._troubles, self._submissions, self._recorder)
        new = [*self._fresh, *(note for part in parts for note in part.notes())]
        ends = [b""] if new and self._recalled else []
        self._fresh, self._recalled = [], self._recalled and not new
        return [*ends, *(orjson.dumps(each) for each in new)]

    def recall(self, lines: Iterable[bytes]) -> float | None:
        """Take the notes of a process that died, before anything else; return the time of the last one.

        A torn line is left out, and ended by the empty line with which our own notes begin. Everything
        remembered is in doubt until it is seen again, or `listed`.
        """
        last = 0.0
        for line in lines:
            try:
                last = max(last, self._recall(orjson.loads(line)))
            except (ValueError, TypeError, LookupError):
                continue
        self._recalled = True
        for kind in (POD, self.subject.template_kind):
            self.listing(kind)
        return last or None

    def _recall(self, note: Note) -> float:
        """Take one note; return its time."""
        kind, *rest = note
        if kind == "m":
            self._marks.append((rest[0], rest[1]))
            return float(rest[0])
        if kind == "g":
            self._gaps.append((rest[0], rest[1], rest[2]))
            return float(rest[1])
        return self._takers[kind](note)

    # ------------------------------------------------------------------------------------
    # what comes out

    @property
    def _of_pods(self) -> bool:
        return self.subject.template_kind == POD

    def over(self) -> bool:
        """Return whether every object is there, was or was refused, and none of them is waited for any longer."""
        unsettled = self._pods.unsettled if self._of_pods else self._works.unsettled
        return self._submissions.accounted >= self.subject.total and not unsettled

    def ended(self) -> float | None:
        """Return when all was over, None if it is not."""
        if not self.over():
            return None
        ready = () if self.subject.ends else ((_POD_READY if self._of_pods else _WORK_READY),)
        last = (
            latencies.last_end(self._pods, (*_POD_ENDS, *ready))
            if self._of_pods
            else latencies.last_end(self._works, (*_WORK_ENDS, *ready))
        )
        return max(last, self._submissions.last_sent, self.subject.start.timestamp())

    def counts(self) -> tuple[Counts, Counts]:
        """Return how many objects, and how many pods, came how far."""
        total, unseen = self.subject.total, self._submissions.vanished
        of_pods = latencies.pod_counts(self._pods)
        if self._of_pods:
            of_objects = of_pods.model_copy(update={"total": total})
        else:
            of_objects = latencies.workload_counts(self._works, total, ends=self.subject.ends)
        unseen_too = {"created": of_objects.created + unseen, "deleted": of_objects.deleted + unseen}
        return of_objects.model_copy(update=unseen_too), of_pods

    def result(self, now: float, **more: object) -> Result:
        """Return all that is known by *now*; *more* are fields of it that the Book knows nothing of."""
        self._tidy()
        subject, (of_objects, of_pods), end = self.subject, self.counts(), self.ended()
        fields: dict[str, object] = {
            "fleet": subject.fleet,
            "wave": subject.wave,
            "run": subject.run,
            "start": subject.start,
            "end": None if end is None else _instant(min(end, now)),
            "template_kind": subject.template_kind,
            "objects": of_objects,
            "pods": of_pods,
            "pacing": self._submissions.pacing(),
            "latencies": tuple(self._latencies()),
            "throughput": throughput(latencies.bindings(self._pods)),
            "series": self._series(),
            "gaps": tuple(Gap(start=_instant(a), end=_instant(b), why=why) for a, b, why in sorted(self._gaps)),
            "marks": tuple(Mark(at=_instant(at), what=what) for at, what in sorted(self._timeline(end, now))),
            "troubles": self._troubles.groups(),
        }
        return Result.model_validate(fields | more)

    def _timeline(self, end: float | None, now: float) -> Iterator[tuple[float, str]]:
        """Yield what was marked, and what every Run comes to."""
        yield self.subject.start.timestamp(), "started"
        yield from self._marks
        if self._submissions.sent >= self.subject.total > 0:
            yield self._submissions.last_sent, "last object submitted"
        if end is not None:
            yield min(end, now), "all over" if self.subject.ends else "all ready"

    def _tidy(self) -> None:
        """Do what is done once for all, before something comes out."""
        self._works.resolve()
        spans = [(start, end) for start, end, _ in self._gaps]
        gaps.discard_delayed_times(self._pods.table, gaps.PODS, spans)
        gaps.discard_delayed_times(self._works.table, gaps.WORKLOADS, spans)

    def _latencies(self) -> Iterator[Latency]:
        yield from latencies.of_pods(self._pods)
        if not self._of_pods:
            yield from latencies.of_workloads(self._works, self.subject.template_kind, ends=self.subject.ends)

    def _series(self) -> Series | None:
        several = len(self._pods.waiting) > 1
        return self._recorder.series(
            [(start, end) for start, end, _ in self._gaps], hide=() if several else ("pending/", "scheduled/s/")
        )

    def pods(self) -> Iterator[PodTimes]:
        """Yield every pod, in the order in which they were seen first."""
        self._tidy()
        for key, row in self._pods.table.rows.items():
            yield self._pod_times(columns.uid(key), row)

    def _pod_times(self, uid: str, row: int) -> PodTimes:
        book, works_ = self._pods, self._works
        whole, times = book.table.whole, [column[row] for column in book.table.times]
        owner = whole[pods.OWNER][row]
        owner = works_.belongs_to(owner) if owner != NONE else NONE
        index = whole[pods.INDEX][row] if owner == NONE else works_.table.whole[works.INDEX][owner]
        return PodTimes.model_construct(
            name=book.table.names[row],
            namespace=self._names.text(whole[pods.NAMESPACE][row]),
            uid=uid,
            index=None if index == NONE else index,
            owner="" if owner == NONE else f"{works_.kind(owner)}/{works_.table.names[owner]}",
            node=self._names.text(whole[pods.NODE][row]),
            pool=book.pool(row),
            scheduler=book.scheduler(row),
            stateless=not whole[pods.FLAGS][row] & pods.STATEFUL,
            phase=book.phase(row),
            deleted=not isnan(times[pods.GONE]),
            seen={name: at for name, at in zip(_SEEN, times, strict=False) if at > 0},
            api={name: at for name, at in zip(_API, times[len(_SEEN) :], strict=True) if at > 0},
        )

    def workloads(self) -> Iterator[WorkloadTimes]:
        """Yield every object of the Run that is no pod, in the order in which they were seen first."""
        self._tidy()
        for key, row in self._works.table.rows.items():
            if self._works.is_known(row) and self._works.kind(row) == self.subject.template_kind:
                yield self._workload_times(columns.uid(key), row)

    def _workload_times(self, uid: str, row: int) -> WorkloadTimes:
        table = self._works.table
        index = table.whole[works.INDEX][row]
        over = (works.OVER, works.API_OVER) if self.subject.ends else (works.READY, works.API_READY)

        def known(**named: tuple[int, ...]) -> dict[str, float]:
            times = {name: latencies.earliest(table.times[each][row] for each in of) for name, of in named.items()}
            return {name: at for name, at in times.items() if at > 0}

        return WorkloadTimes.model_construct(
            kind=self._works.kind(row),
            name=table.names[row],
            namespace=self._names.text(table.whole[works.NAMESPACE][row]),
            uid=uid,
            index=None if index == NONE else index,
            seen=known(
                created=(works.CREATED,),
                dispatched=(works.POD_CREATED,),
                started=(works.STARTED, works.POD_RUNNING),
                over=over[:1],
            ),
            api=known(created=(works.API_CREATED,), started=(works.API_STARTED, works.API_POD_STARTED), over=over[1:]),
            failed=self._works.failed(row),
        )


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
