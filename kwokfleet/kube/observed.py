"""A live object reduced to what is compared, chosen by or waited for, and who owns which of its fields.

Everything that moves by itself is left out (heartbeats, conditions, images pulled), so that two
states of an object that mean the same to us are equal, and a heartbeat is told from a change by one
comparison. Nodes of a pool are alike: parts that are equal are kept once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey

Fields = Mapping[str, Any]
"""Fields as `metadata.managedFields` lists them: `{"f:metadata": {"f:labels": {"f:a": {}}}}`."""
NO_FIELDS: Fields = {}

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
TTL = "node.alpha.kubernetes.io/ttl"
"""Written by the TTL controller, and by us at a node's birth to spare it the work."""
_UNREADY_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_MOVING_STATUS = frozenset({"conditions", "phase", "volumesAttached", "volumesInUse"})
_NEVER_COMPARED = frozenset({"apiVersion", "kind", "metadata", "status"})
_UNIQUE = frozenset({"addresses", "podCIDRs"})
"""Parts that no two nodes share."""
_MOST_KEPT = 20_000
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Observed:
    """One live object, as far as it matters to us."""

    key: ObjectKey
    uid: str
    resource_version: int
    manifest: Manifest
    """Slim. Parts may be shared with other objects: never change one in place."""
    owned: Fields = field(default_factory=lambda: NO_FIELDS)
    """What the field manager `kwokfleet` holds."""
    claimed: Fields = field(default_factory=lambda: NO_FIELDS)
    """What other managers hold below `status`."""
    created: str = ""
    deleting: bool = False
    ready: bool = True
    schedulable: bool = True

    @property
    def fleet(self) -> str:
        """The Fleet it belongs to, empty if to none or to several."""
        return objects.labels(self.manifest).get(objects.FLEET, "")

    @property
    def pool(self) -> str:
        """The pool it belongs to."""
        return objects.labels(self.manifest).get(objects.POOL, "")

    def means_the_same_as(self, other: "Observed") -> bool:
        """Return whether nothing has changed that anybody would plan, choose or wait by."""
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
"""Observed objects with our label."""


