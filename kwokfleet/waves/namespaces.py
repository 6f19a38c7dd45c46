"""Namespaces of a Run whose names hold variables."""

from http import HTTPStatus

from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workloads


class Namespaces:
    """Makes the namespaces of a Run that have variables in their names; those without are made from the files."""

    def __init__(self, api: requests.RequestSender, context: workloads.RunContext) -> None:
        self._api = api
        self._varies = bool(workloads.template_variables(context.wave.namespace or ""))
        self._labels = workloads.owner_labels(context)
        self._there: set[str] = set()

    def provide(self, manifest: Manifest) -> None:
        """Make the namespace of an object, unless it is there; why that fails, the object's own refusal will tell."""
        name = manifest["metadata"].get("namespace")
        if not self._varies or not name or name in self._there:
            return
        labels = {objects.MANAGED_BY: objects.KWOKFLEET, **self._labels}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        answer = self._api.send(requests.create(made))
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
            self._there.add(name)

    def forget(self, manifest: Manifest) -> None:
        """Take note that an object's namespace may be gone."""
        self._there.discard(manifest["metadata"].get("namespace") or "")
