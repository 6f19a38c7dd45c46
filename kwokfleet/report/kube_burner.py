"""Results as kube-burner's local indexer writes them: `podLatencyMeasurement-JOB.json` and its kin.

All from timestamps in the objects, in whole milliseconds, as kube-burner has them. A field that nothing is known of
is left out; kube-burner would write 0.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""Its field, its quantile, and the times that tell it, the best first."""
_JOB_STEPS = (("startTimeLatency", "StartTime", ("started",)), ("completionLatency", "Complete", ("over",)))
Steps = Sequence[tuple[str, str, tuple[str, ...]]]
Document = dict[str, Any]


def files(made: Result, pods: Iterable[PodTimes], workloads: Iterable[WorkloadTimes] = ()) -> dict[str, Iterable[str]]:
    """Return the files' texts, in pieces, by their names; what nothing is known of has no file.

    *pods* and *workloads* are gone through twice: 100,000 documents need not be in memory at once.
    """
    found: dict[str, Iterable[str]] = {}
    for measurement, steps, first, again in (
        ("podLatency", _POD_STEPS, _pods(made, pods), _pods(made, pods)),
        ("jobLatency", _JOB_STEPS, _jobs(made, workloads), _jobs(made, workloads)),
    ):
        if quantiles := _quantiles(made, measurement, steps, first):
            found[f"{measurement}Measurement"] = _text(again)
            found[f"{measurement}QuantilesMeasurement"] = _text(quantiles)
    return {f"{name}-{numbers.identifier(made)}.json": text for name, text in found.items()}


def _pods(made: Result, pods: Iterable[PodTimes]) -> Iterator[Document]:
    """Yield a document for each pod that became Ready: it leaves out the others."""
    for pod in pods:
        if "created" in pod.api and "ready" in pod.api:
            yield {
                "timestamp": _time(pod.api["created"]),
                **_latencies(pod.api, _POD_STEPS),
                **_labels(made, "podLatencyMeasurement", pod.index),
                "namespace": pod.namespace,
                "podName": pod.name,
                "nodeName": pod.node,
            }


def _jobs(made: Result, workloads: Iterable[WorkloadTimes]) -> Iterator[Document]:
    """Yield a document for each Job that completed: it leaves out the others."""
    for job in workloads:
        if job.kind == "Job" and not job.failed and "created" in job.api and "over" in job.api:
            yield {
                "timestamp": _time(job.api["created"]),
                **_latencies(job.api, _JOB_STEPS),
                **_labels(made, "jobLatencyMeasurement", job.index),
                "namespace": job.namespace,
                "k8sJobName": job.name,
            }


def _latencies(stamps: Mapping[str, float], steps: Steps) -> Document:
    found: Document = {}
    for field, _, names in steps:
        end = next((stamps[name] for name in names if name in stamps), None)
        if end is not None:
            found[field] = max(0, int(round((end - stamps["created"]) * 1000, 3)))
    return found


def _labels(made: Result, metric: str, index: int | None) -> Document:
    return {
        "metricName": metric,
        "uuid": _uuid(made),
        "jobName": numbers.identifier(made),
        "jobIteration": index or 0,
        "replica": 1,
    }


def _quantiles(made: Result, measurement: str, steps: Steps, documents: Iterable[Document]) -> list[Document]:
    values: dict[str, list[int]] = {field: [] for field, _, _ in steps}
    for document in documents:
        for field, found in values.items():
            if field in document:
                found.append(document[field])
    return [
        _quantile(made, f"{measurement}QuantilesMeasurement", name, sorted(values[field]))
        for field, name, _ in steps
        if values[field]
    ]


def _quantile(made: Result, metric: str, name: str, values: Sequence[int]) -> Document:
    return {
        "quantileName": name,
        "uuid": _uuid(made),
        "P99": int(percentile(values, 99)),
        "P95": int(percentile(values, 95)),
        "P50": int(percentile(values, 50)),
        "min": values[0],
        "max": values[-1],
        "avg": sum(values) // len(values),
        "timestamp": _time((made.end or made.start).timestamp()),
        "metricName": metric,
        "jobName": numbers.identifier(made),
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile as kube-burner has it (montanaflynn/stats until 0.7): of sorted values, 50 percent or more.

    A rank that is whole names a value; any other lies between two, and stands for their mean.
    """
    if len(ordered) == 1:
        return ordered[0]
    rank = percent / 100 * len(ordered)
    place = int(rank)
    return ordered[place - 1] if rank == place else (ordered[place - 1] + ordered[place]) / 2


def _time(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="auto")
    return text.replace("+00:00", "Z")


def _uuid(made: Result) -> str:
    """Return a name for the Run in the form that kube-burner's has."""
    digest = hashlib.sha256(f"{made.name} {made.start.isoformat()}".encode()).hexdigest()
    return "-".join((digest[:8], digest[8:12], f"4{digest[13:16]}", f"8{digest[17:20]}", digest[20:32]))


def _text(documents: Iterable[Document]) -> Iterator[str]:
    before = "[\n"
    for document in documents:
        yield before + orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
        before = ",\n"
    yield "\n]\n"