class ObservedFactory:
    """Makes Observed objects of manifests, and keeps equal parts once."""

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}
        self._owners: dict[bytes, tuple[Fields, Fields]] = {}

    def observed(self, api_version: str, kind: str, raw: Manifest) -> Observed:
        """Return what matters of a live object; lists leave out what kind their items are of."""
        metadata = raw["metadata"]
        key = ObjectKey(api_version, kind, metadata.get("namespace", ""), metadata["name"])
        if kind == "Pod":
            return self._pod(key, raw)
        owned, claimed = self._managers(metadata.get("managedFields") or ())
        status = raw.get("status") or {}
        conditions = status.get("conditions") or () if kind == "Node" else ()
        ready = kind != "Node" or any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return Observed(
            key,
            metadata.get("uid", ""),
            int(metadata.get("resourceVersion") or 0),
            self._slim(key, raw),
            owned,
            claimed,
            metadata.get("creationTimestamp") or "",
            "deletionTimestamp" in metadata,
            ready,
            ready and kind == "Node" and _is_open(raw.get("spec") or {}),
        )

    def _slim(self, key: ObjectKey, raw: Manifest) -> Manifest:
        metadata: Manifest = {"name": key.name}
        given = raw["metadata"]
        if key.namespace:
            metadata["namespace"] = key.namespace
        metadata["labels"] = given.get("labels") or {}
        annotations = given.get("annotations") or {}
        if LAST_APPLIED in annotations or TTL in annotations:
            annotations = {name: value for name, value in annotations.items() if name not in (LAST_APPLIED, TTL)}
        metadata["annotations"] = annotations
        slim: Manifest = {"apiVersion": key.api_version, "kind": key.kind, "metadata": metadata}
        for name, part in raw.items():
            if name not in _NEVER_COMPARED:
                slim[name] = self._shared(part) if name == "spec" else part
        if key.kind == "Node":
            slim["status"] = self._shared(raw.get("status") or {})
        return slim

    def _shared(self, section: Manifest) -> Manifest:
        return {
            name: part if name in _UNIQUE else self._kept(part)
            for name, part in section.items()
            if name not in _MOVING_STATUS
        }

    def _pod(self, key: ObjectKey, raw: Manifest) -> Observed:
        """Return a pod: who it is, where it is and how it fares; there may be very many."""
        metadata, status = raw["metadata"], raw.get("status") or {}
        given = metadata.get("labels") or {}
        owners = [{"kind": each["kind"]} for each in metadata.get("ownerReferences") or () if each.get("controller")]
        node = (raw.get("spec") or {}).get("nodeName", "")
        phase = status.get("phase", "")
        slim = {
            "apiVersion": key.api_version,
            "kind": key.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": self._kept({name: value for name, value in given.items() if name.startswith(objects.PREFIX)}),
                "ownerReferences": self._kept(owners),
                "mirror": "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}),
            },
            "spec": self._kept({"nodeName": node}),
            "status": self._kept({"phase": phase}),
        }
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
        return Observed(
            key,
            metadata["uid"],
            int(metadata.get("resourceVersion") or 0),
            slim,
            created=metadata.get("creationTimestamp") or "",
            deleting="deletionTimestamp" in metadata,
            ready=ready,
            schedulable=phase not in _FINISHED,
        )

    def _kept(self, part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
        """Return the one copy of a part that many objects share; short texts are not worth it."""
        if not isinstance(part, dict | list):
            return part
        if len(self._parts) > _MOST_KEPT:  # equal parts that come later are kept twice, nothing worse
            self._parts.clear()
        return self._parts.setdefault(orjson.dumps(part, option=orjson.OPT_SORT_KEYS), part)

    def _managers(self, entries: Iterable[Manifest]) -> tuple[Fields, Fields]:
        relevant = [each for each in entries if _is_relevant(each)]
        if not relevant:
            return NO_FIELDS, NO_FIELDS
        mark = orjson.dumps([[each["manager"], each.get("fieldsV1")] for each in relevant])
        known = self._owners.get(mark)
        if known is None:
            if len(self._owners) > _MOST_KEPT:
                self._owners.clear()
            ours = merge_fields(
                each.get("fieldsV1") or {} for each in relevant if each["manager"] == objects.FIELD_MANAGER
            )
            theirs = merge_fields(
                each.get("fieldsV1") or {} for each in relevant if each["manager"] != objects.FIELD_MANAGER
            )
            known = self._owners[mark] = (ours, {"f:status": theirs["f:status"]} if "f:status" in theirs else NO_FIELDS)
        return known


def _is_relevant(entry: Manifest) -> bool:
    """Return whether an entry says something about ours or about a status; names of times do not matter."""
    return entry.get("manager") == objects.FIELD_MANAGER or "f:status" in (entry.get("fieldsV1") or {})


def _is_open(spec: Manifest) -> bool:
    """Return whether the scheduler would consider a node that is Ready."""
    taints = spec.get("taints") or ()
    return not spec.get("unschedulable") and not any(each["key"].startswith(_UNREADY_TAINTS) for each in taints)


def merge_fields(entries: Iterable[Fields]) -> Fields:
    """Return all fields of several entries."""
    found: dict[str, Any] = {}
    for entry in entries:
        for name, inner in entry.items():
            found[name] = merge_fields((found[name], inner)) if name in found else inner
    return found


def is_finished(pod: Observed) -> bool:
    """Return whether a pod has ended by itself."""
    return pod.manifest["status"]["phase"] in _FINISHED


def node_name(pod: Observed) -> str:
    """Return the node that a pod is bound to, empty if to none."""
    return str(pod.manifest["spec"]["nodeName"])
