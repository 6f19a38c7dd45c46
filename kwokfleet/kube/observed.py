"""Live objects, reduced to the fields that are compared, selected by or waited for, with their field owners.

Fields that change by themselves are left out (heartbeats, conditions, images): one comparison tells a heartbeat
from a change. Nodes of a pool are similar, so equal parts are stored once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey

Fields = Mapping[str, Any]
"""Fields in the format of `metadata.managedFields`: `{"f:metadata": {"f:labels": {"f:a": {}}}}`."""
NO_FIELDS: Fields = {}

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
TTL = "node.alpha.kubernetes.io/ttl"
"""Written by the TTL controller, and by kwokfleet when it creates a node, which saves that write."""
_UNREADY_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_MOVING_STATUS = frozenset({"conditions", "phase", "volumesAttached", "volumesInUse"})
_NEVER_COMPARED = frozenset({"apiVersion", "kind", "metadata", "status"})
_UNIQUE = frozenset({"addresses", "podCIDRs"})
"""Parts that are unique to a node."""
_MAX_SHARED = 20_000
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Observed:
    """A live object, reduced."""

    key: ObjectKey
    uid: str
    resource_version: int
    manifest: Manifest
    """Reduced. Objects may share parts: never change one in place."""
    owned: Fields = field(default_factory=lambda: NO_FIELDS)
    """Fields of the field manager `kwokfleet`."""
    claimed: Fields = field(default_factory=lambda: NO_FIELDS)
    """Fields of other managers below `status`."""
    created: str = ""
    deleting: bool = False
    ready: bool = True
    schedulable: bool = True

    @property
    def fleet(self) -> str:
        """The Fleet; empty without one, or with several."""
        return objects.labels(self.manifest).get(objects.FLEET, "")

    @property
    def pool(self) -> str:
        """The NodePool."""
        return objects.labels(self.manifest).get(objects.POOL, "")

    def is_equivalent(self, other: "Observed") -> bool:
        """Return whether all fields are equal except version and creation time."""
        return (
            self.manifest == other.manifest
            and self.ready == other.ready
            and self.schedulable == other.schedulable
            and self.deleting == other.deleting
            and self.uid == other.uid
            and (self.owned is other.owned or self.owned == other.owned)
            and (self.claimed is other.claimed or self.claimed == other.claimed)
        )


Inventory = Mapping[ObjectKey, Observed]
"""Observed managed objects."""


class ObservedFactory:
    """Creates Observed objects and stores equal parts once."""

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}
        self._owners: dict[bytes, tuple[Fields, Fields]] = {}

    def from_manifest(self, api_version: str, kind: str, raw: Manifest) -> Observed:
        """Reduce a live object; the items of a list have no kind, so it is an argument."""
        metadata = raw["metadata"]
        key = ObjectKey(api_version, kind, metadata.get("namespace", ""), metadata["name"])
        if kind == "Pod":
            return self._pod(key, raw)
        owned, claimed = self._managers(metadata.get("managedFields") or ())
        ready = kind != "Node" or objects.has_condition(raw, "Ready")
        return Observed(
            key,
            metadata.get("uid", ""),
            int(metadata.get("resourceVersion") or 0),
            self._reduced(key, raw),
            owned,
            claimed,
            metadata.get("creationTimestamp") or "",
            "deletionTimestamp" in metadata,
            ready,
            ready and kind == "Node" and _accepts_pods(raw.get("spec") or {}),
        )

    def _reduced(self, key: ObjectKey, raw: Manifest) -> Manifest:
        metadata: Manifest = {"name": key.name}
        if key.namespace:
            metadata["namespace"] = key.namespace
        metadata["labels"] = raw["metadata"].get("labels") or {}
        annotations = raw["metadata"].get("annotations") or {}
        metadata["annotations"] = {name: text for name, text in annotations.items() if name not in (LAST_APPLIED, TTL)}
        reduced: Manifest = {"apiVersion": key.api_version, "kind": key.kind, "metadata": metadata}
        for name, part in raw.items():
            if name not in _NEVER_COMPARED:
                reduced[name] = self._section(part) if name == "spec" else part
        if key.kind == "Node":
            reduced["status"] = self._section(raw.get("status") or {})
        return reduced

    def _section(self, section: Manifest) -> Manifest:
        return {
            name: part if name in _UNIQUE else self._shared(part)
            for name, part in section.items()
            if name not in _MOVING_STATUS
        }

    def _pod(self, key: ObjectKey, raw: Manifest) -> Observed:
        """Reduce a pod to few fields: a cluster may have very many."""
        metadata = raw["metadata"]
        labels = {name: text for name, text in objects.labels(raw).items() if name.startswith(objects.PREFIX)}
        owners = [{"kind": owner["kind"]} for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
        phase = (raw.get("status") or {}).get("phase", "")
        reduced = {
            "apiVersion": key.api_version,
            "kind": key.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": self._shared(labels),
                "ownerReferences": self._shared(owners),
                "mirror": "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}),
            },
            "spec": self._shared({"nodeName": (raw.get("spec") or {}).get("nodeName", "")}),
            "status": self._shared({"phase": phase}),
        }
        return Observed(
            key,
            metadata["uid"],
            int(metadata.get("resourceVersion") or 0),
            reduced,
            created=metadata.get("creationTimestamp") or "",
            deleting="deletionTimestamp" in metadata,
            ready=objects.has_condition(raw, "Ready"),
            schedulable=phase not in _FINISHED,
        )

    def _shared(self, part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
        """Return the stored copy of an equal part; only mappings and lists are shared."""
        if not isinstance(part, dict | list):
            return part
        if len(self._parts) > _MAX_SHARED:  # costs only memory: later equal parts are stored again
            self._parts.clear()
        return self._parts.setdefault(orjson.dumps(part, option=orjson.OPT_SORT_KEYS), part)

    def _managers(self, entries: Iterable[Manifest]) -> tuple[Fields, Fields]:
        relevant = [entry for entry in entries if _is_relevant(entry)]
        if not relevant:
            return NO_FIELDS, NO_FIELDS
        digest = orjson.dumps([[entry["manager"], entry.get("fieldsV1")] for entry in relevant])
        owners = self._owners.get(digest)
        if owners is None:
            if len(self._owners) > _MAX_SHARED:
                self._owners.clear()
            entries_of: dict[bool, list[Fields]] = {True: [], False: []}  # ours, others
            for entry in relevant:
                entries_of[entry["manager"] == objects.FIELD_MANAGER].append(entry.get("fieldsV1") or {})
            others = merge_fields(entries_of[False])
            claimed = {"f:status": others["f:status"]} if "f:status" in others else NO_FIELDS
            owners = self._owners[digest] = merge_fields(entries_of[True]), claimed
        return owners


def _is_relevant(entry: Manifest) -> bool:
    """Return whether an entry is of our manager, or about the status."""
    return entry.get("manager") == objects.FIELD_MANAGER or "f:status" in (entry.get("fieldsV1") or {})


def _accepts_pods(spec: Manifest) -> bool:
    """Return whether the scheduler considers a Ready node."""
    taints = spec.get("taints") or ()
    return not spec.get("unschedulable") and not any(taint["key"].startswith(_UNREADY_TAINTS) for taint in taints)


def merge_fields(entries: Iterable[Fields]) -> Fields:
    """Return the union of the fields of several entries."""
    fields: dict[str, Any] = {}
    for entry in entries:
        for name, inner in entry.items():
            fields[name] = merge_fields((fields[name], inner)) if name in fields else inner
    return fields


def is_finished(pod: Observed) -> bool:
    """Return whether a pod has succeeded or failed."""
    return pod.manifest["status"]["phase"] in _FINISHED


def node_name(pod: Observed) -> str:
    """Return the node of a pod; empty if it is not bound."""
    return str(pod.manifest["spec"]["nodeName"])
