"""Metrics: names as promised, values as shown, a bounded number of series."""

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
PROMISED = {
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


def recorded(shown: Snapshot) -> metrics.Metrics:
    """Return metrics whose gauges show a snapshot."""
    made = metrics.Metrics()
    made.registry.register(metrics.SnapshotGauges(lambda: shown))
    return made


def told() -> metrics.Metrics:
    """Return metrics that have been told something of each kind."""
    made = recorded(fake_daemon.SNAPSHOT)
    made.passed(Pass(fake_daemon.NOW, "timer", 0.3, PassResult.CHANGED, {"create": 3, "delete": 1}, failures=2))
    made.triggered(0.02)
    made.drifted(4)
    made.api_request("get", 200)
    made.api_request("brew", 0)
    made.watch_restarted("expired")
    made.submitted("lab", "load", refused=False)
    made.submitted("lab", "load", refused=True)
    made.served("/api/v1/fleets/{name}", "GET", 404)
    return made


def samples(made: metrics.Metrics) -> Samples:
    """Return every sample of the plain format."""
    text = made.page("")[0].decode()
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
    }


def test_names_are_as_promised() -> None:
    """With their types; each has a sentence of help."""
    text = told().page("")[0].decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert PROMISED.items() <= types.items()
    helped = {line.split()[2] for line in text.splitlines() if re.fullmatch(r"# HELP \S+ .+\.", line)}
    assert {name for name in types if name.startswith("kwokfleet_")} <= helped


def test_the_guide_names_every_metric_and_no_other() -> None:
    """Whoever writes an alert looks there."""
    text = told().page("")[0].decode()
    types = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE kwokfleet_")}
    guide = (Path(__file__).parents[2] / "docs" / "http.md").read_text().partition("## Metrics")[2]
    assert set(re.findall(r"`(kwokfleet_\w+)`", guide)) == types


def test_names_follow_the_conventions() -> None:
    """As promtool checks: counters end in _total, nothing else does; base units; no type in a name."""
    text = told().page("")[0].decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE kwokfleet_"))
    assert len(types) > 25
    for name, kind in types.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert re.fullmatch(r"[a-z_]+", name)
        assert not re.search(r"_(milliseconds|ms|minutes|kilobytes|megabytes|percent|gauge|counter|histogram)\b", name)
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_counters_and_histograms_say_what_they_were_told() -> None:
    """Labels that nobody foresaw are `other`; a request without an answer has the code `none`."""
    found = samples(told())
    assert found["kwokfleet_reconcile_total", (("result", "changed"),)] == 1
    assert found["kwokfleet_reconcile_total", (("result", "failed"),)] == 0
    assert found["kwokfleet_reconcile_duration_seconds_bucket", (("le", "0.25"),)] == 0
    assert found["kwokfleet_reconcile_duration_seconds_bucket", (("le", "0.5"),)] == 1
    assert found["kwokfleet_trigger_latency_seconds_sum", ()] == 0.02
    assert found["kwokfleet_changes_total", (("action", "create"),)] == 3
    assert found["kwokfleet_change_failures_total", ()] == 2
    assert found["kwokfleet_drift_total", ()] == 4
    assert found["kwokfleet_api_requests_total", (("code", "200"), ("verb", "GET"))] == 1
    assert found["kwokfleet_api_requests_total", (("code", "none"), ("verb", "other"))] == 1
    assert found["kwokfleet_watch_restarts_total", (("reason", "expired"),)] == 1
    wave = (("fleet", "lab"), ("wave", "load"))
    assert found["kwokfleet_wave_objects_submitted_total", wave] == 2
    assert found["kwokfleet_wave_objects_failed_total", wave] == 1
    labels = (("code", "404"), ("method", "GET"), ("route", "/api/v1/fleets/{name}"))
    assert found["kwokfleet_http_requests_total", labels] == 1


