"""Rollout status: why an installation is not ready yet, in one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

_HARMLESS = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of a starting container."""
_WORDS = 300
_FEW = 3


def daemon_pending(deployment: Manifest, pods: Sequence[Manifest]) -> str:
    """Return why a Deployment is not rolled out; empty if it is."""
    desired, status = deployment["spec"].get("replicas", 1), deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "not observed by the Deployment controller yet; check that the controller manager is running"
    counts = ("availableReplicas", "updatedReplicas", "replicas")
    available, updated, total = (int(status.get(name) or 0) for name in counts)
    if updated == desired == available and total == desired:
        return ""
    count = f"{min(available, updated)} of {desired} pods available"
    if total > updated == desired:
        count = f"{total - updated} pods of the previous version still terminating"
    reasons = [condition["message"] for condition in _conditions(deployment) if condition["type"] == "ReplicaFailure"]
    reasons += [problem for pod in pods if (problem := pod_problem(pod))]
    return ": ".join([count, *(["; ".join(sorted(set(reasons))[:_FEW])] if reasons else [])])[:_WORDS]


def pod_problem(pod: Manifest) -> str:
    """Return why a pod does not run; empty if it runs or starts."""
    status = pod.get("status") or {}
    name = f"pod {pod['metadata']['name']}"
    for entry in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if problem := _container_trouble(entry):
            return f"{name}: {problem}"
    for entry in _conditions(pod):
        if entry["type"] == "PodScheduled" and entry["status"] == "False":
            return f"{name} is not scheduled: {entry.get('message') or entry.get('reason', '')}"
    return ""


def _container_trouble(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if waiting.get("reason") and waiting["reason"] not in _HARMLESS:
        why = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        return f"{why} (exit code {ended['exitCode']})" if ended else why
    if ended and not container.get("ready"):
        return f"{container['name']} exited with code {ended['exitCode']} ({ended.get('reason', 'Error')})"
    return ""


def fleets_pending(fleets: Iterable[Manifest], expected: AbstractSet[str] | None, digest: str) -> str:
    """Return why Fleets are not Ready; empty if all are.

    *expected*: names of the Fleets; None: every Fleet, at least one. *digest*: of the files that they must have been
    synced from; empty: any.
    """
    by_name = {fleet["metadata"]["name"]: fleet for fleet in fleets}
    if expected is None and not by_name:
        return "no fleet exists yet"
    pending = [
        f"fleet {name}: {why}"
        for name in sorted(by_name if expected is None else expected)
        if (why := _fleet_lacks(by_name.get(name), digest))
    ]
    return "; ".join(pending[:_FEW]) + (f"; and {len(pending) - _FEW} more" if len(pending) > _FEW else "")


def _fleet_lacks(fleet: Manifest | None, digest: str) -> str:
    if fleet is None:
        return "does not exist yet"
    if digest and ((fleet.get("status") or {}).get("source") or {}).get("digest") != digest:
        delay = "a changed ConfigMap takes one to two minutes to reach the pod"
        return f"the daemon has not read the new files yet; {delay}"
    messages = {condition["type"]: condition.get("message") for condition in _conditions(fleet)}
    if objects.has_condition(fleet, "Degraded"):
        return str(messages["Degraded"] or "kwok does not drive its nodes")[:_WORDS]
    return "" if objects.has_condition(fleet, "Ready") else str(messages.get("Ready") or "not Ready yet")[:_WORDS]


def _conditions(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    return (manifest.get("status") or {}).get("conditions") or ()
