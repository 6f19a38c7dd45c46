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
        name = (str(manifest["apiVersion"]), str(manifest["kind"]))
        with self._lock:
            if name not in self._kinds:
                self._kinds[name] = self._look_up(*name)
            return self._kinds[name]

    def _look_up(self, api_version: str, name: str) -> requests.Kind:
        if time.monotonic() > self._unknown_until.get((api_version, name), 0.0):
            for kind, _ in _served_kinds(self._api, api_version):
                if kind.kind == name and "/" not in kind.plural:
                    return kind
            self._unknown_until[api_version, name] = time.monotonic() + UNKNOWN_S
        raise errors.ClusterError(
            f"the cluster has no kind {name} in {api_version}", hint="install its CustomResourceDefinition"
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
    kinds = (kind for kind in listable_kinds(api) if kind.namespaced and kind.plural not in _IGNORED_RESOURCES)
    for kind in kinds if namespaces - occupied.keys() else ():
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


def listable_kinds(api: requests.RequestSender, verb: str = "list") -> Iterable[requests.Kind]:
    """Yield every kind that supports `list` and *verb*."""
    groups = api.send(requests.Request("GET", "/apis")).json().get("groups") or ()
    for version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
        yield from (kind for kind, verbs in _served_kinds(api, version) if {"list", verb} <= verbs)


def _served_kinds(api: requests.RequestSender, version: str) -> Iterable[tuple[requests.Kind, set[str]]]:
    """Yield the kinds of an API version, with their verbs; subresources have a path as plural."""
    path = f"/apis/{version}" if "/" in version else f"/api/{version}"
    for resource in api.send(requests.Request("GET", path)).json().get("resources") or ():
        kind = requests.Kind(version, resource["kind"], resource["name"], namespaced=bool(resource["namespaced"]))
        yield kind, set(resource["verbs"])
