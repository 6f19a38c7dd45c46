"""Latencies and Counts from tables of times.

A state reached inside a gap is *missing* for the watch clock. A state without a timestamp is missing for the API
clock. A state that was never reached is not missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isnan

from kwokfleet.measure import percentiles, pods, workloads
from kwokfleet.measure.pods import PodTable
from kwokfleet.measure.result import Clock, Counts, Latency
from kwokfleet.measure.workloads import WorkloadTable

_POD_PHASES = {
    "scheduling": (pods.SCHEDULED, pods.API_SCHEDULED),
    "podStartup": (pods.RUNNING, pods.API_STARTED),
    "ready": (pods.READY, pods.API_READY),
    "completion": (pods.OVER, pods.API_OVER),
}
"""End columns of latencies from creation, by the watch clock and the API clock."""
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
    rows = range(len(pod_table))
    yield from _phases(pod_table, "pods", rows)
    schedulers = _by_scheduler(pod_table)
    for name in sorted(schedulers) if len(schedulers) > 1 else ():
        yield from _phases(pod_table, f"pods/scheduler={name}", schedulers[name])
    flags = pod_table.integers[pods.FLAGS]
    yield from _clusterloader2(pod_table, "pods", rows)
    yield from _clusterloader2(pod_table, "pods/stateless", [row for row in rows if not flags[row] & pods.STATEFUL])
    yield from _clusterloader2(pod_table, "pods/stateful", [row for row in rows if flags[row] & pods.STATEFUL])


def _by_scheduler(pod_table: PodTable) -> dict[str, list[int]]:
    rows_by_scheduler: dict[str, list[int]] = {}
    for row in range(len(pod_table)):
        rows_by_scheduler.setdefault(pod_table.text(row, pods.SCHEDULER), []).append(row)
    return rows_by_scheduler


def bindings(pod_table: PodTable) -> dict[str, list[float]]:
    """Return binding times by scheduler: of the watch clock, else of the API clock."""
    received, timestamps = pod_table.times[pods.SCHEDULED], pod_table.times[pods.API_SCHEDULED]
    best = {
        name: [received[row] if received[row] > 0 else timestamps[row] for row in rows]
        for name, rows in _by_scheduler(pod_table).items()
    }
    return {name: [at for at in times if at > 0] for name, times in best.items()}


def _phases(pod_table: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    times = pod_table.times
    for name, (watch, api) in _POD_PHASES.items():
        chosen = rows if name != "completion" else [row for row in rows if not pod_table.failed(row)]
        reached = [row for row in chosen if not isnan(times[watch][row]) or not isnan(times[api][row])]
        for clock, start, end in ((Clock.WATCH, pods.CREATED, watch), (Clock.API, pods.API_CREATED, api)):
            yield _between(name, of, clock, ((times[start][row], times[end][row]) for row in reached))


def _clusterloader2(pod_table: PodTable, of: str, rows: Sequence[int]) -> Iterator[Latency]:
    """Yield ClusterLoader2's latencies, old and new. The old ones skip pods without a Running event."""
    times, running = pod_table.times, pod_table.times[pods.RUNNING]
    reached = [row for row in rows if not isnan(running[row])]
    for name, (start, end) in _OLD.items():
        pairs = ((times[start][row] if running[row] > 0 else -1.0, times[end][row]) for row in reached)
        yield _without_curve(_between(name, of, Clock.CL2_2024, pairs))
    for name, (start, end) in _NEW.items():
        pairs = ((times[start][row], times[end][row]) for row in rows if not isnan(times[end][row]))
        yield _without_curve(_between(name, of, Clock.CL2_2026, pairs))


def _without_curve(latency: Latency) -> Latency:
    """Drop the curve of a latency that is a part of pod_startup."""
    return latency if latency.name == "pod_startup" else latency.model_copy(update={"cdf": ()})


def _between(name: str, of: str, clock: Clock, pairs: Iterable[tuple[float, float]]) -> Latency:
    """Return a Latency. A pair with an unknown start or end is missing."""
    durations = [end - start if start > 0 and end > 0 else None for start, end in pairs]
    values = [duration for duration in durations if duration is not None]
    return percentiles.latency(name, of, clock, values, len(durations) - len(values))


def of_workloads(workload_table: WorkloadTable, kind: str, *, ends: bool) -> Iterator[Latency]:
    """Yield the latencies of a Run's objects other than pods."""
    rows, times = workload_table.objects(), workload_table.times
    done = (workloads.OVER, workloads.API_OVER) if ends else (workloads.READY, workloads.API_READY)
    for name, watch, api in (
        ("dispatch", (workloads.POD_CREATED,), (workloads.API_POD_CREATED,)),
        ("start", (workloads.STARTED, workloads.POD_RUNNING), (workloads.API_STARTED, workloads.API_POD_STARTED)),
        ("completion", done[:1], done[1:]),
    ):
        chosen = [row for row in rows if not (name == "completion" and workload_table.failed(row))]
        reached = [row for row in chosen if not all(isnan(times[column][row]) for column in (*watch, *api))]
        clocks = ((Clock.WATCH, workloads.CREATED, watch), (Clock.API, workloads.API_CREATED, api))
        for clock, created, columns in clocks:
            spans = ((times[created][row], earliest(times[column][row] for column in columns)) for row in reached)
            yield _between(name, kind, clock, spans)


def earliest(times: Iterable[float]) -> float:
    """Return the earliest time; negative if it is unknown when that was."""
    return min((time for time in times if not isnan(time)), key=abs, default=-1.0)


# ----------------------------------------------------------------------------------------
# counts


def pod_counts(pod_table: PodTable) -> Counts:
    """Count pods."""
    return _counts(pod_table, range(len(pod_table)), pods.SCHEDULED, (pods.RUNNING,), pods.OVER)


def workload_counts(workload_table: WorkloadTable, *, ends: bool) -> Counts:
    """Count objects other than pods: scheduled with a pod, running when started, completed when ready or over."""
    running, done = (workloads.STARTED, workloads.POD_RUNNING), workloads.OVER if ends else workloads.READY
    return _counts(workload_table, workload_table.objects(), workloads.POD_CREATED, running, done)


def _counts(
    table: PodTable | WorkloadTable, rows: Sequence[int], scheduled: int, running: Sequence[int], done: int
) -> Counts:
    return Counts(
        total=len(rows),
        created=len(rows),
        scheduled=sum(table.is_reached(row, scheduled) for row in rows),
        running=sum(any(table.is_reached(row, column) for column in running) for row in rows),
        completed=sum(table.is_reached(row, done) and not table.failed(row) for row in rows),
        failed=sum(table.failed(row) for row in rows),
        deleted=sum(table.is_reached(row, table.gone) for row in rows),
    )


def last_end(table: PodTable | WorkloadTable, columns: Sequence[tuple[int, int | None]]) -> float:
    """Return when the last object ended, 0 without objects.

    *columns*: pairs of watch and API columns that end an object. The earliest counts.
    """
    times, latest = table.times, 0.0
    for row in range(len(table)):
        ends = [
            times[api][row] if at < 0 and api is not None and times[api][row] > 0 else abs(at)
            for watch, api in columns
            if not isnan(at := times[watch][row])
        ]
        latest = max(latest, min(ends, default=0.0))
    return latest
