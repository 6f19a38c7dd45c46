from collections import Counter

from tests.harness import request_counts


def sample(value: int, **labels: str) -> str:
    """Write one line as the API server does."""
    every = {
        "code": "200",
        "dry_run": "",
        "group": "",
        "scope": "resource",
        "subresource": "",
        "version": "v1",
    } | labels
    inner = ",".join(f'{key}="{text}"' for key, text in every.items())
    return f"apiserver_request_total{{{inner}}} {value}\n"


METRICS = (
    "# TYPE apiserver_request_total counter\n"
    + sample(7, verb="POST", resource="nodes", code="201")
    + sample(2, verb="POST", resource="nodes", code="409")
    + sample(5, verb="PATCH", resource="nodes", subresource="status")
    + sample(40, verb="GET", resource="", subresource="/metrics")
    + 'apiserver_request_duration_seconds_count{resource="nodes",verb="POST"} 9\n'
)


def test_samples_are_added_up_by_verb_and_resource() -> None:
    """Result codes do not matter, subresources do, and what is no resource does not count."""
    assert request_counts.parse(METRICS) == Counter({("POST", "nodes"): 9, ("PATCH", "nodes/status"): 5})


def test_writes_include_subresources_and_leave_out_reads() -> None:
    """One number answers whether anything changed nodes."""
    counted = request_counts.RequestCounts()
    counted.fill(Counter(), Counter({("POST", "nodes"): 9, ("PATCH", "nodes/status"): 5, ("LIST", "nodes"): 3}))
    assert counted.writes("nodes") == 14
    assert counted.of("LIST", "nodes") == 3
    assert counted.writes("pods") == 0
