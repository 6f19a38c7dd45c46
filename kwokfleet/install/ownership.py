"""What an installation may touch: its own objects carry a label, and everything else is somebody's.

Installing marks what it makes, so that a later version can tell what to take away, and uninstalling leaves
what was there before: a namespace, kwok's definitions, objects that kubectl or Helm put in place.
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
"""A label of everything that `kwokfleet install` made; its value is the namespace of that installation."""
MANAGER = "kwokfleet-install"
"""The field manager of an installation; what the daemon writes is another's."""
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
"""Every kind that any version has installed, in the order of applying."""
_BY_NAME = {(each.api_version, each.kind): each for each in KINDS}
_RANKS = {each.kind: rank for rank, each in enumerate(KINDS)}
_COUNTERS = ("resourceVersion", "generation")
_AGGREGATOR = "clusterrole-aggregation-controller"
AGGREGATED: Manifest = {"apiVersion": _RBAC, "kind": "ClusterRole", "metadata": {"name": "kwokfleet-waves"}}
"""The role whose rules a controller fills in."""
PERSISTENT_KINDS = ("Namespace", "CustomResourceDefinition")
"""Kinds that hold what others made: an upgrade never takes one away."""


class Ownership(Enum):
    """Whose an object is that has a name of ours."""

    NOBODYS = auto()
    """It is not there."""
    OURS = auto()
    ELSEWHERE = auto()
    """Of an installation in another namespace."""
    KIN = auto()
    """kwokfleet's, but put in place by other means."""
    FOREIGN = auto()


@dataclass(frozen=True, slots=True)
class OwnershipConflict:
    """Why an object stands in the way."""

    key: ObjectKey
    whose: Ownership
    where: str = ""
    """The namespace of the other installation."""


def kind(manifest: Manifest) -> Kind:
    """Return what a manifest's kind is called in a path."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def rank(manifest: Manifest) -> tuple[int, str, str]:
    """Return what objects are sorted by before they are applied; deleted in reverse."""
    key = objects.key(manifest)
    return _RANKS[key.kind], key.namespace, key.name


def with_install_label(manifest: Manifest, namespace: str) -> Manifest:
    """Return an object with the mark of an installation."""
    labels = {**objects.labels(manifest), INSTALL_LABEL: namespace}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


def ownership_of(live: Manifest | None, namespace: str) -> Ownership:
    """Return whose a live object is."""
    if live is None:
        return Ownership.NOBODYS
    labels = objects.labels(live)
    if INSTALL_LABEL in labels:
        return Ownership.OURS if labels[INSTALL_LABEL] == namespace else Ownership.ELSEWHERE
    return Ownership.KIN if labels.get(PART_OF) == objects.KWOKFLEET else Ownership.FOREIGN


def is_left_unchanged(manifest: Manifest, live: Manifest | None, namespace: str) -> bool:
    """Return whether an object that was there before is used as it is: a namespace, a definition."""
    return manifest["kind"] in PERSISTENT_KINDS and ownership_of(live, namespace) in (Ownership.KIN, Ownership.FOREIGN)


def ownership_conflicts(
    wanted: Iterable[Manifest], live: Mapping[ObjectKey, Manifest], namespace: str, *, force: bool
) -> list[OwnershipConflict]:
    """Return what stands in the way of an installation; *force*: what is kwokfleet's anyway does not."""
    found: list[OwnershipConflict] = []
    for each in wanted:
        there = live.get(objects.key(each))
        owner = ownership_of(there, namespace)
        if (
            owner in (Ownership.NOBODYS, Ownership.OURS)
            or is_left_unchanged(each, there, namespace)
            or (force and owner is Ownership.KIN)
        ):
            continue
        found.append(OwnershipConflict(objects.key(each), owner, objects.labels(there or each).get(INSTALL_LABEL, "")))
    return found


def is_aggregated(of: Kind, manifest: Manifest) -> bool:
    """Return whether this is the role whose rules a controller fills in."""
    return (of.kind, manifest["metadata"]["name"]) == (AGGREGATED["kind"], AGGREGATED["metadata"]["name"])


def is_recreated(live: Manifest) -> bool:
    """Return whether an aggregated role is only what its controller wrote once more, just after it was deleted."""
    entries = live["metadata"].get("managedFields") or ()
    return {each.get("manager") for each in entries} == {_AGGREGATOR} and INSTALL_LABEL not in objects.labels(live)


def is_unchanged(before: Manifest, after: Manifest) -> bool:
    """Return whether an apply changes nothing: the API server may count it as a change all the same."""
    return _timeless(before) == _timeless(after)


def _timeless(manifest: Manifest) -> Manifest:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _COUNTERS}
    entries = [{**each, "time": None} for each in metadata.get("managedFields") or ()]
    metadata["managedFields"] = sorted(entries, key=lambda each: json.dumps(each, sort_keys=True))
    return {**manifest, "metadata": metadata}


def without_managed_fields(manifest: Manifest, live: Manifest | None) -> Manifest:
    """Return what to apply of an object without the fields that the daemon keeps, and those a controller fills in.

    The daemon sizes and configures kwok's StatefulSet: a second installation must not set it back.
    """
    if "aggregationRule" in manifest:
        manifest = {name: value for name, value in manifest.items() if name != "rules"}
    entries = ((live or {}).get("metadata") or {}).get("managedFields") or ()
    kept = observed.merge_fields(
        each.get("fieldsV1") or {}
        for each in entries
        if each.get("manager") == objects.FIELD_MANAGER and not each.get("subresource")
    )
    whole: Manifest = _without(manifest, kept)
    identity = {name: manifest[name] for name in ("apiVersion", "kind")}
    return {**whole, **identity, "metadata": {**whole["metadata"], "name": manifest["metadata"]["name"]}}


def _without(part: Any, kept: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part without the fields that somebody else keeps."""
    if isinstance(part, Mapping):
        made = {}
        for name, value in part.items():
            inner = kept.get(f"f:{name}")
            if inner is None:
                made[name] = value
            elif inner:
                made[name] = _without(value, inner)
        return made
    if isinstance(part, list):
        return [_without(each, _entry(each, kept)) for each in part]
    return part


def _entry(entry: Any, kept: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401  # any part of a manifest
    """Return what somebody else keeps of one entry of a list; what tells it from others stays ours."""
    for name, inner in kept.items():
        if name.startswith("k:") and isinstance(entry, Mapping):
            named = json.loads(name.removeprefix("k:"))
            if all(entry.get(key) == value for key, value in named.items()):
                return {field: below for field, below in inner.items() if field.removeprefix("f:") not in named}
    return {}
