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
_KINDS = {kind.kind: kind for kind in requests.MANAGED_KINDS}


class LiveCluster:
    """A cluster with an informer."""

    def __init__(
        self, api: requests.RequestSender, follower: informer.Informer, stale_grace_s: float = STALE_CACHE_GRACE_S
    ) -> None:
        self._api, self._informer, self._stale_grace_s = api, follower, stale_grace_s

    def inventory(self) -> tuple[Inventory, Mapping[str, str]]:
        """Return managed objects, and the kinds that could not be listed; waits for a stale cache to recover."""
        view = self._informer.wait_until_synced(self._stale_grace_s)
        return view.objects, view.unknown

    def foreign_objects(self, keys: Iterable[ObjectKey]) -> Mapping[ObjectKey, Observed]:
        """Return the objects among *keys* that exist and are not managed."""
        by_kind: dict[str, set[ObjectKey]] = {}
        for key in keys:
            by_kind.setdefault(key.kind, set()).add(key)
        foreign = (live for kind, kind_keys in by_kind.items() for live in self._unmanaged(_KINDS[kind], kind_keys))
        return {live.key: live for live in foreign}

    def _unmanaged(self, kind: requests.Kind, keys: set[ObjectKey]) -> Iterable[Observed]:
        """Yield the unmanaged objects of a kind with one of the given keys."""
        if len(keys) <= FEW:  # a list of thousands of nodes takes longer
            live_objects = (get_object(self._api, key) for key in sorted(keys))
            yield from (live for live in live_objects if live and not _has_our_label(live))
            return
        try:
            for item in client.list_objects(self._api, kind, requests.UNMANAGED_SELECTOR, metadata_only=True):
                key = requests.item_key(kind, item)
                if key in keys and (live := get_object(self._api, key)):
                    yield live
        except errors.UnreachableError:
            raise
        except errors.ClusterError:
            if kind.api_version != objects.STAGE_API_VERSION:  # without kwok's CRDs no such object exists
                raise

    def foreign_occupants(self, namespaces: Iterable[str]) -> Mapping[str, str]:
        """Return the namespaces that contain foreign objects, with one of them."""
        occupied = discovery.occupied_namespaces(self._api, set(namespaces), requests.UNMANAGED_SELECTOR)
        return {name: f"{occupant}, which is not managed by kwokfleet" for name, occupant in occupied.items()}

    def pod_counts(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return the number of running pods on each node."""
        fields = [f"spec.nodeName={name}" for name in nodes] if len(nodes) <= FEW else ["spec.nodeName!="]
        return _running_pods(nodes, (pod for selected in fields for pod in self._pods(selected)))

    def pods_on(self, nodes: AbstractSet[str]) -> list[Observed]:
        """Return all pods bound to *nodes*."""
        return [pod for pod in self._pods("spec.nodeName!=") if observed.node_name(pod) in nodes]

    def _pods(self, fields: str) -> Iterable[Observed]:
        factory = observed.ObservedFactory()
        for item in client.list_objects(self._api, requests.POD, fields=fields):
            yield factory.from_manifest("v1", "Pod", item)

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


def get_object(api: requests.RequestSender, key: ObjectKey) -> Observed | None:
    """Return a live object; None if it does not exist."""
    response = api.send(requests.get(key))
    if response.status == HTTPStatus.NOT_FOUND:
        return None
    if response.status != HTTPStatus.OK:
        raise client.rejection_error(api, response, f"get {key.kind.lower()}s")
    return observed.ObservedFactory().from_manifest(key.api_version, key.kind, response.json())


def _running_pods(nodes: Iterable[str], pods: Iterable[Observed]) -> Mapping[str, int]:
    counts = dict.fromkeys(nodes, 0)
    for pod in pods:
        if observed.node_name(pod) in counts and not observed.is_finished(pod):
            counts[observed.node_name(pod)] += 1
    return counts


def _has_our_label(live: Observed) -> bool:
    return objects.labels(live.manifest).get(objects.MANAGED_BY) == objects.KWOKFLEET


def _holds(fields: Mapping[str, Any], path: diff.Path) -> bool:
    for step in path:
        inner = fields.get(f"f:{step}")
        if inner is None:
            return not fields  # a leaf: the manager owns all of it
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
        factory = observed.ObservedFactory()
        self._ours: dict[ObjectKey, Observed] = {}
        self._others: dict[ObjectKey, Observed] = {}
        self._pods: list[Observed] = []
        for manifest in manifests:
            saved = factory.from_manifest(manifest["apiVersion"], manifest["kind"], manifest)
            if saved.key.kind == "Pod":
                self._pods.append(saved)
            elif saved.key.kind in _KINDS:
                (self._ours if _has_our_label(saved) else self._others)[saved.key] = saved

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
        return _running_pods(nodes, self._pods)

    def approved_digests(self) -> frozenset[str]:
        """Return nothing: approvals are in the live cluster."""
        return frozenset()
