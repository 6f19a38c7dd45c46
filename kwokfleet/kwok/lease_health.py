"""Who drives our nodes, how fresh that is, and what of it is worth saying: for a kwok that somebody else runs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import node_leases
from kwokfleet.kwok.node_leases import NodeLease

NAMELESS = "(no leases)"
"""Who drives nodes that have heartbeats instead of leases: nobody can tell."""
HEARTBEAT_S = 100
"""What stands for a lease's duration there: kwok's heartbeats come after 20 to 25 s, a renewal after a quarter."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One kwok, and what it does."""

    holder: str
    nodes: int
    oldest_s: float
    """How long ago the node of which least was heard was renewed."""
    lag_s: float
    """How far renewals are behind."""
    fresh: int
    """How many of its nodes it may still count on."""


@dataclass(frozen=True, slots=True)
class DriverHealth:
    """Who drives some nodes at one moment."""

    drivers: tuple[Driver, ...]
    nodes: int
    undriven: tuple[str, ...]
    """Nodes of which nobody has renewed the lease in time."""

    @property
    def lag_s(self) -> float:
        """How far the slowest is behind; 0 if none is."""
        return max((each.lag_s for each in self.drivers), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Whether every node is driven."""
        return not self.undriven


def driver_health(nodes: Iterable[str], held: Iterable[NodeLease], now: datetime) -> DriverHealth:
    """Return who drives some nodes."""
    names = frozenset(nodes)
    found: dict[str, list[NodeLease]] = {}
    for lease in held:
        if lease.node in names:
            found.setdefault(lease.holder, []).append(lease)
    drivers = tuple(_driver(holder, each, now) for holder, each in sorted(found.items()))
    fresh = {lease.node for each in found.values() for lease in each if lease.is_fresh(now)}
    return DriverHealth(drivers, len(names), tuple(sorted(names - fresh)))


def _driver(holder: str, held: list[NodeLease], now: datetime) -> Driver:
    lag = max(node_leases.lag_s([each], each.duration_s, now) for each in held)
    oldest = max(each.age_s(now) for each in held)
    return Driver(
        holder, len(held), round(oldest, 1), round(max(lag, 0.0), 1), sum(each.is_fresh(now) for each in held)
    )


def heartbeat_lease(node: Manifest) -> NodeLease:
    """Return a node's last heartbeat as if it were a lease."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    times = (each.get("lastHeartbeatTime") for each in conditions if each.get("type") == "Ready")
    text = next((each for each in times if each), None)
    renewed = datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
    return NodeLease(node["metadata"]["name"], NAMELESS, renewed, HEARTBEAT_S)


LogEvent = tuple[str, str, Mapping[str, Any]]
"""A level, an event and its keys."""


def changes(before: DriverHealth | None, now: DriverHealth, lagging_s: float) -> Iterator[LogEvent]:
    """Yield what somebody who watches should hear: who drives, that it lags, that nobody does; each once."""
    known = {each.holder: each for each in before.drivers} if before else {}
    for each in now.drivers:
        last = known.get(each.holder)
        if each.fresh and not (last and last.fresh):
            yield "info", "driver_found", {"holder": each.holder, "nodes": each.nodes}
        late, was_late = each.lag_s > lagging_s, bool(last and last.lag_s > lagging_s)
        if each.fresh and late and not was_late:
            yield "warning", "driver_lags", {"holder": each.holder, "nodes": each.nodes, "lag_s": each.lag_s}
        if was_late and not late:
            yield "info", "driver_caught_up", {"holder": each.holder, "nodes": each.nodes}
    alive = {each.holder for each in now.drivers if each.fresh}
    for holder in sorted(name for name, each in known.items() if each.fresh and name not in alive):
        yield "warning", "driver_vanished", {"holder": holder, "nodes": known[holder].nodes}
    if bool(now.undriven) != bool(before and before.undriven):
        if now.undriven:
            yield "warning", "nodes_not_driven", {"nodes": len(now.undriven), "of": now.nodes, "first": now.undriven[0]}
        else:
            yield "info", "nodes_driven", {"nodes": now.nodes}
