"""Metrics: documented names, correct values, a bounded number of series."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from kwokfleet.daemon import metrics
from kwokfleet.daemon.snapshot import FleetSnapshot, Nodes, Pass, PassResult, PoolSnapshot, Snapshot
from tests.harness import fake_daemon

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
REQUIRED_TYPES = {
    "kwokfleet_reconcile_duration_seconds": "histogram",
    "kwokfleet_reconcile_total": "counter",
    "kwokfleet_objects": "gauge",
    "kwokfleet_drift_total": "counter",
    "kwokfleet_prune_blocked": "gauge",
    "kwokfleet_source_invalid_files": "gauge",
    "kwokfleet_source_last_success_timestamp_seconds": "gauge",
    "kwokfleet_api_requests_total": "counter",
    "kwokfleet_watch_restarts_total": "counter",
    "kwokfleet_kwok_up": "gauge",
    "kwokfleet_leader": "gauge",
}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics_of(snapshot: Snapshot) -> metrics.Metrics:
    """Return metrics with the gauges of a snapshot."""
    recorded = metrics.Metrics()
    recorded.registry.register(metrics.SnapshotGauges(lambda: snapshot))
    return recorded


def filled_metrics() -> metrics.Metrics:
    """Return metrics with a value of each kind."""
    recorded = metrics_of(fake_daemon.SNAPSHOT)
    recorded.passed(Pass(fake_daemon.NOW, "timer", 0.3, PassResult.CHANGED, {"create": 3, "delete": 1}, failures=2))
    recorded.triggered(0.02)
    recorded.drifted(4)
    recorded.api_request("get", 200)
    recorded.api_request("brew", 0)
    recorded.watch_restarted("expired")
    recorded.submitted("lab", "load", refused=False)
    recorded.submitted("lab", "load", refused=True)
    recorded.served("/api/v1/fleets/{name}", "GET", 404)
    return recorded


def samples(recorded: metrics.Metrics) -> Samples:
    """Return every sample of the text format."""
    text = recorded.page("")[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_required_metrics_exist_with_type_and_help() -> None:
    """Names and types are an interface; every help text is a sentence."""
    text = filled_metrics().page("")[0].decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert REQUIRED_TYPES.items() <= types.items()
    with_help = {line.split()[2] for line in text.splitlines() if re.fullmatch(r"# HELP \S+ .+\.", line)}
    assert {name for name in types if name.startswith("kwokfleet_")} <= with_help


def test_the_documentation_lists_exactly_all_metrics() -> None:
    """In docs/http.md."""
    text = filled_metrics().page("")[0].decode()
    types = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE kwokfleet_")}
    guide = (Path(__file__).parents[2] / "docs" / "http.md").read_text().partition("## Metrics")[2]
    assert set(re.findall(r"`(kwokfleet_\w+)`", guide)) == types


def test_names_follow_the_conventions() -> None:
    """As promtool checks: only counters end in _total; base units; no type in a name."""
    text = filled_metrics().page("")[0].decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE kwokfleet_"))
    assert len(types) > 25
    for name, kind in types.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert re.fullmatch(r"[a-z_]+", name)
        assert not re.search(r"_(milliseconds|ms|minutes|kilobytes|megabytes|percent|gauge|counter|histogram)\b", name)
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_counters_and_histograms_have_the_recorded_values() -> None:
    """Unknown labels are `other`; a request without a response has the code `none`."""
    values = samples(filled_metrics())
    assert values["kwokfleet_reconcile_total", (("result", "changed"),)] == 1
    assert values["kwokfleet_reconcile_total", (("result", "failed"),)] == 0
    assert values["kwokfleet_reconcile_duration_seconds_bucket", (("le", "0.25"),)] == 0
    assert values["kwokfleet_reconcile_duration_seconds_bucket", (("le", "0.5"),)] == 1
    assert values["kwokfleet_trigger_latency_seconds_sum", ()] == 0.02
    assert values["kwokfleet_changes_total", (("action", "create"),)] == 3
    assert values["kwokfleet_change_failures_total", ()] == 2
    assert values["kwokfleet_drift_total", ()] == 4
    assert values["kwokfleet_api_requests_total", (("code", "200"), ("verb", "GET"))] == 1
    assert values["kwokfleet_api_requests_total", (("code", "none"), ("verb", "other"))] == 1
    assert values["kwokfleet_watch_restarts_total", (("reason", "expired"),)] == 1
    wave = (("fleet", "lab"), ("wave", "load"))
    assert values["kwokfleet_wave_objects_submitted_total", wave] == 2
    assert values["kwokfleet_wave_objects_failed_total", wave] == 1
    labels = (("code", "404"), ("method", "GET"), ("route", "/api/v1/fleets/{name}"))
    assert values["kwokfleet_http_requests_total", labels] == 1


def test_gauges_have_the_values_of_the_snapshot() -> None:
    """At the time of the scrape."""
    values = samples(filled_metrics())
    stamp = fake_daemon.NOW.timestamp()
    assert values["kwokfleet_leader", ()] == 1
    assert values["kwokfleet_synced", ()] == 1
    assert values["kwokfleet_prune_blocked", ()] == 1
    assert values["kwokfleet_source_invalid_files", ()] == 1
    assert values["kwokfleet_source_last_success_timestamp_seconds", ()] == stamp
    assert values["kwokfleet_last_pass_timestamp_seconds", ()] == stamp + 0.25
    assert values["kwokfleet_objects", (("kind", "Node"), ("state", "ready"))] == 3
    for state, count in (("desired", 2), ("present", 1), ("ready", 0), ("schedulable", 0)):
        assert values["kwokfleet_pool_nodes", (("fleet", "lab"), ("pool", "gpu"), ("state", state))] == count
    assert values["kwokfleet_fleet_condition", (("fleet", "lab"), ("type", "Ready"))] == 0
    assert values["kwokfleet_fleet_condition", (("fleet", "lab"), ("type", "Stalled"))] == 1
    assert values["kwokfleet_fleet_suspended", (("fleet", "other"),)] == 1
    assert values["kwokfleet_withheld_changes", (("cause", "approval"), ("fleet", "lab"))] == 9
    assert [values["kwokfleet_kwok_up", (("shard", shard),)] for shard in "01"] == [1, 0]
    assert values["kwokfleet_kwok_restarts_total", (("shard", "0"),)] == 2
    assert values["kwokfleet_kwok_memory_bytes", (("shard", "0"),)] == 1 << 20
    assert values["kwokfleet_kwok_lag_seconds", (("shard", "0"),)] == 0.5
    assert values["kwokfleet_build_info", (("version", "1.2.3"),)] == 1
    wave = (("fleet", "lab"), ("gate", "deadline"), ("wave", "load"))
    assert values["kwokfleet_gate_passed", wave] == 0
    assert values["kwokfleet_gate_passed", (wave[0], ("gate", "failures"), wave[2])] == 1
    labels = {
        "clock": "watch",
        "fleet": "lab",
        "latency": "podStartup",
        "of": "pods",
        "quantile": "0.99",
        "wave": "load",
    }
    assert values["kwokfleet_run_latency_seconds", tuple(labels.items())] == 1.5


def test_there_are_no_timestamps_before_the_first_pass() -> None:
    """0 would mean 1970."""
    values = samples(metrics_of(Snapshot("1", "me", fake_daemon.NOW, leading=False)))
    names = {name for name, _ in values}
    assert values["kwokfleet_leader", ()] == 0
    assert not {name for name in names if "timestamp" in name}


def test_series_are_bounded() -> None:
    """Labels from files and clients cannot add series without limit."""
    fleets = tuple(
        FleetSnapshot(f"f{number}", Nodes(), (PoolSnapshot("a"), PoolSnapshot("b")))
        for number in range(metrics.MAX_POOLS)
    )
    kinds = {f"Kind{number}": {"present": 1} for number in range(metrics.MAX_KINDS + 10)}
    crowded = replace(fake_daemon.SNAPSHOT, fleets=fleets, objects=kinds)
    recorded = metrics_of(crowded)
    for number in range(100):
        recorded.watch_restarted(f"reason {number}")
        recorded.served(f"/{number}", "GET", 200)
        recorded.served("/0", f"METHOD{number}", 200)
    for number in range(metrics.MAX_WAVES + 10):
        recorded.submitted("lab", f"wave-{number}", refused=False)
    values = samples(recorded)
    counts = Counter(name for name, _ in values)
    assert counts["kwokfleet_pool_nodes"] == metrics.MAX_POOLS * 4
    assert counts["kwokfleet_fleet_suspended"] == metrics.MAX_FLEETS
    assert counts["kwokfleet_objects"] == metrics.MAX_KINDS + 1
    assert counts["kwokfleet_watch_restarts_total"] == metrics.MAX_REASONS + 1
    assert counts["kwokfleet_wave_objects_submitted_total"] == metrics.MAX_WAVES + 1
    assert counts["kwokfleet_http_requests_total"] <= metrics.MAX_ROUTES + 2
    assert values["kwokfleet_objects", (("kind", "other"), ("state", "present"))] == 10
    assert values["kwokfleet_metrics_left_out", ()] == metrics.MAX_POOLS - metrics.MAX_FLEETS + metrics.MAX_POOLS


def test_two_daemons_have_separate_metrics() -> None:
    """Each has its registry."""
    first, second = filled_metrics(), filled_metrics()
    first.drifted(1)
    assert samples(second)["kwokfleet_drift_total", ()] == 4


@pytest.mark.parametrize(("accept", "kind"), [(OPENMETRICS, OPENMETRICS), ("text/plain", "text/plain; version=")])
def test_the_accept_header_selects_the_format(accept: str, kind: str) -> None:
    """Over HTTP, as Prometheus requests it."""
    with fake_daemon.serving(fake_daemon.FakeDaemon()) as client:
        client.get("/api/v1/fleets/lab")
        response = client.get("/metrics", accept=accept)
    assert response.headers["content-type"].startswith(kind)
    parse = openmetrics_parser if kind == OPENMETRICS else parser
    families = list(parse.text_string_to_metric_families(response.body.decode()))
    served = [item for family in families for item in family.samples if item.name == "kwokfleet_http_requests_total"]
    assert [(item.labels["route"], item.value) for item in served] == [("/api/v1/fleets/{name}", 1)]
