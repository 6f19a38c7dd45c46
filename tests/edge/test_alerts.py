"""Alerts and dashboard: of metrics that the daemon has, in PromQL that parses, and heard when they should be."""

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
"""Labels that Prometheus adds, or makes of a histogram."""
HERE = 'namespace="kwokfleet"'
LEADER = {f'kwokfleet_leader{{{HERE}, pod="a"}}': "1x60", f'kwokfleet_leader{{{HERE}, pod="b"}}': "0x60"}
"""Two replicas, as they should be; the second one is there to be folded away."""
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
"""For each alert, series in which it fires and no other one does."""
WELL = {
    f'kwokfleet_last_pass_timestamp_seconds{{{HERE}, pod="a"}}': "0+60x60",
    f'kwokfleet_source_invalid_files{{{HERE}, pod="a"}}': "0x60",
    f'kwokfleet_change_failures_total{{{HERE}, pod="a"}}': "3x60",
    f'kwokfleet_fleet_condition{{{LAB}, type="Stalled", pod="a"}}': "0x60",
    f'kwokfleet_withheld_changes{{{LAB}, cause="window", pod="a"}}': "7x60",
    f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="desired", pod="a"}}': "5x60",
    f'kwokfleet_pool_nodes{{{LAB}, pool="gpu", state="ready", pod="a"}}': "5x60",
    f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="a"}}': "1x60",
    f'kwokfleet_gate_passed{{{LAB}, wave="load", gate="podStartup", pod="b"}}': "0x60",  # of when it led
    f'kwokfleet_kwok_up{{{HERE}, shard="1", pod="a"}}': "1x60",
    f'kwokfleet_fleet_condition{{{LAB}, type="Degraded", pod="a"}}': "0x60",
    f'kwokfleet_kwok_lag_seconds{{{HERE}, shard="1", pod="a"}}': "2x60",
}
"""A fleet about which nobody need hear anything."""


def rules() -> list[Rule]:
    """Return every alert."""
    [made] = deploy_manifests.parse((MONITORING / "prometheusrule.yaml").read_text())
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """Yield the title and expression of each query of the dashboard, with Grafana's variables filled in."""
    [made] = deploy_manifests.parse((MONITORING / "dashboard.yaml").read_text())
    for panel in json.loads(made["data"]["kwokfleet.json"])["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


@functools.cache
def expressions() -> dict[str, str]:
    """Return all PromQL there is, by where it is."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    found.update((f"panel {number}, {title}", text) for number, (title, text) in enumerate(panels()))
    return found


@functools.cache
def exported() -> dict[str, set[str]]:
    """Return the names of all samples that a daemon exports, and their labels."""
    made = metrics.Metrics()
    made.registry.register(metrics.SnapshotGauges(lambda: fake_daemon.SNAPSHOT))
    made.passed(Pass(fake_daemon.NOW, "timer", 0.3, PassResult.CHANGED, {"create": 3}, failures=2))
    made.triggered(0.02)
    made.api_request("get", 200)
    made.watch_restarted("expired")
    made.submitted("lab", "load", refused=True)
    made.served("/metrics", "GET", 200)
    found: dict[str, set[str]] = {}
    for family in made.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("where", expressions())
def test_what_is_asked_for_is_exported(where: str) -> None:
    """Every metric, and every label that it is chosen or folded by."""
    known, text = exported(), expressions()[where]
    names = set(NAME.findall(re.sub(r'"[^"]*"', '""', text)))
    assert names
    assert names <= known.keys()
    labels = set().union(*(known[name] for name in names)) | FROM_SCRAPING
    folded = {each.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for each in group.split(",")}
    chosen = set(re.findall(r"(\w+)=~?\"", text))
    assert folded | chosen <= labels


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    """To somebody who is woken by it."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "action"}, rule["alert"]
        assert all(text.endswith(".") for text in rule["annotations"].values()), rule["alert"]


def test_the_chart_of_alerts_is_complete() -> None:
    """Each has an example below."""
    assert {rule["alert"] for rule in rules()} == set(FIRES)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own checker."""
    command = [deploy_manifests.find_program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_expression_parses(tmp_path: Path) -> None:
    """By Prometheus' own word."""
    numbered = enumerate(expressions().items())
    listed = [{"record": f"r:{number}", "expr": text, "labels": {"at": where}} for number, (where, text) in numbered]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "all", "rules": listed}]}))
    done = promtool("check", "rules", str(tmp_path / "rules.json"))
    assert done.returncode == 0, done.stdout + done.stderr


def fired(series: dict[str, str], folder: Path, wanted: str) -> subprocess.CompletedProcess[str]:
    """Let an hour of series pass by the alerts; only *wanted* may fire, and must."""
    [made] = deploy_manifests.parse((MONITORING / "prometheusrule.yaml").read_text())
    (folder / "rules.json").write_text(json.dumps({"groups": made["spec"]["groups"]}))
    asked = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "58m",
            "exp_samples": [{"labels": f'{{alertname="{wanted}"}}', "value": 1}] if wanted else [],
        }
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": asked,
    }
    (folder / "test.json").write_text(
        json.dumps({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]})
    )
    return promtool("test", "rules", str(folder / "test.json"))


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_is_heard(alert: str, tmp_path: Path) -> None:
    """It alone, though all else is well."""
    around = {} if alert in ("KwokfleetAbsent", "KwokfleetNobodyLeads") else {**LEADER, **WELL}
    done = fired({**around, **FIRES[alert]}, tmp_path, alert)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_heard_of_a_fleet_that_is_well(tmp_path: Path) -> None:
    """Not even of a gate that failed when somebody else led."""
    done = fired({**LEADER, **WELL}, tmp_path, "")
    assert done.returncode == 0, done.stdout + done.stderr
