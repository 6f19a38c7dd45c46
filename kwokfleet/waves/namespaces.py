"""Namespaces of a Run whose names contain variables."""

from http import HTTPStatus

from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workload_template, workloads


class Namespaces:
    """Creates a Run's namespaces with variables in their names. The reconciler creates all others."""

    def __init__(self, api: requests.RequestSender, context: workloads.RunContext) -> None:
        self._api = api
        self._has_variables = bool(workload_template.template_variables(context.wave.namespace or ""))
        self._labels = workloads.owner_labels(context)
        self._existing: set[str] = set()

    def ensure(self, manifest: Manifest) -> None:
        """Create the namespace of an object. A failure shows when the object itself is rejected."""
        name = manifest["metadata"].get("namespace")
        if not self._has_variables or not name or name in self._existing:
            return
        labels = {objects.MANAGED_BY: objects.KWOKFLEET, **self._labels}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        answer = self._api.send(requests.create(namespace))
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
            self._existing.add(name)

    def discard(self, manifest: Manifest) -> None:
        """Check an object's namespace again before the next use: it may be deleted."""
        self._existing.discard(manifest["metadata"].get("namespace") or "")
