"""From columns of times to latencies: who measured which ends, and of how many nobody knows.

What happened to an object while nobody was watching is *missing* for the watch's clock; what it
carries no timestamp of is missing for the API's. A milestone that was never reached is neither.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import NamedTuple

from kwokfleet.measure import percentiles, pods, workloads
from kwokfleet.measure.pods import PodTable
from kwokfleet.measure.result import Clock, Counts, Latency
from kwokfleet.measure.workloads import WorkloadTable


class LatencyDefinition(NamedTuple):
    """A latency: from which column to which, under each clock."""

    name: str
    watch: tuple[int, int]
    api: tuple[int, int]


POD_PHASES = (
    LatencyDefinition("scheduling", (pods.CREATED, pods.SCHEDULED), (pods.API_CREATED, pods.API_SCHEDULED)),
    LatencyDefinition("podStartup", (pods.CREATED, pods.RUNNING), (pods.API_CREATED, pods.API_STARTED)),
    LatencyDefinition("ready", (pods.CREATED, pods.READY), (pods.API_CREATED, pods.API_READY)),
    LatencyDefinition("completion", (pods.CREATED, pods.OVER), (pods.API_CREATED, pods.API_OVER)),
)
_OLD = {
    "create_to_schedule": (pods.API_CREATED, pods.EVENT),
    "schedule_to_run": (pods.EVENT, pods.API_STARTED),
    "run_to_watch": (pods.API_STARTED, pods.RUNNING),
    "schedule_to_watch": (pods.EVENT, pods.RUNNING),
    "pod_startup": (pods.API_CREATED, pods.RUNNING),
}
_NEW = {
    "create_to_schedule": (pods.CREATED, pods.SCHEDULED),
    "schedule_to_run": (pods.SCHEDULED, pods.RUNNING),
    "run_to_watch": (pods.RUNNING, pods.RUNNING),
    "schedule_to_watch": (pods.SCHEDULED, pods.RUNNING),
    "create_to_run": (pods.CREATED, pods.RUNNING),
    "pod_startup": (pods.CREATED, pods.RUNNING),
}
"""ClusterLoader2's phases, old and new. The old take a binding's time from the Scheduled Event, and nowhere else."""


def of_pods(book: PodTable) -> Iterator[Latency]:
    """Yield all latencies of pods."""
    rows = range(len(book.table))
    yield from _phases(book, "pods", rows)
    schedulers = _by_scheduler(book)
    for name in sorted(schedulers) if len(schedulers) > 1 else ():
        yield from _phases(book, f"pods/scheduler={name}", schedulers[name])
    flags = book.table.whole[pods.FLAGS]
    for of, chosen in (
        ("pods", rows),
        ("pods/stateless", [row for row in rows if not flags[row] & pods.STATEFUL]),
        ("pods/stateful", [row for row in rows if flags[row] & pods.STATEFUL]),
    ):
        yield from _clusterloader2(book, of, chosen)


def _by_scheduler(book: PodTable) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in range(len(book.table)):
        found.setdefault(book.scheduler(row), []).append(row)
    return found


def bindings(book: PodTable) -> dict[str, list[float]]:
    """Return when pods were bound, by scheduler: as our watch saw it, else as the API has it."""
    seen, written = book.table.times[pods.SCHEDULED], book.table.times[pods.API_SCHEDULED]
    best = {
        name: [seen[row] if seen[row] > 0 else written[row] for row in rows]
        for name, rows in _by_scheduler(book).items()
    }
    return {name: [at for at in times if at > 0] for name, times in best.items()}


def _phases(book: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    times, flags = book.table.times, book.table.whole[pods.FLAGS]
    for phase in POD_PHASES:
        chosen = rows if phase.name != "completion" else [row for row in rows if not flags[row] & pods.FAILED]
        seen, written = times[phase.watch[1]], times[phase.api[1]]
        happened = [row for row in chosen if not isnan(seen[row]) or not isnan(written[row])]
        for clock, (start, end) in ((Clock.WATCH, phase.watch), (Clock.API, phase.api)):
            yield _between(phase.name, of, clock, ((times[start][row], times[end][row]) for row in happened))


def _clusterloader2(book: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    """Yield its latencies, by both definitions: until 2026 nothing counted of a pod that was not seen to run."""
    times, running = book.table.times, book.table.times[pods.RUNNING]
    for name, (start, end) in _OLD.items():
        pairs = ((times[start][row] if running[row] > 0 else -1.0, times[end][row]) for row in _reached(running, rows))
        yield _lean(_between(name, of, Clock.CL2_2024, pairs))
    for name, (start, end) in _NEW.items():
        pairs = ((times[start][row], times[end][row]) for row in _reached(times[end], rows))
        yield _lean(_between(name, of, Clock.CL2_2026, pairs))


def _reached(times: Sequence[float], rows: Iterable[int]) -> Iterator[int]:
    return (row for row in rows if not isnan(times[row]))


def _lean(made: Latency) -> Latency:
    """Leave out the curve of what only explains another latency."""
    return made if made.name == "pod_startup" else made.model_copy(update={"cdf": ()})


def _between(name: str, of: str, clock: Clock, pairs: Iterable[tuple[float, float]]) -> Latency:
    """Return a latency of things that happened; it is missing where an end is unknown."""
    values: list[float] = []
    missing = 0
    for start, end in pairs:
        if start > 0 and end > 0:
            values.append(end - start)
        else:
            missing += 1
    return percentiles.latency(name, of, clock, values, missing)


def of_workloads(book: WorkloadTable, kind: str, *, ends: bool) -> Iterator[Latency]:
    """Yield all latencies of a Run's objects that are not pods."""
    rows = [row for row in range(len(book.table)) if book.is_known(row)]
    times = book.table.times
    done = (workloads.OVER, workloads.API_OVER) if ends else (workloads.READY, workloads.API_READY)
    for name, watch, api in (
        ("dispatch", (workloads.POD_CREATED,), (workloads.API_POD_CREATED,)),
        ("start", (workloads.STARTED, workloads.POD_RUNNING), (workloads.API_STARTED, workloads.API_POD_STARTED)),
        ("completion", done[:1], done[1:]),
    ):
        chosen = [row for row in rows if not (name == "completion" and book.failed(row))]
        happened = [row for row in chosen if not all(isnan(times[column][row]) for column in (*watch, *api))]
        for clock, created, columns in (
            (Clock.WATCH, workloads.CREATED, watch),
            (Clock.API, workloads.API_CREATED, api),
        ):
            ends_at = ((times[created][row], earliest(times[column][row] for column in columns)) for row in happened)
            yield _between(name, kind, clock, ends_at)


