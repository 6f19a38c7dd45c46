"""Which of its nodes a pool keeps when it shrinks, and which it gets when it grows.

By default they are the first so many: the highest index goes first, and gaps are filled. A pool may
rather part with its emptiest or its newest nodes; then the ones that stay keep their indices, and
what is missing is made with the lowest that are free. Either way nothing is remembered: asked again
about the cluster that comes of it, the answer is the same nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from kwokfleet.api.fleet import Fleet, NodePool
from kwokfleet.kube import objects
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.render import desired, nodes

Present = Mapping[desired.PartName, Sequence[tuple[int, Observed]]]
"""The live nodes of pools that choose, with their indices."""


def live_members(tree: desired.Tree, inventory: Inventory) -> Present:
    """Return the live nodes of all pools that do not simply keep the first so many."""
    choosy = {(fleet.name, pool.name): pool for fleet, pool in _choosy(tree)}
    found: dict[desired.PartName, list[tuple[int, Observed]]] = {name: [] for name in choosy}
    for node in inventory.values() if choosy else ():
        name = (node.fleet, node.pool)
        if node.key.kind == "Node" and name in choosy and not node.deleting and objects.is_fake_node(node.manifest):
            index = _index(node, choosy[name])
            if index is not None:
                found[name].append((index, node))
    return found


def nodes_to_count(tree: desired.Tree, there: Present, now: datetime) -> list[str]:
    """Return the nodes whose pods must be counted before it can be said which ones go."""
    return [
        node.key.name
        for fleet, pool in _choosy(tree)
        if pool.scale_down == "emptiest" and len(there[fleet.name, pool.name]) > desired.pool_size(pool, now)
        for _, node in there[fleet.name, pool.name]
    ]


def desired_indices(
    tree: desired.Tree, there: Present, pods: Mapping[str, int], now: datetime
) -> dict[desired.PartName, Sequence[int]]:
    """Return the indices of the nodes that each such pool should have."""
    found: dict[desired.PartName, Sequence[int]] = {}
    for fleet, pool in _choosy(tree):
        name = (fleet.name, pool.name)
        size = desired.pool_size(pool, now)
        kept = sorted(there[name], key=lambda each, pool=pool: _parting(pool, each, pods))[:size]  # type: ignore[misc]
        found[name] = _filled({index for index, _ in kept}, size)
    return found


def _choosy(tree: desired.Tree) -> Iterable[tuple[Fleet, NodePool]]:
    for fleet in tree.fleets:
        for pool in fleet.spec.node_pools:
            if pool.scale_down != "highestIndex":
                yield fleet, pool


def _index(node: Observed, pool: NodePool) -> int | None:
    text = node.manifest["metadata"]["annotations"].get(objects.INDEX, "")
    index = int(text) if text.isascii() and text.isdigit() else None
    return index if index is not None and nodes.node_name(pool, node.fleet, index) == node.key.name else None


def _parting(pool: NodePool, member: tuple[int, Observed], pods: Mapping[str, int]) -> tuple[object, ...]:
    """Return what sorts the nodes that stay before those that go."""
    index, node = member
    if pool.scale_down == "emptiest":
        return -pods.get(node.key.name, 0), index
    return node.created, index


def _filled(kept: set[int], size: int) -> tuple[int, ...]:
    free = (index for index in range(size + len(kept)) if index not in kept)
    return tuple(sorted([*kept, *(next(free) for _ in range(size - len(kept)))]))
