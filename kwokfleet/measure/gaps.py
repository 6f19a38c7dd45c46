"""What a gap takes from the watch: a state that was told after it, but reached in it, was seen too late.

A watch that is resumed tells everything that happened meanwhile at once, and a process that stood
still reads it all when it wakes up. The time at which that is received says nothing of when it was.
"""

from collections.abc import Sequence

from kwokfleet.measure import pods, workloads
from kwokfleet.measure.columns import Table

SHORTEST_S = 1.0
"""A gap that is shorter makes a receive time less wrong than the API's whole seconds are."""

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
"""What was received, and the second in which it happened."""


def discard_delayed_times(table: Table, pairs: Sequence[tuple[int, int]], gaps: Sequence[tuple[float, float]]) -> None:
    """Make receive times unknown that a gap has delayed."""
    long = [(start, end) for start, end in gaps if end - start >= SHORTEST_S]
    for watch, api in pairs if long else ():
        seen, written = table.times[watch], table.times[api]
        for row, second in enumerate(written):
            if seen[row] > 0 and any(start < second + 1 <= end <= seen[row] for start, end in long):
                seen[row] = -seen[row]
