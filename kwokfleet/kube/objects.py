"""Kubernetes objects as plain values: labels and annotations of kwokfleet, keys, apply order, overlays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Manifest = dict[str, Any]
"""An object as JSON. Manifests may share parts: never change one in place."""

PREFIX = "kwokfleet.dev"
MANAGED_BY = "app.kubernetes.io/managed-by"
KWOKFLEET = "kwokfleet"
FLEET = f"{PREFIX}/fleet"
POOL = f"{PREFIX}/pool"
WAVE = f"{PREFIX}/wave"
RUN = f"{PREFIX}/run"
INDEX = f"{PREFIX}/index"
LIFECYCLE = f"{PREFIX}/lifecycle"
STAGE_SET = f"{PREFIX}/stage-set"
USAGE = f"{PREFIX}/usage"
REQUEUE = f"{PREFIX}/stages"
"""Annotation: digest of the changed Stages for which kwok last processed an object again."""
SHARD = f"{PREFIX}/shard"
"""Label: the kwok shard of a node."""
OWN_TAINTS = f"{PREFIX}/taints"
"""Annotation: the taints that kwokfleet put on a node. `spec.taints` has many writers and one field owner."""

APPROVED = f"{PREFIX}/approved"
"""Annotation of a Fleet: the digest of the approved plan."""
SUSPEND = f"{PREFIX}/suspend"
"""Annotation of a Fleet: "true" stops all changes of its objects."""
RUN_COMMANDS = f"{PREFIX}/orders"
"""Annotation of a Fleet: commands for its Runs."""
CHURN_ROUND = f"{PREFIX}/round"
"""Annotation of an object of a Run: the churn round that created it."""
DIGEST = f"{PREFIX}/digest"
"""Annotation of our CustomResourceDefinitions: the digest of their source."""

FAKE_NODE_KEY = "kwok.x-k8s.io/node"
FAKE_NODE_VALUE = "fake"
FAKE_NODE_TAINT = {"effect": "NoSchedule", "key": FAKE_NODE_KEY, "value": FAKE_NODE_VALUE}
AUTOSCALER_TAINT_KEY = "kwok-provider"
"""Taint of nodes that the cluster-autoscaler's kwok provider creates."""

STAGE_API_VERSION = "kwok.x-k8s.io/v1alpha1"
KWOK_CLUSTER_KINDS = {
    "ClusterAttach": "clusterattaches",
    "ClusterExec": "clusterexecs",
    "ClusterLogs": "clusterlogs",
    "ClusterPortForward": "clusterportforwards",
    "ClusterResourceUsage": "clusterresourceusages",
    "Metric": "metrics",
}
KWOK_NAMESPACED_KINDS = {
    "Attach": "attaches",
    "Exec": "execs",
    "Logs": "logs",
    "PortForward": "portforwards",
    "ResourceUsage": "resourceusages",
}
"""kwok's kinds other than Stage, with their resource names."""
API_VERSION = f"{PREFIX}/v1alpha1"
FIELD_MANAGER = KWOKFLEET
"""Field manager of all writes."""

_MERGE_KEYS = {
    "taints": ("key", "effect"),
    "conditions": ("type",),
    "addresses": ("type",),
    "tolerations": ("key", "effect"),
}
"""Lists that are merged entry by entry, with the keys of an entry."""
_RANKS = {
    "CustomResourceDefinition": 0,
    "Stage": 1,
    **dict.fromkeys(KWOK_CLUSTER_KINDS, 1),
    "Namespace": 2,
    "ConfigMap": 3,
    **dict.fromkeys(KWOK_NAMESPACED_KINDS, 3),
    "StorageClass": 3,
    "Node": 4,
}
_LAST_RANK = 5


class ObjectKey(NamedTuple):
    """Unique key of an object."""

    api_version: str
    kind: str
    namespace: str
    name: str


def key(manifest: Manifest) -> ObjectKey:
    """Return the key of an object."""
    metadata = manifest["metadata"]
    return ObjectKey(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def apply_rank(kind: str) -> int:
    """Return the position of a kind in the apply order; deletes use the reverse order."""
    return _RANKS.get(kind, _LAST_RANK)


def overlay(base: Any, top: Any, name: str = "") -> Any:  # noqa: ANN401  # any part of a manifest
    """Return *base* with the values of *top*: mappings merge, keyed lists merge by entry, other values are replaced."""
    if isinstance(base, Mapping) and isinstance(top, Mapping):
        merged = dict(base)
        for inner, value in top.items():
            merged[inner] = overlay(base[inner], value, inner) if inner in base else value
        return merged
    if isinstance(base, list) and isinstance(top, list) and name in _MERGE_KEYS:
        return _merge_list(base, top, _MERGE_KEYS[name])
    return top


def _merge_list(base: list[Any], top: list[Any], keys: tuple[str, ...]) -> list[Any]:
    def identity(entry: Any) -> tuple[Any, ...]:  # noqa: ANN401  # any part of a manifest
        return tuple(entry.get(name) for name in keys) if isinstance(entry, Mapping) else (entry,)

    merged = {identity(entry): entry for entry in base}
    merged.update((identity(entry), entry) for entry in top)
    return list(merged.values())


def labels(manifest: Manifest) -> Mapping[str, str]:
    """Return an object's labels."""
    mapping: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return mapping


def has_condition(manifest: Manifest, name: str) -> bool:
    """Return whether a condition of an object is True."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == name and condition["status"] == "True" for condition in conditions)


def run_of(manifest: Manifest) -> tuple[str, str, str]:
    """Return the Fleet, Wave and Run of an object."""
    mapping = labels(manifest)
    return mapping.get(FLEET, ""), mapping.get(WAVE, ""), mapping.get(RUN, "")


def is_fake_node(manifest: Manifest) -> bool:
    """Return whether a node is marked as fake; no other node is ever changed or deleted."""
    annotations = manifest["metadata"].get("annotations") or {}
    return bool(annotations.get(FAKE_NODE_KEY) == FAKE_NODE_VALUE)


def is_managed(manifest: Manifest) -> bool:
    """Return whether an object may be changed or deleted: it has our label, and a node is fake."""
    return labels(manifest).get(MANAGED_BY) == KWOKFLEET and (manifest["kind"] != "Node" or is_fake_node(manifest))
