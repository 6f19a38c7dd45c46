"""Node templates, from a file or a live cluster, without the identity of the original node."""

from collections.abc import Iterable, Mapping, Sequence

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

HOSTNAME = "kubernetes.io/hostname"

_NODE_INFO_KEPT = (
    "architecture",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "operatingSystem",
    "osImage",
)
"""Fields of nodeInfo that describe the kind of machine."""
LABELS_DROPPED = {HOSTNAME, objects.MANAGED_BY, objects.FLEET, objects.POOL, objects.LIFECYCLE, objects.SHARD}
"""Labels that kwokfleet sets on every node."""
_IDENTITY_WORDS = ("instance-id", "machine-id", "node-id", "nodeid", "hostname", "provider-id", "uid", "machine-name")
"""A label with one of these suffixes identifies a machine."""
_TRANSIENT_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "node.cilium.io/", "karpenter.sh/")
_AUTOSCALER_TAINTS = {"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"}
_KEPT_ANNOTATIONS = "cluster-autoscaler."
_ANNOTATIONS_DROPPED = (
    "kubernetes.io/",
    "cilium.io",
    "projectcalico.org",
    "flannel",
    "k3s.io",
    "rke2.io",
    "talos.dev",
    "k8s.aws",
)


def static_template(template: Manifest) -> Manifest:
    """Return a template of a Fleet file without fields that identify a node."""
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key not in LABELS_DROPPED}
    spec = {
        key: value
        for key, value in (template.get("spec") or {}).items()
        if key not in {"providerID", "podCIDR", "podCIDRs", "externalID"}
    }
    status = {
        key: value
        for key, value in (template.get("status") or {}).items()
        if key not in {"addresses", "conditions", "daemonEndpoints", "volumesAttached", "volumesInUse", "config"}
    }
    return {
        "metadata": {"labels": labels, "annotations": metadata.get("annotations") or {}},
        "spec": spec,
        "status": status,
    }


def sanitized_template(live: Manifest, *, saved: bool = False) -> Manifest:
    """Return a live node as a template, without fields that identify it.

    A *saved* one may be written by hand: it keeps its annotations, except those of kubelets, networks and kubectl.
    """
    metadata, spec, status = live.get("metadata") or {}, live.get("spec") or {}, live.get("status") or {}
    labels = {
        key: value
        for key, value in (metadata.get("labels") or {}).items()
        if key not in LABELS_DROPPED and not key.lower().endswith(_IDENTITY_WORDS)
    }
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(_KEPT_ANNOTATIONS) or (saved and not any(word in key for word in _ANNOTATIONS_DROPPED))
    }
    taints = [
        {key: value for key, value in sorted(taint.items()) if key != "timeAdded"}
        for taint in spec.get("taints") or []
        if not taint.get("key", "").startswith(_TRANSIENT_TAINTS) and taint.get("key") not in _AUTOSCALER_TAINTS
    ]
    info = status.get("nodeInfo") or {}
    resources = {
        part: {
            name: value
            for name, value in (status.get(part) or {}).items()
            if not name.startswith("attachable-volumes-")
        }
        for part in ("capacity", "allocatable")
    }
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"taints": taints} if taints else {},
        "status": {**resources, "nodeInfo": {key: info[key] for key in _NODE_INFO_KEPT if info.get(key)}},
    }


def is_fake(live: Manifest) -> bool:
    """Return whether a live node is fake, and not usable as a template."""
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    return objects.FAKE_NODE_KEY in annotations


def matching_nodes(nodes: Iterable[Manifest], labels: Mapping[str, str], names: Sequence[str] = ()) -> list[Manifest]:
    """Return the nodes that have all *labels* (or one of *names*), sorted by name."""
    matching = []
    for node in nodes:
        metadata = node.get("metadata") or {}
        node_labels = metadata.get("labels") or {}
        if all(node_labels.get(key) == value for key, value in labels.items()) and (
            not names or metadata.get("name") in names
        ):
            matching.append(node)
    return sorted(matching, key=lambda node: str((node.get("metadata") or {}).get("name", "")))
