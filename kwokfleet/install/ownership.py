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

MARK = f"{objects.PREFIX}/install"
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
LASTING = ("Namespace", "CustomResourceDefinition")
"""Kinds that hold what others made: an upgrade never takes one away."""


class Whose(Enum):
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
class Refusal:
    """Why an object stands in the way."""

    key: ObjectKey
    whose: Whose
    where: str = ""
    """The namespace of the other installation."""


def kind(manifest: Manifest) -> Kind:
    """Return what a manifest's kind is called in a path."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def rank(manifest: Manifest) -> tuple[int, str, str]:
    """Return what objects are sorted by before they are applied; deleted in reverse."""
    key = objects.key(manifest)
    return _RANKS[key.kind], key.namespace, key.name


def marked(manifest: Manifest, namespace: str) -> Manifest:
    """Return an object with the mark of an installation."""
    labels = {**objects.labels(manifest), MARK: namespace}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


def whose(live: Manifest | None, namespace: str) -> Whose:
    """Return whose a live object is."""
    if live is None:
        return Whose.NOBODYS
    labels = objects.labels(live)
    if MARK in labels:
        return Whose.OURS if labels[MARK] == namespace else Whose.ELSEWHERE
    return Whose.KIN if labels.get(PART_OF) == objects.KWOKFLEET else Whose.FOREIGN


def stays(manifest: Manifest, live: Manifest | None, namespace: str) -> bool:
    """Return whether an object that was there before is used as it is: a namespace, a definition."""
    return manifest["kind"] in LASTING and whose(live, namespace) in (Whose.KIN, Whose.FOREIGN)


def refusals(
    wanted: Iterable[Manifest], live: Mapping[ObjectKey, Manifest], namespace: str, *, force: bool
) -> list[Refusal]:
    """Return what stands in the way of an installation; *force*: what is kwokfleet's anyway does not."""
    found: list[Refusal] = []
    for each in wanted:
        there = live.get(objects.key(each))
        owner = whose(there, namespace)
        if owner in (Whose.NOBODYS, Whose.OURS) or stays(each, there, namespace) or (force and owner is Whose.KIN):
            continue
        found.append(Refusal(objects.key(each), owner, objects.labels(there or each).get(MARK, "")))
    return found


def is_aggregated(of: Kind, manifest: Manifest) -> bool:
    """Return whether this is the role whose rules a controller fills in."""
    return (of.kind, manifest["metadata"]["name"]) == (AGGREGATED["kind"], AGGREGATED["metadata"]["name"])


def is_revived(live: Manifest) -> bool:
    """Return whether an aggregated role is only what its controller wrote once more, just after it was deleted."""
    entries = live["metadata"].get("managedFields") or ()
    return {each.get("manager") for each in entries} == {_AGGREGATOR} and MARK not in objects.labels(live)


def is_the_same(before: Manifest, after: Manifest) -> bool:
    """Return whether an apply changes nothing: the API server may count it as a change all the same."""
    return _timeless(before) == _timeless(after)


def _timeless(manifest: Manifest) -> Manifest:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _COUNTERS}
    entries = [{**each, "time": None} for each in metadata.get("managedFields") or ()]
    metadata["managedFields"] = sorted(entries, key=lambda each: json.dumps(each, sort_keys=True))
    return {**manifest, "metadata": metadata}


def left_to_others(manifest: Manifest, live: Manifest | None) -> Manifest:
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
