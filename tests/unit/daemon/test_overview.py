"""How all Fleets stand, in rows and lines."""

from typing import Any

from kwokfleet.daemon import overview
from kwokfleet.kube.objects import Manifest
from tests.harness import manifests

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
RUN = {"name": "0", "start": "2026-03-02T12:00:00.000000Z", "state": "Running", "submitted": 4, "total": 9, "failed": 1}


def fleet(name: str = "lab", annotations: dict[str, str] | None = None, **status: Any) -> Manifest:  # noqa: ANN401  # any part of a status
    """Return a Fleet as the cluster has it."""
    return {"metadata": {"name": name, "annotations": annotations}, "status": status}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Manifest:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def said(*fleets: Manifest) -> dict[str, str]:
    """Return the lines about some Fleets without nodes."""
    return dict(overview.overview(fleets, {}).lines())


def test_a_fleet_s_line_tells_its_conditions_revision_and_message() -> None:
    """All that is out of the ordinary, in one word each."""
    conditions = [condition("Ready", "False", "KwokDown", "0 of 3 nodes are Ready"), condition("Degraded", "True")]
    found = fleet(conditions=conditions, source={"revision": "main@1234567"}, annotations={})
    assert said(found) == {"fleet lab": "NotReady,Degraded (KwokDown) at main@1234567: 0 of 3 nodes are Ready"}
    asleep = fleet(annotations={"kwokfleet.dev/suspend": "true"}, conditions=[condition("Ready", "True", "Suspended")])
    assert said(asleep)["fleet lab"].startswith("Ready,Suspended (Suspended)")


def test_a_fleet_of_which_nothing_was_told_is_no_error() -> None:
    """It was made a moment ago, or by hand."""
    assert said({"metadata": {"name": "new"}}) == {"fleet new": "Unknown (): no status yet"}


def test_nodes_are_counted_as_they_are_and_wanted_as_was_told() -> None:
    """What was told may be older; a pool that is in neither file nor status is shown while it has nodes."""
    there = [manifests.observe(manifests.node(f"n{number}", status=READY)) for number in range(2)]
    inventory = {each.key: each for each in there}
    name, pool = there[0].fleet, there[0].pool
    told = fleet(name, pools=[{"name": pool, "desired": 5, "ready": 5}, {"name": "z-empty", "desired": 1}])
    rows = overview.overview([told], inventory).pools
    assert [(row["pool"], row["desired"], row["nodes"], row["ready"]) for row in rows] == [
        (pool, 5, 2, 2),
        ("z-empty", 1, 0, 0),
    ]
    assert [row["desired"] for row in overview.overview([], inventory).pools] == [0]
    assert overview.overview([told], inventory, {"another"}) == overview.Overview()


def test_what_is_withheld_tells_what_releases_it() -> None:
    """Two of one cause are two lines."""
    held = [{"cause": "approval", "why": "too much", "digest": d, "changes": 3} for d in ("aa", "bb")]
    found = said(fleet(withheld=[*held, {"cause": "suspended", "why": "asleep"}]))
    assert found["withheld lab/approval/aa"] == "too much (kwokfleet approve aa)"
    assert found["withheld lab/suspended"] == "asleep"
    assert len(found) == 4


def test_waves_and_runs_are_listed_from_the_ledger() -> None:
    """Also a Wave that has not run yet."""
    found = fleet(
        waves=[
            {"name": "load", "since": "2026-03-02T12:00:00Z", "runs": [{**RUN, "state": "Done"}, {**RUN, "name": "1"}]},
            {"name": "later", "since": "2026-03-02T12:00:00Z", "runs": []},
        ]
    )
    assert said(found)["run lab/load/1"] == "Running, 4 of 9 submitted, 1 failed"
    assert [(row["wave"], row["runs"], row["last"], row["state"]) for row in overview.waves([found])] == [
        ("load", 2, "1", "Running"),
        ("later", 0, "-", "Waiting"),
    ]
    assert [row["run"] for row in overview.runs([found])] == ["0", "1"]
