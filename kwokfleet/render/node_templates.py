"""Node templates, from a file or a live cluster, without the identity of the original node."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

HOSTNAME = "kubernetes.io/hostname"

DEFAULT_NODE_INFO = {
    "architecture": "amd64",
    "containerRuntimeVersion": "kwok",
    "kernelVersion": "kwok",
    "kubeProxyVersion": "fake",
    "kubeletVersion": "fake",
    "operatingSystem": "linux",
    "osImage": "kwok",
}
"""Fields of nodeInfo that describe the kind of machine."""
_IDENTIFYING_SPEC = ("providerID", "podCIDR", "podCIDRs", "externalID")
_IDENTIFYING_STATUS = ("addresses", "conditions", "daemonEndpoints", "volumesAttached", "volumesInUse", "config")
LABELS_DROPPED = {HOSTNAME, objects.MANAGED_BY, objects.FLEET, objects.POOL, objects.LIFECYCLE, objects.SHARD}
"""Labels that kwokfleet sets on every node."""
_IDENTITY_WORDS = ("instance-id", "machine-id", "node-id", "nodeid", "hostname", "provider-id", "uid", "machine-name")
"""A label with one of these suffixes identifies a machine."""
_TRANSIENT_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "node.cilium.io/", "karpenter.sh/")
_AUTOSCALER_TAINTS = {"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"}
_KEPT_ANNOTATIONS = "cluster-autoscaler."
_VOLUME_LIMITS = "attachable-volumes-"
_ANNOTATIONS_DROPPED = (
    "kubernetes.io/", "cilium.io", "projectcalico.org", "flannel", "k3s.io", "rke2.io", "talos.dev", "k8s.aws",
)  # fmt: skip


def static_template(template: Manifest) -> Manifest:
    """Return a template of a Fleet file without fields that identify a node."""
    metadata = template.get("metadata") or {}
    labels = _without(metadata.get("labels"), LABELS_DROPPED)
    return {
        "metadata": {"labels": labels, "annotations": metadata.get("annotations") or {}},
        "spec": _without(template.get("spec"), _IDENTIFYING_SPEC),
        "status": _without(template.get("status"), _IDENTIFYING_STATUS),
    }


def _without(mapping: Mapping[str, Any] | None, keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in (mapping or {}).items() if key not in keys}


def sanitized_template(live: Manifest, *, saved: bool = False) -> Manifest:
    """Return a live node as a template, without fields that identify it.

    A *saved* one may be written by hand: it keeps its annotations, except those of kubelets, networks and kubectl.
    """
    metadata, spec, status = live.get("metadata") or {}, live.get("spec") or {}, live.get("status") or {}
    named = _without(metadata.get("labels"), LABELS_DROPPED)
    labels = {key: value for key, value in named.items() if not key.lower().endswith(_IDENTITY_WORDS)}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(_KEPT_ANNOTATIONS) or (saved and not any(word in key for word in _ANNOTATIONS_DROPPED))
    }
    taints = [
        dict(sorted(_without(taint, {"timeAdded"}).items()))
        for taint in spec.get("taints") or []
        if not taint.get("key", "").startswith(_TRANSIENT_TAINTS) and taint.get("key") not in _AUTOSCALER_TAINTS
    ]
    info = status.get("nodeInfo") or {}
    resources = {
        part: {name: value for name, value in (status.get(part) or {}).items() if not name.startswith(_VOLUME_LIMITS)}
        for part in ("capacity", "allocatable")
    }
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"taints": taints} if taints else {},
        "status": {**resources, "nodeInfo": {key: info[key] for key in DEFAULT_NODE_INFO if info.get(key)}},
    }


def is_fake(live: Manifest) -> bool:
    """Return whether a live node is fake, and not usable as a template."""
    return objects.FAKE_NODE_KEY in ((live.get("metadata") or {}).get("annotations") or {})


def matching_nodes(nodes: Iterable[Manifest], labels: Mapping[str, str], names: Sequence[str] = ()) -> list[Manifest]:
    """Return the nodes that have all *labels* (or one of *names*), sorted by name."""

    def matches(metadata: Manifest) -> bool:
        has_labels = labels.items() <= (metadata.get("labels") or {}).items()
        return has_labels and (not names or metadata.get("name") in names)

    matching = (node for node in nodes if matches(node.get("metadata") or {}))
    return sorted(matching, key=lambda node: str((node.get("metadata") or {}).get("name", "")))
