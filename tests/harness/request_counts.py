"""Request counts by verb and resource, from the metrics of the API server.

The counts include all clients: a test must use resources that only the code under test touches.
"""

import time
from collections import Counter
from collections.abc import Callable

from prometheus_client import parser

METRIC = "apiserver_request_total"
SETTLE_S = 0.2
SETTLE_TRIES = 25
_READS = frozenset({"GET", "LIST", "WATCH"})


class RequestCounts:
    """Requests by (verb, resource), where the resource of a subresource is `nodes/status`.

    Verbs are the API server's: GET LIST WATCH POST PUT PATCH APPLY DELETE DELETECOLLECTION.
    A WATCH is counted when it ends.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def fill(self, before: Counter[tuple[str, str]], after: Counter[tuple[str, str]]) -> None:
        """Set the counts to the difference of two readings."""
        self._counts = after - before

    def of(self, verb: str, resource: str) -> int:
        """Return the count of one verb on one resource."""
        return self._counts[verb, resource]

    def writes(self, resource: str) -> int:
        """Return the count of writes to *resource* and its subresources."""
        return sum(
            count
            for (verb, name), count in self._counts.items()
            if verb not in _READS and name.partition("/")[0] == resource
        )

    def all(self) -> dict[tuple[str, str], int]:
        """Return all counts."""
        return dict(sorted(self._counts.items()))


def read_settled(metrics: Callable[[], str]) -> Counter[tuple[str, str]]:
    """Return the counts when they are stable: a request is counted after its response."""
    counts = parse(metrics())
    for _ in range(SETTLE_TRIES):
        time.sleep(SETTLE_S)
        again = parse(metrics())
        if again == counts:
            return counts
        counts = again
    raise AssertionError("the API server is never idle: its request counts do not settle")


def parse(text: str) -> Counter[tuple[str, str]]:
    """Add up the metric's samples by verb and resource."""
    lines = [line for line in text.splitlines() if line.startswith(METRIC)]
    counts: Counter[tuple[str, str]] = Counter()
    for family in parser.text_string_to_metric_families("\n".join([f"# TYPE {METRIC} counter", *lines, ""])):
        for sample in family.samples:
            labels = sample.labels
            if labels["resource"]:
                name = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                counts[labels["verb"], name] += int(sample.value)
    return counts
