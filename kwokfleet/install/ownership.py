"""Ownership of installed objects, by a label.

Install labels the objects it creates. An upgrade uses the label to delete surplus objects. Uninstall leaves objects
without it: an existing namespace, kwok's CRDs, objects installed by kubectl or Helm.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kwokfleet.kube import objects, observed
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import CRD_API_VERSION, Kind

INSTALL_LABEL = f"{objects.PREFIX}/install"
"""Label of objects created by `kwokfleet install`; its value is the namespace of the installation."""
MANAGER = "kwokfleet-install"
"""Field manager of an installation; the daemon uses another one."""
PART_OF = "app.kubernetes.io/part-of"

_RBAC = "rbac.authorization.k8s.io/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"
_MONITORING = "monitoring.coreos.com/v1"
KINDS = (
    Kind("v1", "Namespace", "namespaces"),
    Kind(CRD_API_VERSION, "CustomResourceDefinition", "customresourcedefinitions"),
    Kind("v1", "ServiceAccount", "serviceaccounts", namespaced=True),
    Kind(_RBAC, "ClusterRole", "clusterroles"),
    Kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    Kind(_RBAC, "Role", "roles", namespaced=True),
    Kind(_RBAC, "RoleBinding", "rolebindings", namespaced=True),
    Kind(_ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    Kind(_ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    Kind("v1", "ConfigMap", "configmaps", namespaced=True),
    Kind("coordination.k8s.io/v1", "Lease", "leases", namespaced=True),
    Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses"),
    Kind("v1", "Service", "services", namespaced=True),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", namespaced=True),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True),
    Kind(_MONITORING, "ServiceMonitor", "servicemonitors", namespaced=True),
    Kind(_MONITORING, "PrometheusRule", "prometheusrules", namespaced=True),
    Kind("apps/v1", "StatefulSet", "statefulsets", namespaced=True),
    Kind("apps/v1", "Deployment", "deployments", namespaced=True),
)
"""Every kind that any version installed, in apply order."""
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}
_RANKS = {kind.kind: rank for rank, kind in enumerate(KINDS)}
_COUNTERS = ("resourceVersion", "generation")
_AGGREGATOR = "clusterrole-aggregation-controller"
AGGREGATED: Manifest = {"apiVersion": _RBAC, "kind": "ClusterRole", "metadata": {"name": "kwokfleet-waves"}}
"""The role whose rules the aggregation controller writes."""
PERSISTENT_KINDS = ("Namespace", "CustomResourceDefinition")
"""Kinds that contain objects of others: an upgrade never deletes one."""


class Ownership(Enum):
    """Owner of an object with a name of ours."""

    ABSENT = auto()
    OURS = auto()
    OTHER_INSTALLATION = auto()
    """An installation in another namespace."""
    OTHER_TOOL = auto()
    """kwokfleet, installed by kubectl or Helm."""
    FOREIGN = auto()


@dataclass(frozen=True, slots=True)
class OwnershipConflict:
    """An object that blocks the installation."""

    key: ObjectKey
    whose: Ownership
    where: str = ""
    """Namespace of the other installation."""


def kind(manifest: Manifest) -> Kind:
    """Return the Kind of a manifest."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def rank(manifest: Manifest) -> tuple[int, str, str]:
    """Return the sort key of apply order."""
    key = objects.key(manifest)
    return _RANKS[key.kind], key.namespace, key.name


def with_install_label(manifest: Manifest, namespace: str) -> Manifest:
    """Return an object with the label of an installation."""
    labels = {**objects.labels(manifest), INSTALL_LABEL: namespace}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


def ownership_of(live: Manifest | None, namespace: str) -> Ownership:
    """Return the owner of a live object."""
    if live is None:
        return Ownership.ABSENT
    labels = objects.labels(live)
    if INSTALL_LABEL in labels:
        return Ownership.OURS if labels[INSTALL_LABEL] == namespace else Ownership.OTHER_INSTALLATION
    return Ownership.OTHER_TOOL if labels.get(PART_OF) == objects.KWOKFLEET else Ownership.FOREIGN


