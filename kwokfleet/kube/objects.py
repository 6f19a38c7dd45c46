"""Kubernetes objects as plain values: what they are called, how they are told apart, how one is laid over another."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Manifest = dict[str, Any]
"""An object as the API server reads it. Parts may be shared between manifests: never change one in place."""

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
"""An annotation: for which changed Stages an object was last shown to kwok."""
SHARD = f"{PREFIX}/shard"
"""A label: which of several kwok processes drives a node."""
OWN_TAINTS = f"{PREFIX}/taints"
"""An annotation: the taints that we put on a node. Its list of taints is one field with many writers, so that
nothing else tells whose an entry is."""

APPROVED = f"{PREFIX}/approved"
"""An annotation of a Fleet in the cluster: the digest of the plan that may be carried out."""
SUSPEND = f"{PREFIX}/suspend"
"""An annotation of a Fleet in the cluster: "true" leaves everything of it as it is."""
RUN_COMMANDS = f"{PREFIX}/orders"
"""An annotation of a Fleet in the cluster: what somebody wants of its Runs."""
CHURN_ROUND = f"{PREFIX}/round"
"""An annotation of a Run's object: the round of churn that it was made in."""
DIGEST = f"{PREFIX}/digest"
"""An annotation of our own definitions: what they were written from."""

FAKE_NODE_KEY = "kwok.x-k8s.io/node"
FAKE_NODE_VALUE = "fake"
FAKE_NODE_TAINT = {"effect": "NoSchedule", "key": FAKE_NODE_KEY, "value": FAKE_NODE_VALUE}
AUTOSCALER_TAINT_KEY = "kwok-provider"
"""The taint that the cluster-autoscaler's kwok provider puts on the nodes it makes."""

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
"""kwok's kinds beside Stage, and what they are called in a path."""
API_VERSION = f"{PREFIX}/v1alpha1"
FIELD_MANAGER = KWOKFLEET
"""The field manager under which everything is written."""

_MERGE_KEYS = {
    "taints": ("key", "effect"),
    "conditions": ("type",),
    "addresses": ("type",),
    "tolerations": ("key", "effect"),
}
"""Lists that are merged entry by entry, and what tells their entries apart."""
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
    """What tells one object from all others."""

    api_version: str
    kind: str
    namespace: str
    name: str


def key(manifest: Manifest) -> ObjectKey:
    """Return what tells *manifest* from all others."""
    metadata = manifest["metadata"]
    return ObjectKey(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def apply_rank(kind: str) -> int:
    """Return when objects of *kind* are applied: lower first; deleted in reverse."""
    return _RANKS.get(kind, _LAST_RANK)


def overlay(base: Any, top: Any, name: str = "") -> Any:  # noqa: ANN401  # any part of a manifest
    """Return *top* laid over *base*: mappings merge, keyed lists merge by entry, all else is replaced."""
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
    found: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return found


def run_of(manifest: Manifest) -> tuple[str, str, str]:
    """Return the Fleet, Wave and Run that an object belongs to."""
    found = labels(manifest)
    return found.get(FLEET, ""), found.get(WAVE, ""), found.get(RUN, "")


def is_fake_node(manifest: Manifest) -> bool:
    """Return whether a node says that it is fake; no other node is ever changed or deleted."""
    annotations = manifest["metadata"].get("annotations") or {}
    return bool(annotations.get(FAKE_NODE_KEY) == FAKE_NODE_VALUE)


def is_managed(manifest: Manifest) -> bool:
    """Return whether an object may be changed or deleted at all: it has our label and, if a node, is fake."""
    return labels(manifest).get(MANAGED_BY) == KWOKFLEET and (manifest["kind"] != "Node" or is_fake_node(manifest))
