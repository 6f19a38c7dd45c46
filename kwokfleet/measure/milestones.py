"""States and timestamps of objects, parsed from their manifests once per event.

A watch delivers an object many times, mostly with known timestamps: parsed timestamps are cached. Times are seconds
since 1970; NaN means "no timestamp".
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from math import isnan, nan
from typing import Any, NamedTuple

from kwokfleet.kube.objects import Manifest

NEVER = nan
OVER = frozenset({"Succeeded", "Failed"})
REPLICATED = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet"})
"""Kinds that are complete when all replicas are ready."""
READY_ON_CREATION = frozenset(
    {"Ingress", "Lease", "LimitRange", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "Service"}
)
"""Kinds with a spec that are ready when created. Kinds without a spec are too."""
_STATELESS = frozenset({"emptyDir", "downwardAPI", "configMap", "secret", "projected"})
"""Volumes of a stateless pod, as ClusterLoader2 defines it."""
_POD_CONDITIONS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_COMPLETED = ("Complete", "Completed", "Succeeded", "Finished")
_FAILED = ("Failed",)
_READY = ("Ready", "Available")
_STARTED = ("Started", "Running", "Dispatched", "Admitted")
"""Names in conditions or phases of custom kinds: Kubeflow, JobSet, Kueue, MCAD, Argo, Volcano."""
_READY_PHASES = ("Active", "Bound")
"""Phases of ready namespaces and claims."""


@lru_cache(maxsize=16_384)
def seconds(text: str) -> float:
    """Return the time of an RFC 3339 text, NaN if it is invalid."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return NEVER


class PodMilestones(NamedTuple):
    """State and timestamps of a pod."""

    node: str
    phase: str
    ready: bool
    scheduled_at: float
    ready_to_start_at: float
    initialized_at: float
    started_at: float
    """Start of the last container."""
    containers_ready_at: float
    ready_at: float
    over_at: float


