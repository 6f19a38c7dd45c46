"""Manifests and observed objects for tests of diffs and plans."""

import copy
from typing import Any

from kwokfleet.kube import objects, observed
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.render import nodes


def node(name: str = "lab-gpu-0", *, fleet: str = "lab", pool: str = "gpu", **parts: Any) -> Manifest:  # noqa: ANN401  # of a manifest
    """Return the desired Node of a pool; *parts*: labels, annotations, taints, capacity, spec, status."""
    taints = parts.get("taints", [objects.FAKE_NODE_TAINT])
    own = {objects.OWN_TAINTS: listed} if (listed := nodes.own_taints(taints)) else {}
    labels = {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: fleet, objects.POOL: pool}
    capacity = parts.get("capacity", {"cpu": "32"})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels | parts.get("labels", {}),
            "annotations": {objects.FAKE_NODE_KEY: objects.FAKE_NODE_VALUE} | own | parts.get("annotations", {}),
        },
        "spec": ({"taints": taints} if taints else {}) | parts.get("spec", {}),
        "status": {"capacity": capacity, "allocatable": capacity} | parts.get("status", {}),
    }


def stage(name: str = "pod-ready", *, fleet: str = "", **spec: Any) -> Manifest:  # noqa: ANN401  # of a manifest
    """Return a Stage, shared or of one Fleet."""
    labels = {objects.MANAGED_BY: objects.KWOKFLEET} | ({objects.FLEET: fleet} if fleet else {})
    return {
        "apiVersion": objects.STAGE_API_VERSION,
        "kind": "Stage",
        "metadata": {"name": name, "labels": labels},
        "spec": {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, **spec},
    }


def namespace(name: str = "work") -> Manifest:
    """Return a managed Namespace."""
    labels = {objects.MANAGED_BY: objects.KWOKFLEET}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def fields(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of an object in the format of `managedFields`."""
    return {f"f:{name}": fields(part) if isinstance(part, dict) else {} for name, part in manifest.items()}


def owned_fields(manifest: Manifest) -> dict[str, Any]:
    """Return the fields that the creator owns: all except status."""
    metadata = {key: manifest["metadata"].get(key) or {} for key in ("labels", "annotations")}
    rest = {key: part for key, part in manifest.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    return fields({"metadata": metadata, **rest})


def observe(
    manifest: Manifest,
    ours: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    **metadata: Any,  # noqa: ANN401  # of a manifest
) -> Observed:
    """Return an observed object. We own *ours*, by default all fields; a kubelet owns *theirs*."""
    raw = copy.deepcopy(manifest)
    managers = [
        {"manager": objects.FIELD_MANAGER, "fieldsV1": owned_fields(manifest) if ours is None else ours},
        {"manager": "kubelet", "fieldsV1": theirs or {}},
    ]
    name = raw["metadata"]["name"]
    raw["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "7", "managedFields": managers} | metadata
    return observed.ObservedFactory().from_manifest(raw["apiVersion"], raw["kind"], raw)