def is_left_unchanged(manifest: Manifest, live: Manifest | None, namespace: str) -> bool:
    """Return whether an existing namespace or CRD of another owner is used unchanged."""
    others = (Ownership.OTHER_TOOL, Ownership.FOREIGN)
    return manifest["kind"] in PERSISTENT_KINDS and ownership_of(live, namespace) in others


def ownership_conflicts(
    desired: Iterable[Manifest], live: Mapping[ObjectKey, Manifest], namespace: str, *, force: bool
) -> list[OwnershipConflict]:
    """Return the objects that block an installation; *force*: those of other tools do not."""
    conflicts: list[OwnershipConflict] = []
    for manifest in desired:
        live_object = live.get(objects.key(manifest))
        owner = ownership_of(live_object, namespace)
        is_allowed = owner in (Ownership.ABSENT, Ownership.OURS) or (force and owner is Ownership.OTHER_TOOL)
        if not is_allowed and not is_left_unchanged(manifest, live_object, namespace):
            where = objects.labels(live_object or manifest).get(INSTALL_LABEL, "")
            conflicts.append(OwnershipConflict(objects.key(manifest), owner, where))
    return conflicts


def is_aggregated(of: Kind, manifest: Manifest) -> bool:
    """Return whether this is the aggregated role."""
    return (of.kind, manifest["metadata"]["name"]) == (AGGREGATED["kind"], AGGREGATED["metadata"]["name"])


def is_recreated(live: Manifest) -> bool:
    """Return whether the aggregation controller recreated the role after its deletion."""
    entries = live["metadata"].get("managedFields") or ()
    return {entry.get("manager") for entry in entries} == {_AGGREGATOR} and INSTALL_LABEL not in objects.labels(live)


def is_unchanged(before: Manifest, after: Manifest) -> bool:
    """Return whether an apply changed nothing but counters and times."""
    return _timeless(before) == _timeless(after)


def _timeless(manifest: Manifest) -> Manifest:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _COUNTERS}
    entries = [{**entry, "time": None} for entry in metadata.get("managedFields") or ()]
    metadata["managedFields"] = sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True))
    return {**manifest, "metadata": metadata}


def without_managed_fields(manifest: Manifest, live: Manifest | None) -> Manifest:
    """Return an object to apply without fields managed by the daemon or the aggregation controller.

    The daemon sizes and configures kwok's StatefulSet: an upgrade must not reset it.
    """
    if "aggregationRule" in manifest:
        manifest = {name: value for name, value in manifest.items() if name != "rules"}
    entries = ((live or {}).get("metadata") or {}).get("managedFields") or ()
    managed = observed.merge_fields(
        entry.get("fieldsV1") or {}
        for entry in entries
        if entry.get("manager") == objects.FIELD_MANAGER and not entry.get("subresource")
    )
    remaining: Manifest = _without(manifest, managed)
    identity = {name: manifest[name] for name in ("apiVersion", "kind")}
    return {**remaining, **identity, "metadata": {**remaining["metadata"], "name": manifest["metadata"]["name"]}}


def _without(part: Any, managed: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part without the managed fields."""
    if isinstance(part, Mapping):
        remaining = {}
        for name, value in part.items():
            inner = managed.get(f"f:{name}")
            if inner is None:
                remaining[name] = value
            elif inner:
                remaining[name] = _without(value, inner)
        return remaining
    if isinstance(part, list):
        return [_without(entry, _entry(entry, managed)) for entry in part]
    return part


def _entry(entry: Any, managed: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401  # any part of a manifest
    """Return the managed fields of a list entry, without its merge keys."""
    for name, inner in managed.items():
        if name.startswith("k:") and isinstance(entry, Mapping):
            merge_keys = json.loads(name.removeprefix("k:"))
            if all(entry.get(key) == value for key, value in merge_keys.items()):
                return {field: below for field, below in inner.items() if field.removeprefix("f:") not in merge_keys}
    return {}
