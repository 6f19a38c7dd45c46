"""Drivers of nodes, and the log events about their changes."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from kwokfleet.kwok import lease_health
from kwokfleet.kwok.node_leases import NodeLease

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
NODES = ("a", "b", "c")


def lease(node: str, holder: str = "one", age_s: float = 1) -> NodeLease:
    """Return a lease of 40 s."""
    return NodeLease(node, holder, NOW - timedelta(seconds=age_s), 40)


def health(*held: NodeLease) -> lease_health.DriverHealth:
    """Return the drivers of our nodes."""
    return lease_health.driver_health(NODES, held, NOW)


def events(before: lease_health.DriverHealth | None, now: lease_health.DriverHealth) -> list[str]:
    """Return the names of the log events."""
    return [event for _, event, _ in lease_health.changes(before, now, max_lag_s=10)]


def all_of(holder: str, age_s: float = 1) -> Iterable[NodeLease]:
    """Return leases of all our nodes."""
    return (lease(node, holder, age_s) for node in NODES)


def test_a_node_is_driven_while_its_lease_is_valid() -> None:
    """Leases of other nodes do not count."""
    driver_health = health(lease("a"), lease("b", age_s=41), lease("stranger", "two"))
    assert driver_health.undriven == ("b", "c")
    assert [(driver.holder, driver.nodes, driver.fresh, driver.oldest_s) for driver in driver_health.drivers] == [
        ("one", 2, 1, 41)
    ]
    assert not driver_health.is_complete
    assert health(*all_of("one")).is_complete


def test_lag_counts_from_the_due_renewal() -> None:
    """Renewals are due after a quarter of the duration, with some grace."""
    assert health(*all_of("one", 10)).lag_s == 0
    assert health(lease("a"), lease("b", "two", 20.4)).lag_s == 10


def test_each_change_is_logged_once() -> None:
    """A driver appears, lags, catches up, is replaced and vanishes."""
    well, late, other, no_driver = (
        health(*all_of("one")),
        health(*all_of("one", 30)),
        health(*all_of("two")),
        health(*all_of("two", 50)),
    )
    assert events(None, well) == ["driver_found"]
    assert events(well, well) == []
    assert events(well, late) == ["driver_lags"]
    assert events(late, late) == []
    assert events(late, well) == ["driver_caught_up"]
    assert events(well, other) == ["driver_found", "driver_vanished"]
    assert events(other, no_driver) == ["driver_vanished", "nodes_not_driven"]
    assert events(no_driver, no_driver) == []
    assert events(no_driver, health()) == []
    assert events(no_driver, other) == ["driver_found", "driver_caught_up", "nodes_driven"]
    assert events(None, health()) == ["nodes_not_driven"]


def test_heartbeats_replace_leases() -> None:
    """A node without a Ready condition is not driven."""
    condition = {"type": "Ready", "lastHeartbeatTime": (NOW - timedelta(seconds=20)).isoformat()}
    ready_node = lease_health.heartbeat_lease({"metadata": {"name": "a"}, "status": {"conditions": [condition]}})
    node_without_condition = lease_health.heartbeat_lease({"metadata": {"name": "b"}})
    assert lease_health.driver_health(("a", "b"), (ready_node, node_without_condition), NOW).undriven == ("b",)
