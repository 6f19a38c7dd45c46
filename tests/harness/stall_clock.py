"""How long the machine stood still: what is on time on an idle machine is late by that much on a busy one.

A clock ticks through the control plane itself: each tick is a short sleep and a write that the API server
must take. What a tick takes longer than it should, nobody else on the machine had either.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kwokfleet import errors
from kwokfleet.kube import client
from kwokfleet.kube.requests import MERGE_PATCH, Request
from tests.harness.control_plane import ControlPlane

TICK_S = 0.1
TOLERANCE_S = 0.1
"""What a tick may take beyond its sleep without being a stall."""
RESOLUTION_S = 1
"""To what kwok's own times are exact: it counts, and the API's timestamps say, whole seconds."""
MAPS = "/api/v1/namespaces/default/configmaps"
NAME = "kwokfleet-test-clock"


@dataclass
class StallClock:
    """What was lost while the clock ticked."""

    lost_s: float = 0.0

    def ticked(self, took_s: float) -> None:
        """Note how long a tick took."""
        self.lost_s += max(0.0, took_s - TICK_S - TOLERANCE_S)

    def about(self, seconds: float) -> "ApproximateSeconds":
        """Return what equals the time from one thing to the next if that was on time."""
        return ApproximateSeconds(seconds, self.lost_s)


@dataclass(frozen=True)
class ApproximateSeconds:
    """A time, missed by no more than the machine stood still: then beginnings are seen late as well as ends."""

    seconds: float
    lost_s: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return False
        return abs(other - self.seconds) <= RESOLUTION_S + self.lost_s

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __repr__(self) -> str:
        return f"{self.seconds} s ± {RESOLUTION_S} s ± {self.lost_s:.1f} s in which the machine stood still"


@contextmanager
def running(cluster: ControlPlane) -> Iterator[StallClock]:
    """Let the clock tick inside the block."""
    stalls, ended = StallClock(), threading.Event()
    api = client.connect(kubeconfig=cluster.kubeconfig)
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "default"}})

    def tick() -> None:
        while not ended.is_set():
            began = time.monotonic()
            ended.wait(TICK_S)
            body = b'{"data":{"tick":"%d"}}' % time.monotonic_ns()
            try:
                api.send(Request("PATCH", f"{MAPS}/{NAME}", body, MERGE_PATCH))
            except errors.ClusterError:  # then that much was lost as well
                continue
            finally:
                stalls.ticked(time.monotonic() - began)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield stalls
    finally:
        ended.set()
        thread.join()
        cluster.kubectl("delete", "configmap", NAME, "--namespace", "default", "--ignore-not-found")
