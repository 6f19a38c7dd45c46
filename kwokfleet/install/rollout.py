"""How far an installation has come: what is still waited for, in a sentence that says why."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from kwokfleet.kube.objects import Manifest

_HARMLESS = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that is on its way."""
_WORDS = 300
_FEW = 3


def is_established(definition: Manifest) -> bool:
    """Return whether the API server serves what a definition defines."""
    return any(each["type"] == "Established" and each["status"] == "True" for each in _conditions(definition))


def daemon_pending(deployment: Manifest, pods: Sequence[Manifest]) -> str:
    """Return what a Deployment waits for; nothing if all its pods are new and available."""
    wanted, status = deployment["spec"].get("replicas", 1), deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "the Deployment is not looked at yet: is the controller manager running?"
    available, updated, total = (
        int(status.get(name) or 0) for name in ("availableReplicas", "updatedReplicas", "replicas")
    )
    if updated == wanted == available and total == wanted:
        return ""
    count = f"{min(available, updated)} of {wanted} pods available"
    if total > updated == wanted:
        count = f"{total - updated} pods of the version before still there"
    why = [each["message"] for each in _conditions(deployment) if each["type"] == "ReplicaFailure"]
    why += [trouble for pod in pods if (trouble := pod_problem(pod))]
    return ": ".join([count, *(["; ".join(sorted(set(why))[:_FEW])] if why else [])])[:_WORDS]


def pod_problem(pod: Manifest) -> str:
    """Return why a pod does not run; nothing if it does, or is about to."""
    status = pod.get("status") or {}
    said = f"pod {pod['metadata']['name']}"
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if why := _container_trouble(each):
            return f"{said}: {why}"
    for each in _conditions(pod):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{said} has no machine: {each.get('message') or each.get('reason', '')}"
    return ""


def _container_trouble(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if waiting.get("reason") and waiting["reason"] not in _HARMLESS:
        why = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        return f"{why} (it ended with {ended['exitCode']})" if ended else why
    if ended and not container.get("ready"):
        return f"{container['name']} ended with {ended['exitCode']} ({ended.get('reason', 'Error')})"
    return ""


def fleets_pending(fleets: Iterable[Manifest], wanted: AbstractSet[str] | None, digest: str) -> str:
    """Return what Fleets wait for; nothing if all are Ready.

    *wanted*: which there must be; None, whatever the files hold, but at least one. *digest*: of the files that they
    must have been made from; empty if nobody can tell.
    """
    found = {each["metadata"]["name"]: each for each in fleets}
    if wanted is None and not found:
        return "no fleet is known yet"
    lacking = [
        f"fleet {name}: {why}"
        for name in sorted(found if wanted is None else wanted)
        if (why := _fleet_lacks(found.get(name), digest))
    ]
    more = f"; and {len(lacking) - _FEW} more" if len(lacking) > _FEW else ""
    return "; ".join(lacking[:_FEW]) + more


def _fleet_lacks(fleet: Manifest | None, digest: str) -> str:
    if fleet is None:
        return "not known yet"
    ready = next((each for each in _conditions(fleet) if each["type"] == "Ready"), {})
    if digest and ((fleet.get("status") or {}).get("source") or {}).get("digest") != digest:
        return "the daemon has not read the new files yet; a ConfigMap takes up to a minute or two to get there"
    degraded = next((each for each in _conditions(fleet) if each["type"] == "Degraded"), {})
    if degraded.get("status") == "True":
        return str(degraded.get("message") or "its nodes are not driven")[:_WORDS]
    if ready.get("status") == "True":
        return ""
    return str(ready.get("message") or "not Ready yet")[:_WORDS]


def _conditions(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    return (manifest.get("status") or {}).get("conditions") or ()
