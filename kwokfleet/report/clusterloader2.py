"""Results in the format of ClusterLoader2's report folder.

The definition of PodStartupLatency changed on 26 May 2026. Both are written: files with `-2024` have the old one,
`-2026` the new one. ClusterLoader2 writes 0 without data; here such fields are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from kwokfleet.measure import percentiles
from kwokfleet.measure.result import Clock, Result, WorkloadTimes
from kwokfleet.report import numbers

_PODS = {"": "pods", "Stateless": "pods/stateless", "Stateful": "pods/stateful"}
_DEFINITIONS = {Clock.CL2_2024: "2024", Clock.CL2_2026: "2026"}
_PERCENTS = (50, 90, 99)
_JOB_STEPS = {"create_to_start": ("created", "started"), "start_to_complete": ("started", "over")}


def files(result: Result, workloads: Iterable[WorkloadTimes] = ()) -> dict[str, str]:
    """Return the files by name. A measurement without data has no file."""
    documents = dict((*_pod_startup(result), *_throughput(result), *_jobs(result, workloads)))
    return {
        f"{name}.json": orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
        for name, document in sorted(documents.items())
    }


def _pod_startup(result: Result) -> Iterator[tuple[str, Any]]:
    for prefix, of in _PODS.items():
        for clock, definition in _DEFINITIONS.items():
            items = [
                _item(latency.name, (latency.p50, latency.p90, latency.p99))
                for latency in result.latencies
                if (latency.of, latency.clock) == (of, clock) and latency.count
            ]
            yield from _document(f"{prefix}PodStartupLatency_{numbers.identifier(result)}-{definition}", items)


def _document(name: str, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    if items:
        yield name, {"version": "1.0", "dataItems": items}


def _item(metric: str, seconds: Iterable[float | None]) -> Mapping[str, Any]:
    data = {
        f"Perc{percent}": _number(value * 1000)
        for percent, value in zip(_PERCENTS, seconds, strict=True)
        if value is not None
    }
    return {"data": data, "unit": "ms", "labels": {"Metric": metric}}


def _throughput(result: Result) -> Iterator[tuple[str, Any]]:
    for item in result.throughput:
        if item.windows:
            scheduler = f"-{item.scheduler}" if item.scheduler else ""
            values = {"perc50": item.p50, "perc90": item.p90, "perc99": item.p99, "max": item.max}
            document = {name: _number(value) for name, value in values.items() if value is not None}
            yield f"SchedulingThroughput_{numbers.identifier(result)}{scheduler}", document


def _jobs(result: Result, workloads: Iterable[WorkloadTimes]) -> Iterator[tuple[str, Any]]:
    job_times = [workload.api for workload in workloads if workload.kind == "Job"]
    items = []
    for metric, (first, last) in _JOB_STEPS.items():
        ends = ((times[first], times[last]) for times in job_times if first in times and last in times)
        durations = sorted(max(0.0, end - start) for start, end in ends)
        if durations:
            items.append(_item(metric, (percentiles.percentile(durations, percent) for percent in _PERCENTS)))
    yield from _document(f"JobLifecycleLatency_{numbers.identifier(result)}", items)


def _number(value: float) -> float:
    """Return a number as Go writes it: integers without a decimal point."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded
