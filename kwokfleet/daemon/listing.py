"""What of ours is in a cluster, as rows that people and programs read: the same on a terminal and over HTTP."""

from collections.abc import Callable, Iterable, Mapping

from kwokfleet.kube.observed import Observed

Row = dict[str, object]


def nodes(found: Iterable[Observed]) -> list[Row]:
    """Return each node."""
    there = sorted((each for each in found if each.key.kind == "Node"), key=lambda each: each.key.name)
    return [
        {
            "name": each.key.name,
            "fleet": each.fleet,
            "pool": each.pool,
            "ready": each.ready,
            "schedulable": each.schedulable,
            "created": each.created,
        }
        for each in there
    ]


def stages(found: Iterable[Observed]) -> list[Row]:
    """Return each Stage."""
    there = sorted((each for each in found if each.key.kind == "Stage"), key=lambda each: each.key.name)
    return [
        {
            "name": each.key.name,
            "fleet": each.fleet or "(shared)",
            "kind": (each.manifest["spec"].get("resourceRef") or {}).get("kind", ""),
            "created": each.created,
        }
        for each in there
    ]


def pools(found: Iterable[Observed]) -> list[Row]:
    """Return each pool, its nodes counted."""
    return _counted(found, lambda each: (each.fleet, each.pool), ("fleet", "pool"))


def fleets(found: Iterable[Observed]) -> list[Row]:
    """Return each Fleet, its nodes counted."""
    return _counted(found, lambda each: (each.fleet,), ("fleet",))


def _counted(
    found: Iterable[Observed], name_of: Callable[[Observed], tuple[str, ...]], titles: tuple[str, ...]
) -> list[Row]:
    groups: dict[tuple[str, ...], list[Observed]] = {}
    for each in found:
        if each.key.kind == "Node":
            groups.setdefault(name_of(each), []).append(each)
    return [
        dict(zip(titles, name, strict=True))
        | {
            "nodes": len(mine),
            "ready": sum(each.ready for each in mine),
            "schedulable": sum(each.schedulable for each in mine),
            "created": min(each.created for each in mine),
        }
        for name, mine in sorted(groups.items())
    ]


LISTS: Mapping[str, Callable[[Iterable[Observed]], list[Row]]] = {
    "fleets": fleets,
    "pools": pools,
    "nodes": nodes,
    "stages": stages,
}
