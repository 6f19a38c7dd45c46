"""Alerts and dashboard: existing metrics, valid PromQL, and alerts that fire when they should."""

import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.daemon import metrics
from kwokfleet.daemon.snapshot import Pass, PassResult
from tests.harness import deploy_manifests, fake_daemon

Rule = dict[str, Any]
MONITORING = deploy_manifests.DEPLOY / "components" / "monitoring"
NAME = re.compile(r"\b(?:kwokfleet|process)_[a-z_]+\b")
FROM_SCRAPING = {"namespace", "pod", "service", "le"}
"""Labels that Prometheus adds."""
HERE = 'namespace="kwokfleet"'
LEADER = {f'kwokfleet_leader{{{HERE}, pod="a"}}': "1x60", f'kwokfleet_leader{{{HERE}, pod="b"}}': "0x60"}
"""Two replicas; the second one tests the aggregation."""
LAB = f'{HERE}, fleet="lab"'
FIRES: dict[str, dict[str, str]] = {
    "KwokfleetAbsent": {"something_else": "1x60"},
    "KwokfleetNobodyLeads": {f'kwokfleet_leader{{{HERE}, pod="a"}}': "0x60"},
    "KwokfleetNoPasses": {f'kwokfleet_last_pass_timestamp_seconds{{{HERE}, pod="a"}}': "60x60"},
    "KwokfleetFilesBroken": {f'kwokfleet_source_invalid_files{{{HERE}, pod="a"}}': "1x60"},
    "KwokfleetChangesFail": {f'kwokfleet_change_failures_total{{{HERE}, pod="a"}}': "0+3x60"},
    "KwokfleetStalled": {f'kwokfleet_fleet_condition{{{LAB}, type="Stalled", pod="a"}}': "1x60"},
    "KwokfleetPruneWithheld": {f'kwokfleet_withheld_changes{{{LAB}, cause="approval", pod="a"}}': "7x60"},
    "KwokfleetNodesNotReady": {
        f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="desired", pod="a"}}': "5x60",
        f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="ready", pod="a"}}': "3x60",
    },
    "KwokfleetGateFailed": {
        f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="a"}}': "0x60",
        f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="b"}}': "1x60",
    },
    "KwokfleetKwokDown": {f'kwokfleet_kwok_up{{{HERE}, shard="1", pod="a"}}': "0x60"},
    "KwokfleetNodesNotDriven": {f'kwokfleet_fleet_condition{{{LAB}, type="Degraded", pod="a"}}': "1x60"},
    "KwokfleetLeaseLag": {f'kwokfleet_kwok_lag_seconds{{{HERE}, shard="1", pod="a"}}': "25x60"},
}
"""For each alert, series for which only it fires."""
HEALTHY = {
    f'kwokfleet_last_pass_timestamp_seconds{{{HERE}, pod="a"}}': "0+60x60",
    f'kwokfleet_source_invalid_files{{{HERE}, pod="a"}}': "0x60",
    f'kwokfleet_change_failures_total{{{HERE}, pod="a"}}': "3x60",
    f'kwokfleet_fleet_condition{{{LAB}, type="Stalled", pod="a"}}': "0x60",
    f'kwokfleet_withheld_changes{{{LAB}, cause="window", pod="a"}}': "7x60",
    f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="desired", pod="a"}}': "5x60",
    f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="ready", pod="a"}}': "5x60",
    f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="a"}}': "1x60",
    f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="b"}}': "0x60",  # from its time as leader
    f'kwokfleet_kwok_up{{{HERE}, shard="1", pod="a"}}': "1x60",
    f'kwokfleet_fleet_condition{{{LAB}, type="Degraded", pod="a"}}': "0x60",
    f'kwokfleet_kwok_lag_seconds{{{HERE}, shard="1", pod="a"}}': "2x60",
}
"""A healthy fleet."""


