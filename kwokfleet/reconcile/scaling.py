"""Scaling of pools: which nodes stay, and which indices new nodes get.

By default a pool has the lowest indices: the highest index is removed first, and gaps are filled. With `scaleDown`
emptiest or newest, remaining nodes keep their indices, and new nodes get the lowest free ones. The result depends only
on the live nodes: planned again after the change, it is the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from kwokfleet.api.fleet import Fleet
from kwokfleet.api.node_pool import NodePool
from kwokfleet.kube import objects
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.render import desired, nodes

Present = Mapping[desired.PartName, Sequence[tuple[int, Observed]]]
"""Live nodes of pools with `scaleDown` emptiest or newest, with their indices."""


def live_members(tree: desired.Tree, inventory: Inventory) -> Present:
    """Return the live nodes of pools with `scaleDown` emptiest or newest."""
    pools = {(fleet.name, pool.name): pool for fleet, pool in _selective_pools(tree)}
    by_pool: dict[desired.PartName, list[tuple[int, Observed]]] = {name: [] for name in pools}
    for node in inventory.values() if pools else ():
        name = (node.fleet, node.pool)
        if node.key.kind == "Node" and name in pools and not node.deleting and objects.is_fake_node(node.manifest):
            index = _index(node, pools[name])
            if index is not None:
                by_pool[name].append((index, node))
    return by_pool


def nodes_to_count(tree: desired.Tree, members: Present, now: datetime) -> list[str]:
    """Return the nodes whose pods must be counted to scale down."""
    return [
        node.key.name
        for fleet, pool in _selective_pools(tree)
        if pool.scale_down == "emptiest" and len(members[fleet.name, pool.name]) > desired.pool_size(pool, now)
        for _, node in members[fleet.name, pool.name]
    ]


def desired_indices(
    tree: desired.Tree, members: Present, pods: Mapping[str, int], now: datetime
) -> dict[desired.PartName, Sequence[int]]:
    """Return the desired indices of each such pool."""
    by_pool: dict[desired.PartName, Sequence[int]] = {}
    for fleet, pool in _selective_pools(tree):
        name = (fleet.name, pool.name)
        size = desired.pool_size(pool, now)
        kept = sorted(members[name], key=lambda member, pool=pool: _retention_key(pool, member, pods))[:size]  # type: ignore[misc]
        by_pool[name] = _filled({index for index, _ in kept}, size)
    return by_pool


def _selective_pools(tree: desired.Tree) -> Iterable[tuple[Fleet, NodePool]]:
    for fleet in tree.fleets:
        for pool in fleet.spec.node_pools:
            if pool.scale_down != "highestIndex":
                yield fleet, pool


def _index(node: Observed, pool: NodePool) -> int | None:
    text = node.manifest["metadata"]["annotations"].get(objects.INDEX, "")
    index = int(text) if text.isascii() and text.isdigit() else None
    return index if index is not None and nodes.node_name(pool, node.fleet, index) == node.key.name else None


def _retention_key(pool: NodePool, member: tuple[int, Observed], pods: Mapping[str, int]) -> tuple[object, ...]:
    """Return a sort key: nodes that stay come first."""
    index, node = member
    return -pods.get(node.key.name, 0) if pool.scale_down == "emptiest" else node.created, index


def _filled(kept: set[int], size: int) -> tuple[int, ...]:
    free = (index for index in range(size + len(kept)) if index not in kept)
    return tuple(sorted([*kept, *(next(free) for _ in range(size - len(kept)))]))
