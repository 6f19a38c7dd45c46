"""The Snapshot of a daemon."""

from datetime import UTC, datetime, timedelta

import pytest

from kwokfleet.daemon import snapshot
from kwokfleet.daemon.snapshot import (
    Nodes,
    PoolSnapshot,
    ScheduledTime,
    ShardSnapshot,
    SourceSnapshot,
    WithheldSummary,
)
from kwokfleet.documents.problems import Problem, Severity
from kwokfleet.reconcile.plan_input import FleetPolicy, PoolPolicy
from tests.harness import manifests

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_a_file_with_many_errors_is_one_invalid_file() -> None:
    """A file with only warnings is valid."""
    problems = (
        Problem("a.yaml", 1, 1, "", "wrong"),
        Problem("a.yaml", 2, 1, "", "wrong too"),
        Problem("b.yaml", 1, 1, "", "odd", severity=Severity.WARNING),
    )
    assert SourceSnapshot(problems=problems).invalid_files == 1


@pytest.mark.parametrize(("state", "up"), [("ready", True), ("lagging", True), ("starting", False), ("refused", False)])
def test_a_shard_that_drives_its_nodes_is_up(state: str, up: bool) -> None:  # noqa: FBT001  # the expected value
    """Also while its renewals lag."""
    assert ShardSnapshot(0, state).up is up


def test_nodes_are_counted_by_fleet_and_pool() -> None:
    """Desired and present nodes; a pool that left the files is listed while it has nodes."""
    nodes = [
        manifests.observe(manifests.node("n0", pool="cpu", status=READY)),
        manifests.observe(manifests.node("n1", pool="cpu")),
        manifests.observe(manifests.node("n2", pool="gone", status=READY)),
        manifests.observe(manifests.node("n3", fleet="stranger", pool="cpu", status=READY)),
    ]
    policies = {
        "lab": FleetPolicy(
            suspended=True, pools={"cpu": PoolPolicy(size=3), "gpu": PoolPolicy(size=2, suspended=True)}
        ),
        "a": FleetPolicy(),
    }
    status = {
        "conditions": [{"type": "Ready"}],
        "withheld": [{"cause": "approval", "why": "much", "changes": 4, "newer": "?"}],
    }
    late, soon = ScheduledTime(NOW + timedelta(hours=2), "late"), ScheduledTime(NOW, "soon")
    first, lab = snapshot.fleet_snapshots(
        policies, {node.key: node for node in nodes}, {"lab": status}, {"lab": [late, soon]}
    )
    assert (first.name, first.nodes, first.pools) == ("a", Nodes(), ())
    assert lab.pools == (
        PoolSnapshot("cpu", Nodes(3, 2, 1, 1)),
        PoolSnapshot("gone", Nodes(0, 1, 1, 1)),
        PoolSnapshot("gpu", Nodes(2, 0, 0, 0), suspended=True),
    )
    assert lab.nodes == Nodes(5, 3, 2, 2)
    assert lab.conditions == ({"type": "Ready"},)
    assert lab.withheld == (WithheldSummary("approval", "much", changes=4),)
    assert lab.suspended
    assert lab.due == (soon, late)
