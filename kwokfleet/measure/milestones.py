"""How far an object has come, as its own manifest says: read from raw manifests, once for each event.

A watch brings every object many times over, nearly always with timestamps that were read before:
these are remembered by their text. Times are seconds since 1970; NaN is "it says nothing of that".
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from math import nan
from typing import Any, NamedTuple

from kwokfleet.kube.objects import Manifest

NEVER = nan
OVER = frozenset({"Succeeded", "Failed"})
REPLICATED = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet"})
"""Kinds that are complete when as many replicas are ready as are wanted."""
AT_ONCE = frozenset(
    {"Ingress", "Lease", "LimitRange", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "Service"}
)
"""Kinds that have a spec and nothing to wait for; what has no spec is complete at once as well."""
_STATELESS = frozenset({"emptyDir", "downwardAPI", "configMap", "secret", "projected"})
"""Volumes with which a pod still counts as stateless, as ClusterLoader2 sees it."""
_COMPLETED = ("Complete", "Completed", "Succeeded", "Finished")
_FAILED = ("Failed",)
_READY = ("Ready", "Available")
_STARTED = ("Started", "Running", "Dispatched", "Admitted")
"""What custom kinds call it, in their conditions or their phase: Kubeflow, JobSet, Kueue, MCAD, Argo, Volcano."""
_FINE = ("Active", "Bound")
"""Phases of kinds that are ready then: namespaces, claims."""


@lru_cache(maxsize=16_384)
def seconds(text: str) -> float:
    """Return the time that an RFC 3339 text means, NaN if it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return NEVER


class PodState(NamedTuple):
    """What a pod says of itself."""

    node: str
    phase: str
    ready: bool
    scheduled_at: float
    ready_to_start_at: float
    initialized_at: float
    started_at: float
    """When the last of its containers started."""
    containers_ready_at: float
    ready_at: float
    over_at: float


def parse_pod(manifest: Manifest) -> PodState:
    """Read a pod."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    since: dict[str, float] = {}
    for each in status.get("conditions") or ():
        if each.get("status") == "True":
            since[each.get("type")] = seconds(each.get("lastTransitionTime") or "")
    phase = status.get("phase") or ""
    started, finished = _containers(status.get("containerStatuses") or (), phase)
    return PodState(
        spec.get("nodeName") or "",
        phase,
        "Ready" in since,
        since.get("PodScheduled", NEVER),
        since.get("PodReadyToStartContainers", NEVER),
        since.get("Initialized", NEVER),
        started,
        since.get("ContainersReady", NEVER),
        since.get("Ready", NEVER),
        finished,
    )


def _containers(statuses: Iterable[Mapping[str, Any]], phase: str) -> tuple[float, float]:
    """Return when the last container started, once the pod runs, and ended, once it is over."""
    if phase != "Running" and phase not in OVER:
        return NEVER, NEVER
    started, finished = [], []
    for each in statuses:
        for name, state in (each.get("state") or {}).items():
            if name != "waiting" and state:
                started.append(seconds(state.get("startedAt") or ""))
                finished.append(seconds(state.get("finishedAt") or ""))
    return _latest(started), _latest(finished) if phase in OVER else NEVER


def _latest(times: Iterable[float]) -> float:
    return max((each for each in times if each == each), default=NEVER)  # noqa: PLR0124  # NaN is not itself


def is_stateless(manifest: Manifest) -> bool:
    """Return whether all of a pod's volumes are of a kind that keeps nothing."""
    volumes = (manifest.get("spec") or {}).get("volumes") or ()
    return all(_STATELESS.issuperset(each.keys() - {"name"}) for each in volumes)


def pod_failure(manifest: Manifest) -> str:
    """Return why a pod failed, as short as it says so."""
    status = manifest.get("status") or {}
    ended = [(each.get("state") or {}).get("terminated") for each in status.get("containerStatuses") or ()]
    bad = next((each for each in ended if each and each.get("exitCode")), None)
    reason = status.get("reason") or (bad or {}).get("reason") or "no reason given"
    return f"pod failed: {reason}" + (f", exit code {bad['exitCode']}" if bad else "")


