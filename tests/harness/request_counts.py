"""How many requests the API server answered, by verb and resource, from its own metrics.

Promises such as "a settled fleet costs no request" are checked with this. The counts are of all
clients: a test asks about resources that nothing but the code under test touches.
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
        """Keep what came between *before* and *after*."""
        self._counts = after - before

    def of(self, verb: str, resource: str) -> int:
        """Count one verb on one resource."""
        return self._counts[verb, resource]

    def writes(self, resource: str) -> int:
        """Count everything that changes *resource* or one of its subresources."""
        return sum(
            count
            for (verb, name), count in self._counts.items()
            if verb not in _READS and name.partition("/")[0] == resource
        )

    def all(self) -> dict[tuple[str, str], int]:
        """Return every count, for a message."""
        return dict(sorted(self._counts.items()))


def read_settled(metrics: Callable[[], str]) -> Counter[tuple[str, str]]:
    """Read the counts now, once they stand still: an answer is counted after it was sent."""
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
