"""Results in the format of kube-burner's local indexer: `podLatencyMeasurement-JOB.json` and others.

All values are API timestamps in whole milliseconds, as in kube-burner. Fields without data are left out;
kube-burner writes 0.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from kwokfleet.measure.result import PodTimes, Result, WorkloadTimes
from kwokfleet.report import numbers

_POD_STEPS = (
    ("schedulingLatency", "PodScheduled", ("event", "scheduled")),
    ("initializedLatency", "Initialized", ("initialized",)),
    ("containersReadyLatency", "ContainersReady", ("containersReady",)),
    ("podReadyLatency", "Ready", ("ready",)),
    ("containersStartedLatency", "ContainersStarted", ("started",)),
    ("readyToStartContainersLatency", "PodReadyToStartContainers", ("readyToStart",)),
)
"""Field, quantile name, and the timestamps to use, best first."""
_JOB_STEPS = (("startTimeLatency", "StartTime", ("started",)), ("completionLatency", "Complete", ("over",)))
Steps = Sequence[tuple[str, str, tuple[str, ...]]]
Document = dict[str, Any]


def files(
    result: Result, pods: Iterable[PodTimes], workloads: Iterable[WorkloadTimes] = ()
) -> dict[str, Iterable[str]]:
    """Return the files by name, as parts of text. A measurement without data has no file.

    *pods* and *workloads* are iterated twice, so that 100,000 documents are not in memory at once.
    """
    texts: dict[str, Iterable[str]] = {}
    if quantiles := _quantiles(result, "podLatency", _POD_STEPS, _pods(result, pods)):
        texts["podLatencyMeasurement"] = _text(_pods(result, pods))
        texts["podLatencyQuantilesMeasurement"] = _text(quantiles)
    if quantiles := _quantiles(result, "jobLatency", _JOB_STEPS, _jobs(result, workloads)):
        texts["jobLatencyMeasurement"] = _text(_jobs(result, workloads))
        texts["jobLatencyQuantilesMeasurement"] = _text(quantiles)
    return {f"{name}-{numbers.identifier(result)}.json": text for name, text in texts.items()}


def _pods(result: Result, pods: Iterable[PodTimes]) -> Iterator[Document]:
    """Yield a document for each pod that became Ready, as kube-burner does."""
    for pod in pods:
        if "created" in pod.api and "ready" in pod.api:
            document = _document(result, "podLatencyMeasurement", pod, _POD_STEPS)
            yield document | {"podName": pod.name, "nodeName": pod.node}


def _jobs(result: Result, workloads: Iterable[WorkloadTimes]) -> Iterator[Document]:
    """Yield a document for each Job that completed, as kube-burner does."""
    for job in workloads:
        if job.kind == "Job" and not job.failed and "created" in job.api and "over" in job.api:
            yield _document(result, "jobLatencyMeasurement", job, _JOB_STEPS) | {"k8sJobName": job.name}


def _document(result: Result, metric: str, times: PodTimes | WorkloadTimes, steps: Steps) -> Document:
    created = times.api["created"]
    latencies = {}
    for field, _, names in steps:
        end = next((times.api[name] for name in names if name in times.api), None)
        if end is not None:
            latencies[field] = max(0, int(round((end - created) * 1000, 3)))
    return {
        "timestamp": _time(created),
        **latencies,
        "metricName": metric,
        "uuid": _uuid(result),
        "jobName": numbers.identifier(result),
        "jobIteration": times.index or 0,
        "replica": 1,
        "namespace": times.namespace,
    }


def _quantiles(result: Result, measurement: str, steps: Steps, documents: Iterable[Document]) -> list[Document]:
    values: dict[str, list[int]] = {field: [] for field, _, _ in steps}
    for document in documents:
        for field in values.keys() & document.keys():
            values[field].append(document[field])
    return [
        _quantile(result, f"{measurement}QuantilesMeasurement", name, sorted(values[field]))
        for field, name, _ in steps
        if values[field]
    ]


def _quantile(result: Result, metric: str, name: str, values: Sequence[int]) -> Document:
    return {
        "quantileName": name,
        "uuid": _uuid(result),
        **{f"P{percent}": int(percentile(values, percent)) for percent in (99, 95, 50)},
        "min": values[0],
        "max": values[-1],
        "avg": sum(values) // len(values),
        "timestamp": _time((result.end or result.start).timestamp()),
        "metricName": metric,
        "jobName": numbers.identifier(result),
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values as kube-burner does (montanaflynn/stats until 0.7), for 50 percent or more.

    An integer rank selects a value; any other rank is the mean of its two neighbours.
    """
    if len(ordered) == 1:
        return ordered[0]
    rank = percent / 100 * len(ordered)
    index = int(rank)
    return ordered[index - 1] if rank == index else (ordered[index - 1] + ordered[index]) / 2


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _uuid(result: Result) -> str:
    """Return a deterministic UUID of the Run."""
    digest = hashlib.sha256(f"{result.name} {result.start.isoformat()}".encode()).hexdigest()
    return "-".join((digest[:8], digest[8:12], f"4{digest[13:16]}", f"8{digest[17:20]}", digest[20:32]))


def _text(documents: Iterable[Document]) -> Iterator[str]:
    separator = "[\n"
    for document in documents:
        yield separator + orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
        separator = ",\n"
    yield "\n]\n"
