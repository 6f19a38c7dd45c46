"""Detection of other kwok controllers, and their takeover."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kwokfleet.kwok import foreign_controllers
from kwokfleet.kwok.node_leases import NodeLease

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)


def deployment(name: str, image: str = "nginx", **metadata: Any) -> dict[str, Any]:  # noqa: ANN401  # of a manifest
    """Return a Deployment manifest."""
    template = {"spec": {"containers": [{"image": image}]}}
    metadata = {"name": name, "namespace": "kube-system", "uid": "u", **metadata}
    return {"metadata": metadata, "spec": {"replicas": 2, "template": template}}


def test_kwok_deployments_are_known_by_name_label_or_image() -> None:
    """A similar image name is not enough."""
    assert foreign_controllers.runs_kwok(deployment("kwok-controller"))
    assert foreign_controllers.runs_kwok(deployment("x", labels={"app": "kwok-controller"}))
    assert foreign_controllers.runs_kwok(deployment("x", "registry.example/kwok/kwok:v0.8.0"))
    assert not foreign_controllers.runs_kwok(deployment("x", "registry.example/kwokfleet:1"))


def test_a_scaled_down_deployment_gets_its_replicas_back() -> None:
    """A Deployment that was scaled by another user meanwhile keeps that size."""
    patch = foreign_controllers.scale_down_patch(foreign_controllers.from_deployment(deployment("x"))).body
    assert (patch["spec"], patch["metadata"]["annotations"]) == ({"replicas": 0}, {foreign_controllers.REPLICAS: "2"})
    scaled_down = foreign_controllers.ForeignController("n", "x", "u", 0, 2)
    scaled_up = foreign_controllers.ForeignController("n", "x", "u", 5, 2)
    assert foreign_controllers.restore_patch(scaled_down).body["spec"] == {"replicas": 2}
    assert "spec" not in foreign_controllers.restore_patch(scaled_up).body


def lease(holder: str, age_s: float) -> NodeLease:
    """Return a lease of 40 s that was renewed *age_s* ago."""
    return NodeLease("node", holder, NOW - timedelta(seconds=age_s), 40, "u", "1")


def test_a_foreign_holder_is_alive_if_one_lease_is_recent() -> None:
    """A holder that renewed no lease for half of their duration is dead."""
    leases = [lease("ours", 1), lease("other", 39), lease("other", 19), lease("dead", 21), lease("dead", 41)]
    assert set(foreign_controllers.foreign_leases(leases, "ours".__eq__, NOW)) == {"other"}
