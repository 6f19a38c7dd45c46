"""Results as ClusterLoader2 leaves them in its report folder, for whoever reads those files already.

Its PodStartupLatency changed its meaning on 26 May 2026. Both are written, told apart by the end of the file's
name: `-2024` the old one, `-2026` the new. ClusterLoader2 writes 0 where it has no data; here that part is left out.
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


def files(made: Result, workloads: Iterable[WorkloadTimes] = ()) -> dict[str, str]:
    """Return the files' texts by their names; what nothing is known of has no file."""
    found = dict((*_pod_startup(made), *_throughput(made), *_jobs(made, workloads)))
    return {f"{name}.json": _text(document) for name, document in sorted(found.items())}


def _pod_startup(made: Result) -> Iterator[tuple[str, Any]]:
    for prefix, of in _PODS.items():
        for clock, definition in _DEFINITIONS.items():
            items = [_latency(each) for each in made.latencies if (each.of, each.clock) == (of, clock) and each.count]
            if items:
                yield f"{prefix}PodStartupLatency_{numbers.identifier(made)}-{definition}", _items(items)


def _latency(each: Latency) -> Mapping[str, Any]:
    return _item(each.name, (each.p50, each.p90, each.p99))


def _item(metric: str, seconds: Sequence[float | None]) -> Mapping[str, Any]:
    data = {
        f"Perc{percent}": _number(value * 1000)
        for percent, value in zip(_PERCENTS, seconds, strict=True)
        if value is not None
    }
    return {"data": data, "unit": "ms", "labels": {"Metric": metric}}


def _items(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {"version": "1.0", "dataItems": items}


def _throughput(made: Result) -> Iterator[tuple[str, Any]]:
    for each in made.throughput:
        if each.windows:
            scheduler = f"-{each.scheduler}" if each.scheduler else ""
            yield f"SchedulingThroughput_{numbers.identifier(made)}{scheduler}", _windows(each)


def _windows(each: Throughput) -> Mapping[str, Any]:
    found = {"perc50": each.p50, "perc90": each.p90, "perc99": each.p99, "max": each.max}
    return {name: _number(value) for name, value in found.items() if value is not None}


def _jobs(made: Result, workloads: Iterable[WorkloadTimes]) -> Iterator[tuple[str, Any]]:
    jobs = [each.api for each in workloads if each.kind == "Job"]
    items = []
    for metric, (first, last) in _JOB_STEPS.items():
        took = sorted(max(0.0, each[last] - each[first]) for each in jobs if first in each and last in each)
        if took:
            items.append(_item(metric, [took[ceil(len(took) * percent / 100) - 1] for percent in _PERCENTS]))
    if items:
        yield f"JobLifecycleLatency_{numbers.identifier(made)}", _items(items)


def _number(value: float) -> float:
    """Return a number as Go writes it: whole ones without a point."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _text(document: Any) -> str:  # noqa: ANN401  # any JSON
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