def earliest(times: Iterable[float]) -> float:
    """Return the earliest time; if of that one nobody knows when it was, none is known."""
    return min((each for each in times if not isnan(each)), key=abs, default=-1.0)


# ----------------------------------------------------------------------------------------
# counts


def pod_counts(book: PodTable) -> Counts:
    """Count pods."""
    times, count = book.table.times, len(book.table)
    failed = sum(book.failed(row) for row in range(count))
    return Counts(
        total=count,
        created=count,
        scheduled=_known(times[pods.SCHEDULED]),
        running=_known(times[pods.RUNNING]),
        completed=_known(times[pods.OVER]) - failed,
        failed=failed,
        deleted=_known(times[pods.GONE]),
    )


def workload_counts(book: WorkloadTable, total: int, *, ends: bool) -> Counts:
    """Count objects that are not pods.

    They are scheduled when they have a pod, run when they have started, and those that never end are
    complete when they are ready.
    """
    times = book.table.times
    done = times[workloads.OVER if ends else workloads.READY]
    rows = [row for row in range(len(book.table)) if book.is_known(row)]
    failed = sum(book.failed(row) for row in rows)
    return Counts(
        total=total,
        created=len(rows),
        scheduled=sum(not isnan(times[workloads.POD_CREATED][row]) for row in rows),
        running=sum(
            not isnan(times[workloads.STARTED][row]) or not isnan(times[workloads.POD_RUNNING][row]) for row in rows
        ),
        completed=sum(not isnan(done[row]) and not book.failed(row) for row in rows),
        failed=failed,
        deleted=sum(not isnan(times[workloads.GONE][row]) for row in rows),
    )


def last_end(book: PodTable | WorkloadTable, columns: Sequence[tuple[int, int | None]]) -> float:
    """Return when the last object was not waited for any longer, 0 if there is none.

    *columns* are the ways to end: as our watch has them, and the API. The first that is known counts.
    """
    times, latest = book.table.times, 0.0
    for row in range(len(book.table)):
        found = [
            times[api][row] if at < 0 and api is not None and times[api][row] > 0 else abs(at)
            for watch, api in columns
            if not isnan(at := times[watch][row])
        ]
        latest = max(latest, min(found, default=0.0))
    return latest


def _known(times: Iterable[float]) -> int:
    return sum(not isnan(each) for each in times)
