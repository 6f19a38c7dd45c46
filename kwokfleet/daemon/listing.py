"""Rows of our objects in a cluster: the same on a terminal and over HTTP."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kwokfleet.kube.observed import Observed

Row = dict[str, object]


def _of_kind(inventory: Iterable[Observed], kind: str) -> list[Observed]:
    return sorted((item for item in inventory if item.key.kind == kind), key=lambda item: item.key.name)


def _nodes(inventory: Iterable[Observed]) -> list[Row]:
    names = ("fleet", "pool", "ready", "schedulable", "created")
    nodes = _of_kind(inventory, "Node")
    return [{"name": node.key.name} | {name: getattr(node, name) for name in names} for node in nodes]


def _stages(inventory: Iterable[Observed]) -> list[Row]:
    return [
        {
            "name": stage.key.name,
            "fleet": stage.fleet or "(shared)",
            "kind": (stage.manifest["spec"].get("resourceRef") or {}).get("kind", ""),
            "created": stage.created,
        }
        for stage in _of_kind(inventory, "Stage")
    ]


def _count_nodes(inventory: Iterable[Observed], names: tuple[str, ...]) -> list[Row]:
    """Return a row for each group of nodes with the same values of *names*."""
    groups: dict[tuple[str, ...], list[Observed]] = {}
    for node in _of_kind(inventory, "Node"):
        groups.setdefault(tuple(getattr(node, name) for name in names), []).append(node)
    return [
        dict(zip(names, values, strict=True))
        | {
            "nodes": len(nodes),
            "ready": sum(node.ready for node in nodes),
            "schedulable": sum(node.schedulable for node in nodes),
            "created": min(node.created for node in nodes),
        }
        for values, nodes in sorted(groups.items())
    ]


LISTS: Mapping[str, Callable[[Iterable[Observed]], list[Row]]] = {
    "fleets": partial(_count_nodes, names=("fleet",)),
    "pools": partial(_count_nodes, names=("fleet", "pool")),
    "nodes": _nodes,
    "stages": _stages,
}
