"""The overview of all Fleets, as rows and lines."""

from typing import Any

from kwokfleet.daemon import overview
from kwokfleet.kube.objects import Manifest
from tests.harness import manifests

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
RUN = {"name": "0", "start": "2026-03-02T12:00:00.000000Z", "state": "Running", "submitted": 4, "total": 9, "failed": 1}


def fleet(name: str = "lab", annotations: dict[str, str] | None = None, **status: Any) -> Manifest:  # noqa: ANN401  # any part of a status
    """Return a Fleet object."""
    return {"metadata": {"name": name, "annotations": annotations}, "status": status}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Manifest:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def lines(*fleets: Manifest) -> dict[str, str]:
    """Return the lines of Fleets without nodes, by subject."""
    return dict(overview.overview(fleets, {}).lines())


def test_the_line_of_a_fleet_has_conditions_revision_and_message() -> None:
    """Ready, and all other conditions that are True."""
    conditions = [condition("Ready", "False", "KwokDown", "0 of 3 nodes are Ready"), condition("Degraded", "True")]
    degraded = fleet(conditions=conditions, source={"revision": "main@1234567"}, annotations={})
    assert lines(degraded) == {"fleet lab": "NotReady,Degraded (KwokDown) at main@1234567: 0 of 3 nodes are Ready"}
    suspended = fleet(
        annotations={"kwokfleet.dev/suspend": "true"}, conditions=[condition("Ready", "True", "Suspended")]
    )
    assert lines(suspended)["fleet lab"].startswith("Ready,Suspended (Suspended)")


def test_a_fleet_without_a_status_is_unknown() -> None:
    """It is new, or a user created it."""
    assert lines({"metadata": {"name": "new"}}) == {"fleet new": "Unknown (): no status yet"}


def test_nodes_are_counted_and_desired_comes_from_the_status() -> None:
    """A pool that is only in the cluster is listed while it has nodes."""
    nodes = [manifests.observe(manifests.node(f"n{number}", status=READY)) for number in range(2)]
    inventory = {node.key: node for node in nodes}
    name, pool = nodes[0].fleet, nodes[0].pool
    lab = fleet(name, pools=[{"name": pool, "desired": 5, "ready": 5}, {"name": "z-empty", "desired": 1}])
    rows = overview.overview([lab], inventory).pools
    assert [(row["pool"], row["desired"], row["nodes"], row["ready"]) for row in rows] == [
        (pool, 5, 2, 2),
        ("z-empty", 1, 0, 0),
    ]
    assert [row["desired"] for row in overview.overview([], inventory).pools] == [0]
    assert overview.overview([lab], inventory, {"another"}) == overview.Overview()


def test_a_withheld_change_has_the_command_that_approves_it() -> None:
    """Two withheld changes of one cause are two lines."""
    held = [{"cause": "approval", "why": "too much", "digest": d, "changes": 3} for d in ("aa", "bb")]
    texts = lines(fleet(withheld=[*held, {"cause": "suspended", "why": "suspended by a user"}]))
    assert texts["withheld lab/approval/aa"] == "too much (kwokfleet approve aa)"
    assert texts["withheld lab/suspended"] == "suspended by a user"
    assert len(texts) == 4


def test_waves_and_runs_are_listed_from_the_ledger() -> None:
    """Also a Wave without a Run."""
    lab = fleet(
        waves=[
            {"name": "load", "since": "2026-03-02T12:00:00Z", "runs": [{**RUN, "state": "Done"}, {**RUN, "name": "1"}]},
            {"name": "later", "since": "2026-03-02T12:00:00Z", "runs": []},
        ]
    )
    assert lines(lab)["run lab/load/1"] == "Running, 4 of 9 submitted, 1 failed"
    assert [(row["wave"], row["runs"], row["last"], row["state"]) for row in overview.waves([lab])] == [
        ("load", 2, "1", "Running"),
        ("later", 0, "-", "Waiting"),
    ]
    assert [row["run"] for row in overview.runs([lab])] == ["0", "1"]