def parse_pod(manifest: Manifest) -> PodMilestones:
    """Parse a pod."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    true_since: dict[str, float] = {}
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True":
            true_since[condition.get("type")] = seconds(condition.get("lastTransitionTime") or "")
    phase = status.get("phase") or ""
    started, finished = _containers(status.get("containerStatuses") or (), phase)
    scheduled, startable, initialized, containers, ready = (true_since.get(name, NEVER) for name in _POD_CONDITIONS)
    node, is_ready = spec.get("nodeName") or "", "Ready" in true_since
    return PodMilestones(node, phase, is_ready, scheduled, startable, initialized, started, containers, ready, finished)


def _containers(statuses: Iterable[Mapping[str, Any]], phase: str) -> tuple[float, float]:
    """Return the start of the last container, and its end if the pod has ended."""
    if phase != "Running" and phase not in OVER:
        return NEVER, NEVER
    started, finished = [], []
    for status in statuses:
        for name, state in (status.get("state") or {}).items():
            if name != "waiting" and state:
                started.append(seconds(state.get("startedAt") or ""))
                finished.append(seconds(state.get("finishedAt") or ""))
    return _latest(started), _latest(finished) if phase in OVER else NEVER


def _latest(times: Iterable[float]) -> float:
    return max((time for time in times if not isnan(time)), default=NEVER)


def is_stateless(manifest: Manifest) -> bool:
    """Return whether a pod has no persistent volume."""
    volumes = (manifest.get("spec") or {}).get("volumes") or ()
    return all(_STATELESS.issuperset(volume.keys() - {"name"}) for volume in volumes)


def pod_failure(manifest: Manifest) -> str:
    """Return why a pod failed."""
    status = manifest.get("status") or {}
    states = [(container.get("state") or {}).get("terminated") for container in status.get("containerStatuses") or ()]
    failed = next((state for state in states if state and state.get("exitCode")), None)
    reason = status.get("reason") or (failed or {}).get("reason") or "no reason given"
    return f"pod failed: {reason}" + (f", exit code {failed['exitCode']}" if failed else "")


# ----------------------------------------------------------------------------------------
# other objects


class WorkloadMilestones(NamedTuple):
    """State and timestamps of an object other than a pod."""

    started: bool
    ready: bool
    completed: bool
    failed: bool
    started_at: float
    ready_at: float
    over_at: float
    """When it completed or failed."""
    reason: str
    """Why it failed."""


def parse_workload(manifest: Manifest) -> WorkloadMilestones:
    """Parse an object of any kind except Pod."""
    kind, status = manifest.get("kind") or "", manifest.get("status") or {}
    true = {item.get("type"): item for item in status.get("conditions") or () if item.get("status") == "True"}
    for name in _phases(status):
        true.setdefault(name, {})
    completion, failure, start_condition = (_first(true, names) for names in (_COMPLETED, _FAILED, _STARTED))
    completed = completion is not None
    failed = failure is not None and not completed
    ready = completed or _is_ready(kind, manifest, status, true)
    end = status.get("completionTime") or status.get("finishedAt") or status.get("endTime")
    start = status.get("startTime") or status.get("startedAt")
    return WorkloadMilestones(
        started=bool(start) or start_condition is not None,
        ready=ready,
        completed=completed,
        failed=failed,
        started_at=_at(start, start_condition),
        ready_at=_ready_at(kind, manifest, true) if ready else NEVER,
        over_at=_at(end, completion if completed else failure) if completed or failed else NEVER,
        reason=_failure(kind, failure or {}) if failed else "",
    )


def _phases(status: Mapping[str, Any]) -> Iterable[str]:
    """Yield the phase of an object: `phase`, `state` or `state.phase`."""
    state = status.get("state")
    for phase in (status.get("phase"), state.get("phase") if isinstance(state, Mapping) else state):
        if isinstance(phase, str):
            yield phase


def _first(true: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> Mapping[str, Any] | None:
    return next((true[name] for name in names if name in true), None)


def _is_ready(kind: str, manifest: Manifest, status: Mapping[str, Any], true: Mapping[str, Any]) -> bool:
    if kind in REPLICATED:
        return _all_replicas_ready(kind, manifest, status)
    if kind in READY_ON_CREATION or "spec" not in manifest:
        return True
    return any(name in true for name in (*_READY, *_READY_PHASES))


def _all_replicas_ready(kind: str, manifest: Manifest, status: Mapping[str, Any]) -> bool:
    """Return whether all replicas are ready, for the observed generation."""
    if status.get("observedGeneration", 0) < (manifest["metadata"].get("generation") or 0):
        return False
    if kind == "DaemonSet":
        desired = status.get("desiredNumberScheduled")
        return desired is not None and bool(status.get("numberReady", 0) >= desired)
    replicas = (manifest.get("spec") or {}).get("replicas")
    return bool(status.get("readyReplicas", 0) >= (1 if replicas is None else replicas))


def _ready_at(kind: str, manifest: Manifest, true: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the timestamp of readiness. Most replicated kinds have none."""
    if kind == "Deployment":
        progressing = true.get("Progressing") or {}
        is_available = progressing.get("reason") == "NewReplicaSetAvailable"
        return _at(progressing.get("lastUpdateTime") if is_available else None, None)
    if kind in READY_ON_CREATION or "spec" not in manifest:
        return _at(manifest["metadata"].get("creationTimestamp"), None)
    return NEVER if kind in REPLICATED else _at(None, _first(true, _READY))


def _at(timestamp: object, condition: Mapping[str, Any] | None) -> float:
    """Return a time from a timestamp field, else from a condition."""
    fields = condition or {}
    text = timestamp or fields.get("lastTransitionMicroTime") or fields.get("lastTransitionTime")
    return seconds(text) if isinstance(text, str) else NEVER


def _failure(kind: str, condition: Mapping[str, Any]) -> str:
    reason, message = condition.get("reason") or "no reason given", condition.get("message") or ""
    return f"{kind} failed: {reason}" + (f": {message}" if message else "")
