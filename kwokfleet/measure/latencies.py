"""Latencies and Counts from tables of times.

A state reached inside a gap is *missing* for the watch clock. A state without a timestamp is missing for the API
clock. A state that was never reached is not missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import NamedTuple

from kwokfleet.measure import percentiles, pods, workloads
from kwokfleet.measure.pods import PodTable
from kwokfleet.measure.result import Clock, Counts, Latency
from kwokfleet.measure.workloads import WorkloadTable


class LatencyDefinition(NamedTuple):
    """A latency: its start and end columns for each clock."""

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
"""ClusterLoader2's phases, old and new. The old ones take the binding time from the Scheduled Event only."""


def of_pods(pod_table: PodTable) -> Iterator[Latency]:
    """Yield the latencies of pods."""
    rows = range(len(pod_table.table))
    yield from _phases(pod_table, "pods", rows)
    schedulers = _by_scheduler(pod_table)
    for name in sorted(schedulers) if len(schedulers) > 1 else ():
        yield from _phases(pod_table, f"pods/scheduler={name}", schedulers[name])
    flags = pod_table.table.integers[pods.FLAGS]
    for of, chosen in (
        ("pods", rows),
        ("pods/stateless", [row for row in rows if not flags[row] & pods.STATEFUL]),
        ("pods/stateful", [row for row in rows if flags[row] & pods.STATEFUL]),
    ):
        yield from _clusterloader2(pod_table, of, chosen)


def _by_scheduler(pod_table: PodTable) -> dict[str, list[int]]:
    rows_by_scheduler: dict[str, list[int]] = {}
    for row in range(len(pod_table.table)):
        rows_by_scheduler.setdefault(pod_table.scheduler(row), []).append(row)
    return rows_by_scheduler


def bindings(pod_table: PodTable) -> dict[str, list[float]]:
    """Return binding times by scheduler: of the watch clock, else of the API clock."""
    received, timestamps = pod_table.table.times[pods.SCHEDULED], pod_table.table.times[pods.API_SCHEDULED]
    best = {
        name: [received[row] if received[row] > 0 else timestamps[row] for row in rows]
        for name, rows in _by_scheduler(pod_table).items()
    }
    return {name: [at for at in times if at > 0] for name, times in best.items()}


