"""Rows of our objects in a cluster: the same on a terminal and over HTTP."""

from collections.abc import Callable, Iterable, Mapping

from kwokfleet.kube.observed import Observed

Row = dict[str, object]


def nodes(inventory: Iterable[Observed]) -> list[Row]:
    """Return a row for each node."""
    items = sorted((item for item in inventory if item.key.kind == "Node"), key=lambda item: item.key.name)
    return [
        {
            "name": item.key.name,
            "fleet": item.fleet,
            "pool": item.pool,
            "ready": item.ready,
            "schedulable": item.schedulable,
            "created": item.created,
        }
        for item in items
    ]


def stages(inventory: Iterable[Observed]) -> list[Row]:
    """Return a row for each Stage."""
    items = sorted((item for item in inventory if item.key.kind == "Stage"), key=lambda item: item.key.name)
    return [
        {
            "name": item.key.name,
            "fleet": item.fleet or "(shared)",
            "kind": (item.manifest["spec"].get("resourceRef") or {}).get("kind", ""),
            "created": item.created,
        }
        for item in items
    ]


def pools(inventory: Iterable[Observed]) -> list[Row]:
    """Return a row for each pool, with its nodes counted."""
    return _count_nodes(inventory, lambda node: (node.fleet, node.pool), ("fleet", "pool"))


def fleets(inventory: Iterable[Observed]) -> list[Row]:
    """Return a row for each Fleet, with its nodes counted."""
    return _count_nodes(inventory, lambda node: (node.fleet,), ("fleet",))


def _count_nodes(
    inventory: Iterable[Observed], name_of: Callable[[Observed], tuple[str, ...]], titles: tuple[str, ...]
) -> list[Row]:
    groups: dict[tuple[str, ...], list[Observed]] = {}
    for item in inventory:
        if item.key.kind == "Node":
            groups.setdefault(name_of(item), []).append(item)
    return [
        dict(zip(titles, name, strict=True))
        | {
            "nodes": len(nodes),
            "ready": sum(node.ready for node in nodes),
            "schedulable": sum(node.schedulable for node in nodes),
            "created": min(node.created for node in nodes),
        }
        for name, nodes in sorted(groups.items())
    ]


LISTS: Mapping[str, Callable[[Iterable[Observed]], list[Row]]] = {
    "fleets": fleets,
    "pools": pools,
    "nodes": nodes,
    "stages": stages,
}
