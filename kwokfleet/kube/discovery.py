"""What a Run needs of the cluster before its objects can be made: what their kind is called, and their namespaces."""

import threading
import time
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workloads

UNKNOWN_S = 5.0
"""How long a kind that the cluster does not know is not asked for again."""


class Kinds:
    """Finds out what kinds of object are called in paths; any kind may be in a template."""

    def __init__(self, api: requests.Sends) -> None:
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


class Namespaces:
    """Makes the namespaces of a Run that have variables in their names; those without are made from the files."""

    def __init__(self, api: requests.Sends, context: workloads.Context) -> None:
        self._api = api
        self._varies = bool(workloads.names_used(context.wave.namespace or ""))
        self._labels = workloads.owner_labels(context)
        self._there: set[str] = set()

    def provide(self, manifest: Manifest) -> None:
        """Make the namespace of an object, unless it is there; why that fails, the object's own refusal will tell."""
        name = manifest["metadata"].get("namespace")
        if not self._varies or not name or name in self._there:
            return
        labels = {objects.MANAGED_BY: objects.US, **self._labels}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        answer = self._api.send(requests.create(made))
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
            self._there.add(name)

    def forget(self, manifest: Manifest) -> None:
        """Take note that an object's namespace may be gone."""
        self._there.discard(manifest["metadata"].get("namespace") or "")