def test_gauges_say_what_the_picture_shows() -> None:
    """All of it, at the moment of the scrape."""
    found = samples(told())
    stamp = fake_daemon.NOW.timestamp()
    assert found["kwokfleet_leader", ()] == 1
    assert found["kwokfleet_synced", ()] == 1
    assert found["kwokfleet_prune_blocked", ()] == 1
    assert found["kwokfleet_source_invalid_files", ()] == 1
    assert found["kwokfleet_source_last_success_timestamp_seconds", ()] == stamp
    assert found["kwokfleet_last_pass_timestamp_seconds", ()] == stamp + 0.25
    assert found["kwokfleet_objects", (("kind", "Node"), ("state", "ready"))] == 3
    for state, count in (("desired", 2), ("present", 1), ("ready", 0), ("schedulable", 0)):
        assert found["kwokfleet_pool_nodes", (("fleet", "lab"), ("pool", "gpu"), ("state", state))] == count
    assert found["kwokfleet_fleet_condition", (("fleet", "lab"), ("type", "Ready"))] == 0
    assert found["kwokfleet_fleet_condition", (("fleet", "lab"), ("type", "Stalled"))] == 1
    assert found["kwokfleet_fleet_suspended", (("fleet", "other"),)] == 1
    assert found["kwokfleet_withheld_changes", (("cause", "approval"), ("fleet", "lab"))] == 9
    assert [found["kwokfleet_kwok_up", (("shard", shard),)] for shard in "01"] == [1, 0]
    assert found["kwokfleet_kwok_restarts_total", (("shard", "0"),)] == 2
    assert found["kwokfleet_kwok_memory_bytes", (("shard", "0"),)] == 1 << 20
    assert found["kwokfleet_kwok_lag_seconds", (("shard", "0"),)] == 0.5
    assert found["kwokfleet_build_info", (("version", "1.2.3"),)] == 1
    wave = (("fleet", "lab"), ("gate", "deadline"), ("wave", "load"))
    assert found["kwokfleet_gate_passed", wave] == 0
    assert found["kwokfleet_gate_passed", (wave[0], ("gate", "failures"), wave[2])] == 1
    labels = {
        "clock": "watch",
        "fleet": "lab",
        "latency": "podStartup",
        "of": "pods",
        "quantile": "0.99",
        "wave": "load",
    }
    assert found["kwokfleet_run_latency_seconds", tuple(labels.items())] == 1.5


def test_before_the_first_pass_nothing_is_claimed() -> None:
    """No time is better than 1970."""
    found = samples(recorded(Snapshot("1", "me", fake_daemon.NOW, leading=False)))
    names = {name for name, _ in found}
    assert found["kwokfleet_leader", ()] == 0
    assert not {name for name in names if "timestamp" in name}


def test_series_are_bounded() -> None:
    """Whatever files and other programs come up with."""
    fleets = tuple(
        FleetSnapshot(f"f{number}", Nodes(), (PoolSnapshot("a"), PoolSnapshot("b")))
        for number in range(metrics.MAX_POOLS)
    )
    kinds = {(f"Kind{number}", "present"): 1 for number in range(metrics.MAX_KINDS + 10)}
    crowd = replace(fake_daemon.SNAPSHOT, fleets=fleets, objects=kinds)
    made = recorded(crowd)
    for number in range(100):
        made.watch_restarted(f"reason {number}")
        made.served(f"/{number}", "GET", 200)
        made.served("/0", f"METHOD{number}", 200)
    for number in range(metrics.MAX_WAVES + 10):
        made.submitted("lab", f"wave-{number}", refused=False)
    found = samples(made)
    counts = Counter(name for name, _ in found)
    assert counts["kwokfleet_pool_nodes"] == metrics.MAX_POOLS * 4
    assert counts["kwokfleet_fleet_suspended"] == metrics.MAX_FLEETS
    assert counts["kwokfleet_objects"] == metrics.MAX_KINDS + 1
    assert counts["kwokfleet_watch_restarts_total"] == metrics.MAX_REASONS + 1
    assert counts["kwokfleet_wave_objects_submitted_total"] == metrics.MAX_WAVES + 1
    assert counts["kwokfleet_http_requests_total"] <= metrics.MAX_ROUTES + 2
    assert found["kwokfleet_objects", (("kind", "other"), ("state", "present"))] == 10
    assert found["kwokfleet_metrics_left_out", ()] == metrics.MAX_POOLS - metrics.MAX_FLEETS + metrics.MAX_POOLS


def test_two_daemons_do_not_add_up() -> None:
    """Each has a registry of its own."""
    first, second = told(), told()
    first.drifted()
    assert samples(second)["kwokfleet_drift_total", ()] == 4


@pytest.mark.parametrize(("accept", "kind"), [(OPENMETRICS, OPENMETRICS), ("text/plain", "text/plain; version=")])
def test_the_format_is_the_one_that_is_asked_for(accept: str, kind: str) -> None:
    """Over HTTP, as Prometheus asks; both can be read."""
    with fake_daemon.serving(fake_daemon.FakeDaemon()) as client:
        client.get("/api/v1/fleets/lab")
        answer = client.get("/metrics", accept=accept)
    assert answer.headers["content-type"].startswith(kind)
    read = openmetrics_parser if kind == OPENMETRICS else parser
    families = list(read.text_string_to_metric_families(answer.body.decode()))
    served = [each for family in families for each in family.samples if each.name == "kwokfleet_http_requests_total"]
    assert [(each.labels["route"], each.value) for each in served] == [("/api/v1/fleets/{name}", 1)]
