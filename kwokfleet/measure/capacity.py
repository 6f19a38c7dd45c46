"""What nodes offer to pods, by Fleet and pool, and which node belongs to which."""

from functools import lru_cache

from kwokfleet.api import units
from kwokfleet.kube.observed import Inventory


def node_pools(inventory: Inventory) -> dict[str, tuple[str, str]]:
    """Return the Fleet and the pool of each node."""
    return {each.key.name: (each.fleet, each.pool) for each in inventory.values() if each.key.kind == "Node"}


def pool_capacities(inventory: Inventory) -> dict[str, dict[str, dict[str, float]]]:
    """Return what pods can have, by Fleet, pool and resource."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for each in inventory.values():
        if each.key.kind == "Node" and not each.deleting:
            status = each.manifest.get("status") or {}
            mine = found.setdefault(each.fleet, {}).setdefault(each.pool, {})
            for name, text in (status.get("allocatable") or status.get("capacity") or {}).items():
                mine[name] = mine.get(name, 0.0) + _amount(str(text))
    return found


@lru_cache(maxsize=10_000)
def _amount(text: str) -> float:
    try:
        return float(units.quantity_value(text))
    except (ArithmeticError, ValueError):
        return 0.0
