"""Receive times after a gap: a state reached inside a gap was received too late.

A resumed watch delivers all missed events at once, and so does a paused process. Their receive times are wrong.
"""

from collections.abc import Sequence

from kwokfleet.measure import pods, workloads
from kwokfleet.measure.columns import Table

SHORTEST_S = 1.0
"""The error of a shorter gap is below that of API timestamps, which have whole seconds."""

PODS = (
    (pods.CREATED, pods.API_CREATED),
    (pods.SCHEDULED, pods.API_SCHEDULED),
    (pods.RUNNING, pods.API_STARTED),
    (pods.READY, pods.API_READY),
    (pods.OVER, pods.API_OVER),
)
WORKLOADS = (
    (workloads.CREATED, workloads.API_CREATED),
    (workloads.STARTED, workloads.API_STARTED),
    (workloads.READY, workloads.API_READY),
    (workloads.OVER, workloads.API_OVER),
    (workloads.POD_CREATED, workloads.API_POD_CREATED),
    (workloads.POD_RUNNING, workloads.API_POD_STARTED),
)
"""Columns of the watch clock with their API timestamps."""


def discard_delayed_times(table: Table, pairs: Sequence[tuple[int, int]], gaps: Sequence[tuple[float, float]]) -> None:
    """Mark receive times that a gap has delayed as unknown."""
    long = [(start, end) for start, end in gaps if end - start >= SHORTEST_S]
    for watch, api in pairs if long else ():
        received, timestamps = table.times[watch], table.times[api]
        for row, second in enumerate(timestamps):
            if received[row] > 0 and any(start < second + 1 <= end <= received[row] for start, end in long):
                received[row] = -received[row]
