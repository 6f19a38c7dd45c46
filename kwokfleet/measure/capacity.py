"""Capacity of nodes by Fleet and pool."""

from kwokfleet.kube.observed import Inventory
from kwokfleet.measure import pod_requests


def node_pools(inventory: Inventory) -> dict[str, tuple[str, str]]:
    """Return the Fleet and the pool of each node."""
    return {item.key.name: (item.fleet, item.pool) for item in inventory.values() if item.key.kind == "Node"}


def pool_capacities(inventory: Inventory) -> dict[str, dict[str, dict[str, float]]]:
    """Return the allocatable amounts, by Fleet, pool and resource."""
    capacities: dict[str, dict[str, dict[str, float]]] = {}
    for item in inventory.values():
        if item.key.kind == "Node" and not item.deleting:
            status = item.manifest.get("status") or {}
            pool = capacities.setdefault(item.fleet, {}).setdefault(item.pool, {})
            for name, text in (status.get("allocatable") or status.get("capacity") or {}).items():
                pool[name] = pool.get(name, 0.0) + pod_requests.amount(str(text))
    return capacities