def _phases(pod_table: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    times, flags = pod_table.table.times, pod_table.table.integers[pods.FLAGS]
    for phase in POD_PHASES:
        chosen = rows if phase.name != "completion" else [row for row in rows if not flags[row] & pods.FAILED]
        received, timestamps = times[phase.watch[1]], times[phase.api[1]]
        reached = [row for row in chosen if not isnan(received[row]) or not isnan(timestamps[row])]
        for clock, (start, end) in ((Clock.WATCH, phase.watch), (Clock.API, phase.api)):
            yield _between(phase.name, of, clock, ((times[start][row], times[end][row]) for row in reached))


def _clusterloader2(pod_table: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    """Yield ClusterLoader2's latencies, old and new. The old ones skip pods without a Running event."""
    times, running = pod_table.table.times, pod_table.table.times[pods.RUNNING]
    for name, (start, end) in _OLD.items():
        pairs = ((times[start][row] if running[row] > 0 else -1.0, times[end][row]) for row in _reached(running, rows))
        yield _without_curve(_between(name, of, Clock.CL2_2024, pairs))
    for name, (start, end) in _NEW.items():
        pairs = ((times[start][row], times[end][row]) for row in _reached(times[end], rows))
        yield _without_curve(_between(name, of, Clock.CL2_2026, pairs))


def _reached(times: Sequence[float], rows: Iterable[int]) -> Iterator[int]:
    return (row for row in rows if not isnan(times[row]))


def _without_curve(latency: Latency) -> Latency:
    """Drop the curve of a latency that is a part of pod_startup."""
    return latency if latency.name == "pod_startup" else latency.model_copy(update={"cdf": ()})


def _between(name: str, of: str, clock: Clock, pairs: Iterable[tuple[float, float]]) -> Latency:
    """Return a Latency. A pair with an unknown start or end is missing."""
    values: list[float] = []
    missing = 0
    for start, end in pairs:
        if start > 0 and end > 0:
            values.append(end - start)
        else:
            missing += 1
    return percentiles.latency(name, of, clock, values, missing)


def of_workloads(workload_table: WorkloadTable, kind: str, *, ends: bool) -> Iterator[Latency]:
    """Yield the latencies of a Run's objects other than pods."""
    rows = [row for row in range(len(workload_table.table)) if workload_table.is_object(row)]
    times = workload_table.table.times
    done = (workloads.OVER, workloads.API_OVER) if ends else (workloads.READY, workloads.API_READY)
    for name, watch, api in (
        ("dispatch", (workloads.POD_CREATED,), (workloads.API_POD_CREATED,)),
        ("start", (workloads.STARTED, workloads.POD_RUNNING), (workloads.API_STARTED, workloads.API_POD_STARTED)),
        ("completion", done[:1], done[1:]),
    ):
        chosen = [row for row in rows if not (name == "completion" and workload_table.failed(row))]
        reached = [row for row in chosen if not all(isnan(times[column][row]) for column in (*watch, *api))]
        for clock, created, columns in (
            (Clock.WATCH, workloads.CREATED, watch),
            (Clock.API, workloads.API_CREATED, api),
        ):
            spans = ((times[created][row], earliest(times[column][row] for column in columns)) for row in reached)
            yield _between(name, kind, clock, spans)


def earliest(times: Iterable[float]) -> float:
    """Return the earliest time; negative if it is unknown when that was."""
    return min((time for time in times if not isnan(time)), key=abs, default=-1.0)


# ----------------------------------------------------------------------------------------
# counts


def pod_counts(pod_table: PodTable) -> Counts:
    """Count pods."""
    times, count = pod_table.table.times, len(pod_table.table)
    failed = sum(pod_table.failed(row) for row in range(count))
    return Counts(
        total=count,
        created=count,
        scheduled=_count_reached(times[pods.SCHEDULED]),
        running=_count_reached(times[pods.RUNNING]),
        completed=_count_reached(times[pods.OVER]) - failed,
        failed=failed,
        deleted=_count_reached(times[pods.GONE]),
    )


def workload_counts(workload_table: WorkloadTable, total: int, *, ends: bool) -> Counts:
    """Count objects other than pods.

    An object is scheduled when it has a pod, and running when it has started. An object that never ends is completed
    when it is ready.
    """
    times = workload_table.table.times
    done = times[workloads.OVER if ends else workloads.READY]
    rows = [row for row in range(len(workload_table.table)) if workload_table.is_object(row)]
    failed = sum(workload_table.failed(row) for row in rows)
    return Counts(
        total=total,
        created=len(rows),
        scheduled=sum(not isnan(times[workloads.POD_CREATED][row]) for row in rows),
        running=sum(
            not isnan(times[workloads.STARTED][row]) or not isnan(times[workloads.POD_RUNNING][row]) for row in rows
        ),
        completed=sum(not isnan(done[row]) and not workload_table.failed(row) for row in rows),
        failed=failed,
        deleted=sum(not isnan(times[workloads.GONE][row]) for row in rows),
    )


def last_end(table: PodTable | WorkloadTable, columns: Sequence[tuple[int, int | None]]) -> float:
    """Return when the last object ended, 0 without objects.

    *columns*: pairs of watch and API columns that end an object. The earliest counts.
    """
    times, latest = table.table.times, 0.0
    for row in range(len(table.table)):
        ends = [
            times[api][row] if at < 0 and api is not None and times[api][row] > 0 else abs(at)
            for watch, api in columns
            if not isnan(at := times[watch][row])
        ]
        latest = max(latest, min(ends, default=0.0))
    return latest


def _count_reached(times: Iterable[float]) -> int:
    return sum(not isnan(time) for time in times)
