"""Measures stalls of a busy machine, to set the tolerance of timed assertions.

Each tick is a short sleep and a write to the API server. The excess time of a tick counts as a stall.
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
"""Excess time of a tick that is not a stall."""
RESOLUTION_S = 1
"""Resolution of kwok's times and of API timestamps."""
MAPS = "/api/v1/namespaces/default/configmaps"
NAME = "kwokfleet-test-clock"


@dataclass
class StallClock:
    """Sum of all stalls."""

    lost_s: float = 0.0

    def ticked(self, took_s: float) -> None:
        """Record the duration of a tick."""
        self.lost_s += max(0.0, took_s - TICK_S - TOLERANCE_S)

    def about(self, seconds: float) -> "ApproximateSeconds":
        """Return a value equal to any duration within tolerance."""
        return ApproximateSeconds(seconds, self.lost_s)


@dataclass(frozen=True)
class ApproximateSeconds:
    """A duration that equals every number within the resolution plus the stall time."""

    seconds: float
    lost_s: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return False
        return abs(other - self.seconds) <= RESOLUTION_S + self.lost_s

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __repr__(self) -> str:
        return f"{self.seconds} s ± {RESOLUTION_S} s ± {self.lost_s:.1f} s of stalls"


@contextmanager
def running(cluster: ControlPlane) -> Iterator[StallClock]:
    """Run the clock until the block ends."""
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
            except errors.ClusterError:  # the time counts as a stall
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
