"""Records a watch of the real API server: every state of its objects, with the time of receipt."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
Check = Callable[[Manifest], bool]


@dataclass
class RecordedWatch:
    """Recorded states of objects."""

    events: list[tuple[float, str, Manifest]] = field(default_factory=list)

    def of(self, name: str) -> list[tuple[float, Manifest]]:
        """Return times and states of one object, in order; a deletion is the last."""
        return [(at, manifest) for at, _, manifest in list(self.events) if manifest["metadata"]["name"] == name]

    def first(self, name: str, check: Check) -> float | None:
        """Return the seconds from the first event until a check holds, for a name prefix."""
        states = [
            (at, manifest) for at, _, manifest in list(self.events) if manifest["metadata"]["name"].startswith(name)
        ]
        return next((at - states[0][0] for at, manifest in states if check(manifest)), None)

    def names(self, **labels: str) -> list[str]:
        """Return the names of objects with these kwokfleet labels, in order of appearance."""
        selected = {f"kwokfleet.dev/{key}": value for key, value in labels.items()}
        metadata = [manifest["metadata"] for _, _, manifest in list(self.events)]
        return list(dict.fromkeys(item["name"] for item in metadata if selected.items() <= item["labels"].items()))

    def after(self, name: str, check: Check) -> float | None:
        """Return the seconds from the first event of an object until a check holds."""
        states = self.of(name)
        return next((at - states[0][0] for at, manifest in states if check(manifest)), None)

    def now(self, name: str) -> Manifest:
        """Return an object's last state."""
        return self.of(name)[-1][1]

    def gone(self, name: str) -> float | None:
        """Return when an object was deleted."""
        times = (
            at for at, kind, manifest in list(self.events) if kind == "DELETED" and manifest["metadata"]["name"] == name
        )
        return next(times, None)


@contextmanager
def watching(cluster: ControlPlane, path: str, selector: str = "") -> Iterator[RecordedWatch]:
    """Record a watch of a collection until the block ends.

    The API server ends the watch of a slow reader; it is resumed at the last resourceVersion.
    """
    watch, connected, ended = RecordedWatch(), threading.Event(), threading.Event()
    processes: list[subprocess.Popen[bytes]] = []

    def begin(since: str) -> "subprocess.Popen[bytes]":
        first = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        options = f"watch=1&allowWatchBookmarks=true&{f'resourceVersion={since}' if since else first}"
        command = [str(cluster.tools.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "get", "--raw"]
        process = subprocess.Popen([*command, f"{path}?{options}&labelSelector={selector}"], stdout=subprocess.PIPE)
        processes.append(process)
        return process

    def read() -> None:
        since = ""
        while not ended.is_set():
            with begin(since) as process:
                for line in process.stdout or ():
                    if not line.endswith(b"\n"):  # incomplete line
                        break
                    event, at = json.loads(line), time.monotonic()
                    since = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "BOOKMARK":
                        connected.set()
                    else:
                        watch.events.append((at, event["type"], event["object"]))
                process.kill()
            since = since if connected.is_set() else ""

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        assert connected.wait(60)
        yield watch
    finally:
        ended.set()
        while thread.is_alive():  # it may be starting the next process
            processes[-1].kill()
            thread.join(0.5)
