"""Cache of a few complete objects of one kind, with the fields that an Informer drops (status)."""

import threading
from collections.abc import Mapping

from kwokfleet.kube.informer import reflector
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind


class FullObjectCache(reflector.Reflector):
    """Keeps the objects of one namespace by name. Start it, and close it."""

    def __init__(self, api: reflector.WatchApi, kind: Kind, *, selector: str = "", fields: str = "") -> None:
        super().__init__(api, kind, (selector, fields), threading.Event())
        self._listed: dict[str, Manifest] = {}
        self._objects: dict[str, Manifest] = {}
        self._settled = threading.Event()
        self.problem = "has not been listed yet"
        """Why the objects are unknown; empty if they are known."""

    def objects(self) -> Mapping[str, Manifest] | None:
        """Return the objects by name; None if they are unknown."""
        return None if self.problem else self._objects

    def wait_until_synced(self, timeout_s: float) -> str:
        """Wait until the objects are known or rejected; return why they are unknown."""
        self._settled.wait(timeout_s)
        return self.problem

    def on_list_start(self) -> None:
        """Collect the list beside the known objects."""
        self._listed = {}

    def on_list_item(self, manifest: Manifest, received: float) -> None:
        """Add an object to the list."""
        del received
        self._listed[manifest["metadata"]["name"]] = manifest

    def on_list_end(self) -> None:
        """Replace the objects by the list."""
        self._objects, self._listed = self._listed, {}

    def on_event(self, event_type: str, manifest: Manifest, received: float) -> None:
        """Replace the whole mapping: a reader sees the old or the new one."""
        del received
        name = manifest["metadata"]["name"]
        others = {other: value for other, value in self._objects.items() if other != name}
        self._objects = others if event_type == "DELETED" else {**others, name: manifest}

    def on_state(self, problem: str, *, settled: bool = True) -> None:
        """Record the state."""
        self.problem = problem
        if settled:
            self._settled.set()
