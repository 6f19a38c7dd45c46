"""Rollout status: why an installation is not ready yet, in one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from kwokfleet.kube.objects import Manifest

_HARMLESS = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of a starting container."""
_WORDS = 300
_FEW = 3


def is_established(definition: Manifest) -> bool:
    """Return whether the API server serves the kind of a definition."""
    return any(each["type"] == "Established" and each["status"] == "True" for each in _conditions(definition))


def daemon_pending(deployment: Manifest, pods: Sequence[Manifest]) -> str:
    """Return why a Deployment is not rolled out; empty if it is."""
    wanted, status = deployment["spec"].get("replicas", 1), deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "not observed by the Deployment controller yet; check that the controller manager is running"
    available, updated, total = (
        int(status.get(name) or 0) for name in ("availableReplicas", "updatedReplicas", "replicas")
    )
    if updated == wanted == available and total == wanted:
        return ""
    count = f"{min(available, updated)} of {wanted} pods available"
    if total > updated == wanted:
        count = f"{total - updated} pods of the previous version still terminating"
    why = [each["message"] for each in _conditions(deployment) if each["type"] == "ReplicaFailure"]
    why += [trouble for pod in pods if (trouble := pod_problem(pod))]
    return ": ".join([count, *(["; ".join(sorted(set(why))[:_FEW])] if why else [])])[:_WORDS]


def pod_problem(pod: Manifest) -> str:
    """Return why a pod does not run; empty if it runs or starts."""
    status = pod.get("status") or {}
    said = f"pod {pod['metadata']['name']}"
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if why := _container_trouble(each):
            return f"{said}: {why}"
    for each in _conditions(pod):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{said} is not scheduled: {each.get('message') or each.get('reason', '')}"
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


def fleets_pending(fleets: Iterable[Manifest], wanted: AbstractSet[str] | None, digest: str) -> str:
    """Return why Fleets are not Ready; empty if all are.

    *wanted*: names of the Fleets; None: every Fleet, at least one. *digest*: of the files that they must have been
    synced from; empty: any.
    """
    found = {each["metadata"]["name"]: each for each in fleets}
    if wanted is None and not found:
        return "no fleet exists yet"
    lacking = [
        f"fleet {name}: {why}"
        for name in sorted(found if wanted is None else wanted)
        if (why := _fleet_lacks(found.get(name), digest))
    ]
    more = f"; and {len(lacking) - _FEW} more" if len(lacking) > _FEW else ""
    return "; ".join(lacking[:_FEW]) + more


def _fleet_lacks(fleet: Manifest | None, digest: str) -> str:
    if fleet is None:
        return "does not exist yet"
    ready = next((each for each in _conditions(fleet) if each["type"] == "Ready"), {})
    if digest and ((fleet.get("status") or {}).get("source") or {}).get("digest") != digest:
        return (
            "the daemon has not read the new files yet; a changed ConfigMap takes one to two minutes to reach the pod"
        )
    degraded = next((each for each in _conditions(fleet) if each["type"] == "Degraded"), {})
    if degraded.get("status") == "True":
        return str(degraded.get("message") or "kwok does not drive its nodes")[:_WORDS]
    if ready.get("status") == "True":
        return ""
    return str(ready.get("message") or "not Ready yet")[:_WORDS]


def _conditions(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    return (manifest.get("status") or {}).get("conditions") or ()
