"""Drivers of nodes: the kwok controllers that renew the leases, and how late they are."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import node_leases
from kwokfleet.kwok.node_leases import NodeLease

NAMELESS = "(no leases)"
"""The driver of nodes with heartbeats instead of leases: a heartbeat has no holder."""
HEARTBEAT_S = 100
"""Stands for the lease duration there: kwok sends a heartbeat every 20 to 25 s, a quarter of it."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One kwok controller."""

    holder: str
    nodes: int
    oldest_s: float
    """Age of its oldest renewal."""
    lag_s: float
    """How late its renewals are."""
    fresh: int
    """Number of nodes whose lease is valid."""


@dataclass(frozen=True, slots=True)
class DriverHealth:
    """The drivers of some nodes at one moment."""

    drivers: tuple[Driver, ...]
    nodes: int
    undriven: tuple[str, ...]
    """Nodes without a valid lease."""

    @property
    def lag_s(self) -> float:
        """The largest lag; 0 if no driver is late."""
        return max((driver.lag_s for driver in self.drivers), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Whether every node is driven."""
        return not self.undriven


def driver_health(nodes: Iterable[str], leases: Iterable[NodeLease], now: datetime) -> DriverHealth:
    """Return the drivers of some nodes."""
    names = frozenset(nodes)
    by_holder: dict[str, list[NodeLease]] = {}
    for lease in leases:
        if lease.node in names:
            by_holder.setdefault(lease.holder, []).append(lease)
    drivers = tuple(_driver(holder, held, now) for holder, held in sorted(by_holder.items()))
    fresh = {lease.node for held in by_holder.values() for lease in held if lease.is_fresh(now)}
    return DriverHealth(drivers, len(names), tuple(sorted(names - fresh)))


def _driver(holder: str, held: list[NodeLease], now: datetime) -> Driver:
    lag_s = max(node_leases.lag_s([lease], lease.duration_s, now) for lease in held)
    oldest_s = max(lease.age_s(now) for lease in held)
    fresh = sum(lease.is_fresh(now) for lease in held)
    return Driver(holder, len(held), round(oldest_s, 1), round(max(lag_s, 0.0), 1), fresh)


def heartbeat_lease(node: Manifest) -> NodeLease:
    """Return the last heartbeat of a node as a lease."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    times = (entry.get("lastHeartbeatTime") for entry in conditions if entry.get("type") == "Ready")
    text = next((time for time in times if time), None)
    renewed = datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
    return NodeLease(node["metadata"]["name"], NAMELESS, renewed, HEARTBEAT_S)


LogEvent = tuple[str, str, Mapping[str, Any]]
"""Level, event name and keys."""


def changes(before: DriverHealth | None, now: DriverHealth, max_lag_s: float) -> Iterator[LogEvent]:
    """Yield one log event per change: a driver appears, lags, recovers or vanishes; nodes are driven or not."""
    earlier = {driver.holder: driver for driver in before.drivers} if before else {}
    for driver in now.drivers:
        last = earlier.get(driver.holder)
        if driver.fresh and not (last and last.fresh):
            yield "info", "driver_found", {"holder": driver.holder, "nodes": driver.nodes}
        lags, lagged = driver.lag_s > max_lag_s, bool(last and last.lag_s > max_lag_s)
        if driver.fresh and lags and not lagged:
            yield "warning", "driver_lags", {"holder": driver.holder, "nodes": driver.nodes, "lag_s": driver.lag_s}
        if lagged and not lags:
            yield "info", "driver_caught_up", {"holder": driver.holder, "nodes": driver.nodes}
    alive = {driver.holder for driver in now.drivers if driver.fresh}
    for holder in sorted(holder for holder, driver in earlier.items() if driver.fresh and holder not in alive):
        yield "warning", "driver_vanished", {"holder": holder, "nodes": earlier[holder].nodes}
    if bool(now.undriven) != bool(before and before.undriven):
        if now.undriven:
            yield "warning", "nodes_not_driven", {"nodes": len(now.undriven), "of": now.nodes, "first": now.undriven[0]}
        else:
            yield "info", "nodes_driven", {"nodes": now.nodes}
