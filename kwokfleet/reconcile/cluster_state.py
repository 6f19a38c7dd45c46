"""Cluster state of a pass: from an informer and a few requests, or from a saved file."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from typing import Any

from kwokfleet import errors
from kwokfleet.kube import client, discovery, objects, observed, requests
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.reconcile import diff

STALE_CACHE_GRACE_S = 60.0
"""How long a cache may be stale before its kinds count as unknown."""
FEW = 8
"""Up to this many objects are read one by one; more are listed."""
_KINDS = {each.kind: each for each in requests.MANAGED_KINDS}


class LiveCluster:
    """A cluster with an informer."""

    def __init__(
        self, api: requests.RequestSender, follower: informer.Informer, stale_grace_s: float = STALE_CACHE_GRACE_S
    ) -> None:
        self._api, self._mirror, self._stale_grace_s = api, follower, stale_grace_s
        self._projector = observed.ObservedFactory()

    def inventory(self) -> tuple[Inventory, Mapping[str, str]]:
        """Return managed objects, and the kinds that could not be listed; waits for a stale cache to recover."""
        view = self._mirror.wait_until_synced(self._stale_grace_s)
        return view.objects, view.unknown

    def foreign_objects(self, keys: Iterable[ObjectKey]) -> Mapping[ObjectKey, Observed]:
        """Return the objects among *keys* that exist and are not managed."""
        by_kind: dict[str, set[ObjectKey]] = {}
        for key in keys:
            by_kind.setdefault(key.kind, set()).add(key)
        foreign: dict[ObjectKey, Observed] = {}
        for name, kind_keys in by_kind.items():
            foreign |= {live.key: live for live in self._unmanaged(_KINDS[name], kind_keys)}
        return foreign

    def _unmanaged(self, kind: requests.Kind, keys: set[ObjectKey]) -> Iterable[Observed]:
        """Yield the unmanaged objects of a kind with one of the given keys."""
        if len(keys) <= FEW:  # a list of thousands of nodes takes longer
            yield from (live for key in sorted(keys) if (live := self._get(key)) and not _has_our_label(live))
            return
        try:
            for item in client.list_objects(self._api, kind, requests.UNMANAGED_SELECTOR, metadata_only=True):
                metadata = item["metadata"]
                key = ObjectKey(kind.api_version, kind.kind, metadata.get("namespace", ""), metadata["name"])
                if key in keys:
                    live = self._get(key)
                    if live is not None:
                        yield live
        except errors.UnreachableError:
            raise
        except errors.ClusterError:
            if kind.api_version != objects.STAGE_API_VERSION:  # without kwok's CRDs no such object exists
                raise

    def _get(self, key: ObjectKey) -> Observed | None:
        response = self._api.send(requests.get(key))
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        if response.status != HTTPStatus.OK:
            raise client.rejection_error(self._api, response, f"get {key.kind.lower()}s")
        return self._projector.from_manifest(key.api_version, key.kind, response.json())

    def foreign_occupants(self, namespaces: Iterable[str]) -> Mapping[str, str]:
        """Return the namespaces that contain foreign objects, with one of them."""
        occupied = discovery.occupied_namespaces(self._api, set(namespaces), requests.UNMANAGED_SELECTOR)
        return {name: f"{occupant}, which is not managed by kwokfleet" for name, occupant in occupied.items()}

    def pod_counts(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return the number of running pods on each node."""
        counts = dict.fromkeys(nodes, 0)
        fields = [f"spec.nodeName={name}" for name in nodes] if len(nodes) <= FEW else ["spec.nodeName!="]
        for field in fields:
            for item in client.list_objects(self._api, requests.POD, fields=field):
                pod = self._projector.from_manifest("v1", "Pod", item)
                if observed.node_name(pod) in counts and not observed.is_finished(pod):
                    counts[observed.node_name(pod)] += 1
        return counts

    def pods_on(self, nodes: AbstractSet[str]) -> list[Observed]:
        """Return all pods bound to *nodes*."""
        pods = (self._projector.from_manifest("v1", "Pod", item) for item in self._bound_pods())
        return [pod for pod in pods if observed.node_name(pod) in nodes]

    def _bound_pods(self) -> Iterable[Manifest]:
        return client.list_objects(self._api, requests.POD, fields="spec.nodeName!=")

    def approved_digests(self) -> frozenset[str]:
        """Return the digests of approved plans."""
        try:
            fleets = list_fleets(self._api)
        except errors.UnreachableError:
            raise
        except errors.ClusterError:  # without the right to list Fleets there are no approvals
            return frozenset()
        digests = [(entry["metadata"].get("annotations") or {}).get(objects.APPROVED) for entry in fleets]
        return frozenset(entry for entry in digests if entry)

    def field_manager(self, key: ObjectKey, path: diff.Path) -> str:
        """Return the field manager that wrote a field last."""
        response = self._api.send(requests.get(key))
        entries = (response.json().get("metadata") or {}).get("managedFields") or ()
        for entry in sorted(entries, key=lambda entry: entry.get("time") or "", reverse=True):
            if entry.get("manager") != objects.FIELD_MANAGER and _holds(entry.get("fieldsV1") or {}, path):
                return f"manager {entry['manager']!r}"
        return "the API server"


def _has_our_label(live: Observed) -> bool:
    return objects.labels(live.manifest).get(objects.MANAGED_BY) == objects.KWOKFLEET


def _holds(fields: Mapping[str, Any], path: diff.Path) -> bool:
    for step in path:
        inner = fields.get(f"f:{step}")
        if inner is None:
            return bool(fields) is False  # a leaf: the manager owns all of it
        fields = inner
    return True


def list_fleets(api: requests.RequestSender) -> list[Manifest]:
    """Return the Fleet resources; none without the CRD."""
    try:
        return list(client.list_objects(api, requests.FLEET))
    except errors.ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return []


class SavedCluster:
    """A cluster saved with `kubectl get nodes,stages,… -o json`."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        projector = observed.ObservedFactory()
        self._ours: dict[ObjectKey, Observed] = {}
        self._others: dict[ObjectKey, Observed] = {}
        self._pods: list[Observed] = []
        for manifest in manifests:
            each = projector.from_manifest(manifest["apiVersion"], manifest["kind"], manifest)
            if each.key.kind == "Pod":
                self._pods.append(each)
            elif each.key.kind in _KINDS:
                ours = objects.labels(each.manifest).get(objects.MANAGED_BY) == objects.KWOKFLEET
                (self._ours if ours else self._others)[each.key] = each

    def inventory(self) -> tuple[Inventory, Mapping[str, str]]:
        """Return managed objects; the file counts as complete."""
        return self._ours, {}

    def foreign_objects(self, keys: Iterable[ObjectKey]) -> Mapping[ObjectKey, Observed]:
        """Return the objects among *keys* that exist and are not managed."""
        return {key: self._others[key] for key in keys if key in self._others}

    def foreign_occupants(self, namespaces: Iterable[str]) -> Mapping[str, str]:
        """Return the namespaces that contain pods of the file."""
        inside = {pod.key.namespace: f"pods/{pod.key.name}" for pod in self._pods}
        return {name: inside[name] for name in namespaces if name in inside}

    def pod_counts(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return the number of running pods on each node."""
        counts = dict.fromkeys(nodes, 0)
        for pod in self._pods:
            if observed.node_name(pod) in counts and not observed.is_finished(pod):
                counts[observed.node_name(pod)] += 1
        return counts

    def approved_digests(self) -> frozenset[str]:
        """Return nothing: approvals are in the live cluster."""
        return frozenset()