def rules() -> list[Rule]:
    """Return every alert."""
    [manifest] = deploy_manifests.parse((MONITORING / "prometheusrule.yaml").read_text())
    return [rule for group in manifest["spec"]["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """Yield title and expression of each dashboard query, with Grafana's variables replaced."""
    [dashboard] = deploy_manifests.parse((MONITORING / "dashboard.yaml").read_text())
    for panel in json.loads(dashboard["data"]["kwokfleet.json"])["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


@functools.cache
def expressions() -> dict[str, str]:
    """Return all PromQL expressions by alert or panel."""
    by_place = {rule["alert"]: rule["expr"] for rule in rules()}
    by_place.update((f"panel {number}, {title}", text) for number, (title, text) in enumerate(panels()))
    return by_place


@functools.cache
def exported() -> dict[str, set[str]]:
    """Return all exported samples and their labels."""
    recorded = metrics.Metrics()
    recorded.registry.register(metrics.SnapshotGauges(lambda: fake_daemon.SNAPSHOT))
    recorded.passed(Pass(fake_daemon.NOW, "timer", 0.3, PassResult.CHANGED, {"create": 3}, failures=2))
    recorded.triggered(0.02)
    recorded.api_request("get", 200)
    recorded.watch_restarted("expired")
    recorded.submitted("lab", "load", refused=True)
    recorded.served("/metrics", "GET", 200)
    labels: dict[str, set[str]] = {}
    for family in recorded.registry.collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.mark.parametrize("where", expressions())
def test_every_queried_metric_is_exported(where: str) -> None:
    """And every label that it is selected or aggregated by."""
    exported_labels, text = exported(), expressions()[where]
    names = set(NAME.findall(re.sub(r'"[^"]*"', '""', text)))
    assert names
    assert names <= exported_labels.keys()
    labels = set().union(*(exported_labels[name] for name in names)) | FROM_SCRAPING
    grouped = {name.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for name in group.split(",")}
    selected = set(re.findall(r"(\w+)=~?\"", text))
    assert grouped | selected <= labels


def test_every_alert_has_a_summary_a_description_and_an_action() -> None:
    """As sentences."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "action"}, rule["alert"]
        assert all(text.endswith(".") for text in rule["annotations"].values()), rule["alert"]


def test_every_alert_has_an_example() -> None:
    """Each one is tested below."""
    assert {rule["alert"] for rule in rules()} == set(FIRES)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    command = [deploy_manifests.find_program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_expression_parses(tmp_path: Path) -> None:
    """According to promtool."""
    numbered = enumerate(expressions().items())
    listed = [{"record": f"r:{number}", "expr": text, "labels": {"at": where}} for number, (where, text) in numbered]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "all", "rules": listed}]}))
    done = promtool("check", "rules", str(tmp_path / "rules.json"))
    assert done.returncode == 0, done.stdout + done.stderr


def check_alerts(series: dict[str, str], folder: Path, expected: str) -> subprocess.CompletedProcess[str]:
    """Evaluate the alerts on an hour of series; exactly *expected* must fire."""
    [manifest] = deploy_manifests.parse((MONITORING / "prometheusrule.yaml").read_text())
    (folder / "rules.json").write_text(json.dumps({"groups": manifest["spec"]["groups"]}))
    queries = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "58m",
            "exp_samples": [{"labels": f'{{alertname="{expected}"}}', "value": 1}] if expected else [],
        }
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": queries,
    }
    (folder / "test.json").write_text(
        json.dumps({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]})
    )
    return promtool("test", "rules", str(folder / "test.json"))


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    """In an otherwise healthy fleet."""
    others = {} if alert in ("KwokfleetAbsent", "KwokfleetNobodyLeads") else {**LEADER, **HEALTHY}
    done = check_alerts({**others, **FIRES[alert]}, tmp_path, alert)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_fires_for_a_healthy_fleet(tmp_path: Path) -> None:
    """Also if a gate failed under a former leader."""
    done = check_alerts({**LEADER, **HEALTHY}, tmp_path, "")
    assert done.returncode == 0, done.stdout + done.stderr
