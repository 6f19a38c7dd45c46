"""Results in the format of ClusterLoader2's report folder.

The definition of PodStartupLatency changed on 26 May 2026. Both are written: files with `-2024` have the old one,
`-2026` the new one. ClusterLoader2 writes 0 without data; here such fields are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import orjson

from kwokfleet.measure.result import Clock, Latency, Result, Throughput, WorkloadTimes
from kwokfleet.report import numbers

_PODS = {"": "pods", "Stateless": "pods/stateless", "Stateful": "pods/stateful"}
_DEFINITIONS = {Clock.CL2_2024: "2024", Clock.CL2_2026: "2026"}
_PERCENTS = (50, 90, 99)
_JOB_STEPS = {"create_to_start": ("created", "started"), "start_to_complete": ("started", "over")}


def files(result: Result, workloads: Iterable[WorkloadTimes] = ()) -> dict[str, str]:
    """Return the files by name. A measurement without data has no file."""
    documents = dict((*_pod_startup(result), *_throughput(result), *_jobs(result, workloads)))
    return {f"{name}.json": _text(document) for name, document in sorted(documents.items())}


def _pod_startup(result: Result) -> Iterator[tuple[str, Any]]:
    for prefix, of in _PODS.items():
        for clock, definition in _DEFINITIONS.items():
            items = [
                _latency(latency)
                for latency in result.latencies
                if (latency.of, latency.clock) == (of, clock) and latency.count
            ]
            if items:
                yield f"{prefix}PodStartupLatency_{numbers.identifier(result)}-{definition}", _items(items)


def _latency(latency: Latency) -> Mapping[str, Any]:
    return _item(latency.name, (latency.p50, latency.p90, latency.p99))


def _item(metric: str, seconds: Sequence[float | None]) -> Mapping[str, Any]:
    data = {
        f"Perc{percent}": _number(value * 1000)
        for percent, value in zip(_PERCENTS, seconds, strict=True)
        if value is not None
    }
    return {"data": data, "unit": "ms", "labels": {"Metric": metric}}


def _items(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {"version": "1.0", "dataItems": items}


def _throughput(result: Result) -> Iterator[tuple[str, Any]]:
    for throughput in result.throughput:
        if throughput.windows:
            scheduler = f"-{throughput.scheduler}" if throughput.scheduler else ""
            yield f"SchedulingThroughput_{numbers.identifier(result)}{scheduler}", _windows(throughput)


def _windows(throughput: Throughput) -> Mapping[str, Any]:
    values = {"perc50": throughput.p50, "perc90": throughput.p90, "perc99": throughput.p99, "max": throughput.max}
    return {name: _number(value) for name, value in values.items() if value is not None}


def _jobs(result: Result, workloads: Iterable[WorkloadTimes]) -> Iterator[tuple[str, Any]]:
    job_times = [workload.api for workload in workloads if workload.kind == "Job"]
    items = []
    for metric, (first, last) in _JOB_STEPS.items():
        durations = sorted(
            max(0.0, times[last] - times[first]) for times in job_times if first in times and last in times
        )
        if durations:
            items.append(_item(metric, [durations[ceil(len(durations) * percent / 100) - 1] for percent in _PERCENTS]))
    if items:
        yield f"JobLifecycleLatency_{numbers.identifier(result)}", _items(items)


def _number(value: float) -> float:
    """Return a number as Go writes it: integers without a decimal point."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _text(document: Any) -> str:  # noqa: ANN401  # any JSON
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
