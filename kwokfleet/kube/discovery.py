"""What a Run needs of the cluster before its objects can be made: what their kind is called, and their namespaces."""

import threading
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest

UNKNOWN_S = 5.0
"""How long a kind that the cluster does not know is not asked for again."""


_EVERYWHERE = {"kube-root-ca.crt", "default"}
"""Objects that every namespace has."""
_FLEETING = {"events", "endpoints", "endpointslices", "leases"}
MAX_SEPARATE_LISTS = 8
"""So many namespaces are asked for one by one; for more, all are listed."""


class KindResolver:
    """Finds out what kinds of object are called in paths; any kind may be in a template."""

    def __init__(self, api: requests.RequestSender) -> None:
        self._api = api
        self._known: dict[tuple[str, str], requests.Kind] = {}
        self._unknown: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def kind(self, manifest: Manifest) -> requests.Kind:
        """Return what a manifest's kind is called; raise if the cluster does not know it."""
        return self.named(str(manifest["apiVersion"]), str(manifest["kind"]))

    def named(self, api_version: str, kind: str) -> requests.Kind:
        """Return what a kind is called in paths; raise if the cluster does not know it."""
        name = (api_version, kind)
        with self._lock:
            if name not in self._known:
                self._known[name] = self._asked(*name)
            return self._known[name]

    def _asked(self, api_version: str, kind: str) -> requests.Kind:
        where = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if time.monotonic() > self._unknown.get((api_version, kind), 0.0):
            for each in self._api.send(requests.Request("GET", where)).json().get("resources") or ():
                if each["kind"] == kind and "/" not in each["name"]:
                    return requests.Kind(api_version, kind, each["name"], namespaced=bool(each["namespaced"]))
            self._unknown[api_version, kind] = time.monotonic() + UNKNOWN_S
        raise errors.ClusterError(f"the cluster knows no {kind} in {api_version}", hint="is its definition installed?")


def occupied_namespaces(
    api: requests.RequestSender, namespaces: AbstractSet[str], selector: str = ""
) -> dict[str, str]:
    """Return the namespaces in which something is, and what; not what every namespace has, or what goes with another.

    Many namespaces are not asked for one by one. Who may not list Secrets need not look any further.
    """
    found: dict[str, str] = {}
    places = sorted(namespaces) if len(namespaces) <= MAX_SEPARATE_LISTS else [""]
    for place in places if namespaces else ():
        if not _may_list(api, requests.SECRET, place):
            found |= dict.fromkeys([place] if place else namespaces, _unseen(requests.SECRET))
    for kind in _namespaced(api) if namespaces - found.keys() else ():
        for place in sorted(namespaces - found.keys()) if len(namespaces) <= MAX_SEPARATE_LISTS else [""]:
            try:
                for item in client.list_objects(api, kind, selector, namespace=place, metadata_only=True):
                    metadata = item["metadata"]
                    if metadata["namespace"] in namespaces and _counts(metadata):
                        found.setdefault(metadata["namespace"], f"{kind.plural}/{metadata['name']}")
            except errors.UnreachableError:
                raise
            except errors.ClusterError as error:
                if error.status == HTTPStatus.FORBIDDEN:
                    hidden = namespaces if not place else {place}
                    found |= {each: found.get(each, _unseen(kind)) for each in hidden}
    return found


def _may_list(api: requests.RequestSender, kind: requests.Kind, place: str) -> bool:
    """Return whether we may list a kind; if nobody tells, who lists it will find out."""
    said = api.send(requests.list_access_review(kind, place)).json().get("status") or {}
    return bool(said.get("allowed", True))


def _unseen(kind: requests.Kind) -> str:
    return f"{kind.plural}/(may not be listed)"


def _counts(metadata: Manifest) -> bool:
    return metadata["name"] not in _EVERYWHERE and not metadata.get("ownerReferences")


def _namespaced(api: requests.RequestSender) -> Iterable[requests.Kind]:
    """Yield every kind of object that lives in namespaces."""
    return (kind for kind in listable_kinds(api) if kind.namespaced and kind.plural not in _FLEETING)


def listable_kinds(api: requests.RequestSender, verb: str = "list") -> Iterable[requests.Kind]:
    """Yield every kind of object that can be listed, and to which a verb applies."""
    groups = _read(api, "/apis").get("groups") or ()
    for version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        for each in _read(api, path).get("resources") or ():
            if {"list", verb} <= set(each["verbs"]):
                yield requests.Kind(version, each["kind"], each["name"], namespaced=bool(each["namespaced"]))


def _read(api: requests.RequestSender, path: str) -> Manifest:
    return api.send(requests.Request("GET", path)).json()
