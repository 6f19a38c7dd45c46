"""API discovery: resource names of kinds, listable kinds, and the contents of namespaces."""

import threading
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest

UNKNOWN_S = 5.0
"""A kind that the cluster does not have is not looked up again for this time."""
MAX_SEPARATE_LISTS = 8
"""Up to this number, namespaces are listed one by one; beyond, all namespaces at once."""
_DEFAULT_OBJECTS = {"kube-root-ca.crt", "default"}
"""Objects that every namespace has."""
_IGNORED_RESOURCES = {"events", "endpoints", "endpointslices", "leases"}


class KindResolver:
    """Finds the resource names of kinds, and caches them. Thread-safe."""

    def __init__(self, api: requests.RequestSender) -> None:
        self._api = api
        self._kinds: dict[tuple[str, str], requests.Kind] = {}
        self._unknown_until: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def of_manifest(self, manifest: Manifest) -> requests.Kind:
        """Return the kind of a manifest; raise if the cluster does not have it."""
        return self.resolve(str(manifest["apiVersion"]), str(manifest["kind"]))

    def resolve(self, api_version: str, kind: str) -> requests.Kind:
        """Return a kind with its resource name; raise if the cluster does not have it."""
        name = (api_version, kind)
        with self._lock:
            if name not in self._kinds:
                self._kinds[name] = self._look_up(*name)
            return self._kinds[name]

    def _look_up(self, api_version: str, kind: str) -> requests.Kind:
        if time.monotonic() > self._unknown_until.get((api_version, kind), 0.0):
            for resource in _get(self._api, _group_path(api_version)).get("resources") or ():
                if resource["kind"] == kind and "/" not in resource["name"]:
                    return _kind(api_version, resource)
            self._unknown_until[api_version, kind] = time.monotonic() + UNKNOWN_S
        raise errors.ClusterError(
            f"the cluster has no kind {kind} in {api_version}", hint="install its CustomResourceDefinition"
        )


def occupied_namespaces(
    api: requests.RequestSender, namespaces: AbstractSet[str], selector: str = ""
) -> dict[str, str]:
    """Return the namespaces that are not empty, each with the first object found.

    Default objects and objects with an owner do not count. A namespace whose Secrets may not be listed counts as
    occupied.
    """
    occupied: dict[str, str] = {}
    scopes = sorted(namespaces) if len(namespaces) <= MAX_SEPARATE_LISTS else [""]
    for scope in scopes if namespaces else ():
        if not _may_list(api, requests.SECRET, scope):
            occupied |= dict.fromkeys([scope] if scope else namespaces, _unlistable(requests.SECRET))
    for kind in _namespaced_kinds(api) if namespaces - occupied.keys() else ():
        for scope in sorted(namespaces - occupied.keys()) if len(namespaces) <= MAX_SEPARATE_LISTS else [""]:
            try:
                for item in client.list_objects(api, kind, selector, namespace=scope, metadata_only=True):
                    metadata = item["metadata"]
                    if metadata["namespace"] in namespaces and _counts(metadata):
                        occupied.setdefault(metadata["namespace"], f"{kind.plural}/{metadata['name']}")
            except errors.UnreachableError:
                raise
            except errors.ClusterError as error:
                if error.status == HTTPStatus.FORBIDDEN:
                    hidden = namespaces if not scope else {scope}
                    occupied |= {name: occupied.get(name, _unlistable(kind)) for name in hidden}
    return occupied


def _may_list(api: requests.RequestSender, kind: requests.Kind, namespace: str) -> bool:
    """Return whether a kind may be listed; without an answer, the list itself decides."""
    status = api.send(requests.list_access_review(kind, namespace)).json().get("status") or {}
    return bool(status.get("allowed", True))


def _unlistable(kind: requests.Kind) -> str:
    return f"{kind.plural}/(may not be listed)"


def _counts(metadata: Manifest) -> bool:
    return metadata["name"] not in _DEFAULT_OBJECTS and not metadata.get("ownerReferences")


def _namespaced_kinds(api: requests.RequestSender) -> Iterable[requests.Kind]:
    return (kind for kind in listable_kinds(api) if kind.namespaced and kind.plural not in _IGNORED_RESOURCES)


def listable_kinds(api: requests.RequestSender, verb: str = "list") -> Iterable[requests.Kind]:
    """Yield every kind that supports `list` and *verb*."""
    groups = _get(api, "/apis").get("groups") or ()
    for version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
        for resource in _get(api, _group_path(version)).get("resources") or ():
            if {"list", verb} <= set(resource["verbs"]):
                yield _kind(version, resource)


def _kind(api_version: str, resource: Manifest) -> requests.Kind:
    return requests.Kind(api_version, resource["kind"], resource["name"], namespaced=bool(resource["namespaced"]))


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _get(api: requests.RequestSender, path: str) -> Manifest:
    return api.send(requests.Request("GET", path)).json()