# ----------------------------------------------------------------------------------------
# other objects


class WorkloadState(NamedTuple):
    """What an object that is no pod says of itself."""

    started: bool
    ready: bool
    completed: bool
    failed: bool
    started_at: float
    ready_at: float
    over_at: float
    """When it completed or failed."""
    why: str
    """Why it failed."""


def parse_workload(manifest: Manifest) -> WorkloadState:
    """Read an object of any kind but Pod."""
    kind, status = manifest.get("kind") or "", manifest.get("status") or {}
    true = {each.get("type"): each for each in status.get("conditions") or () if each.get("status") == "True"}
    for name in _phases(status):
        true.setdefault(name, {})
    done, bad, begun = _first(true, _COMPLETED), _first(true, _FAILED), _first(true, _STARTED)
    completed = done is not None
    failed = bad is not None and not completed
    ready = completed or _ready(kind, manifest, status, true)
    ended = status.get("completionTime") or status.get("finishedAt") or status.get("endTime")
    began = status.get("startTime") or status.get("startedAt")
    return WorkloadState(
        started=bool(began) or begun is not None,
        ready=ready,
        completed=completed,
        failed=failed,
        started_at=_at(began, begun),
        ready_at=_ready_at(kind, manifest, true) if ready else NEVER,
        over_at=_at(ended, done if completed else bad) if completed or failed else NEVER,
        why=_why(kind, bad or {}) if failed else "",
    )


def _phases(status: Mapping[str, Any]) -> Iterable[str]:
    """Yield what an object says that it is in one word: `phase`, `state`, or the phase within its state."""
    state = status.get("state")
    for each in (status.get("phase"), state.get("phase") if isinstance(state, Mapping) else state):
        if isinstance(each, str):
            yield each


def _first(true: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> Mapping[str, Any] | None:
    return next((true[name] for name in names if name in true), None)


def _ready(kind: str, manifest: Manifest, status: Mapping[str, Any], true: Mapping[str, Any]) -> bool:
    if kind in REPLICATED:
        return _all_replicas(kind, manifest, status)
    if kind in AT_ONCE or "spec" not in manifest:
        return True
    return any(name in true for name in (*_READY, *_FINE))


def _all_replicas(kind: str, manifest: Manifest, status: Mapping[str, Any]) -> bool:
    """Return whether as many are ready as are wanted, and the controller has seen the present wish."""
    if status.get("observedGeneration", 0) < (manifest["metadata"].get("generation") or 0):
        return False
    if kind == "DaemonSet":
        return bool(
            "desiredNumberScheduled" in status and status.get("numberReady", 0) >= status["desiredNumberScheduled"]
        )
    wanted = (manifest.get("spec") or {}).get("replicas")
    return bool(status.get("readyReplicas", 0) >= (1 if wanted is None else wanted))


def _ready_at(kind: str, manifest: Manifest, true: Mapping[str, Mapping[str, Any]]) -> float:
    """Return what it says of when it was ready; most replicated kinds say nothing of it."""
    if kind == "Deployment":
        rolled = true.get("Progressing") or {}
        return _at(rolled.get("lastUpdateTime") if rolled.get("reason") == "NewReplicaSetAvailable" else None, None)
    if kind in AT_ONCE or "spec" not in manifest:
        return _at(manifest["metadata"].get("creationTimestamp"), None)
    return NEVER if kind in REPLICATED else _at(None, _first(true, _READY))


def _at(written: object, condition: Mapping[str, Any] | None) -> float:
    """Return a time from its own field or, without one, from a condition."""
    where = condition or {}
    text = written or where.get("lastTransitionMicroTime") or where.get("lastTransitionTime")
    return seconds(text) if isinstance(text, str) else NEVER


def _why(kind: str, condition: Mapping[str, Any]) -> str:
    reason, message = condition.get("reason") or "no reason given", condition.get("message") or ""
    return f"{kind} failed: {reason}" + (f": {message}" if message else "")
