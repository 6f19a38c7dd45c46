"""A few objects of one kind, whole and as they are now: for who needs what a Mirror leaves out, such as a status."""

import threading
from collections.abc import Mapping
from typing import Self

from kwokfleet.kube.informer import reflector
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind


class FullObjectCache(reflector.Reflector):
    """Follows objects by their names in one namespace. Close it, or use it in a `with` block."""

    def __init__(self, api: reflector.WatchApi, kind: Kind, *, selector: str = "", fields: str = "") -> None:
        super().__init__(api, kind, (selector, fields), threading.Event())
        self._found: dict[str, Manifest] = {}
        self._objects: dict[str, Manifest] = {}
        self._told = threading.Event()
        self.trouble = "has not been listed yet"
        """Why nobody knows what is there; empty if that is known."""

    def __enter__(self) -> Self:
        """Begin to follow."""
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop following."""
        self._stopping.set()
        self.interrupt()
        self.join(reflector.MAX_PAUSE_S)

    def objects(self) -> Mapping[str, Manifest] | None:
        """Return what is there; None if that is not known."""
        return None if self.trouble else self._objects

    def wait_until_known(self, timeout_s: float) -> str:
        """Wait until it is known what is there, or was refused for good; return why it is not known."""
        self._told.wait(timeout_s)
        return self.trouble

    def listing(self) -> None:
        """Begin with nothing, beside what is known."""
        self._found = {}

    def item(self, thing: Manifest, received: float) -> None:
        """Keep an object for the moment at which the list is complete."""
        del received
        self._found[thing["metadata"]["name"]] = thing

    def listed(self) -> None:
        """Take a complete list for what is there."""
        self._objects, self._found = self._found, {}

    def event(self, kind: str, thing: Manifest, received: float) -> None:
        """Replace what is there as a whole: who looks at it meanwhile sees one state or the other."""
        del received
        name = thing["metadata"]["name"]
        others = {each: value for each, value in self._objects.items() if each != name}
        self._objects = others if kind == "DELETED" else {**others, name: thing}

    def missing(self) -> None:
        """Keep nothing: that is known, too."""
        self._objects = {}

    def say(self, trouble: str, *, settled: bool = True) -> None:
        """Note whether all is known."""
        self.trouble = trouble
        if settled:
            self._told.set()
