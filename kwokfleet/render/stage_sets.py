"""The Stage sets of a tree: those that Fleets name, and defaults for missing roles.

Stages are cluster-wide, so all Fleets share one choice. Each library set has a role. A role that no named set has
is filled by a default set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

ROLES = {
    "node-fast": "node",
    "node-heartbeat": "heartbeat",
    "node-heartbeat-with-lease": "heartbeat",
    "pod-fast": "pod",
    "pod-general": "pod",
    "job": "pod",
    "pod-recover": "recovery",
}
"""Roles of library sets. Only one set per role may act on unlabelled objects."""


@dataclass(frozen=True, slots=True)
class NamedStageSet:
    """A Stage set that a Fleet names."""

    name: str
    stages: tuple[Manifest, ...] = ()
    """The user's own Stages; library Stages are read on demand."""
    from_library: bool = False


def roles(named: NamedStageSet) -> set[str]:
    """Return the roles of a set."""
    if named.from_library:
        return {ROLES[named.name]} if named.name in ROLES else set()
    copied = {ROLES[name] for stage in named.stages if (name := library_set_name(stage)) in ROLES}
    kinds = {target_kind(stage) for stage in named.stages if _is_unscoped(stage) and not library_set_name(stage)}
    return {*copied, *(("pod",) if "Pod" in kinds else ()), *(("node", "heartbeat") if "Node" in kinds else ())}


def library_set_name(stage: Manifest) -> str:
    """Return the library set that a Stage was copied from, by its label."""
    return str(_value(stage, "metadata", "labels", objects.STAGE_SET) or "")


def missing_sets(named: Iterable[NamedStageSet], *, lease: bool) -> list[str]:
    """Return the default sets for roles that no named set has."""
    filled = {role for stage_set in named for role in roles(stage_set)}
    heartbeat = "node-heartbeat-with-lease" if lease else "node-heartbeat"
    defaults = {"node": "node-fast", "heartbeat": heartbeat, "pod": "pod-fast", "recovery": "pod-recover"}
    return [name for role, name in defaults.items() if role not in filled]


def conflicting_pairs(named: Sequence[NamedStageSet]) -> list[tuple[int, int]]:
    """Return pairs of positions of library sets with a common role; each with the first set of the other name."""
    pairs = []
    firsts: dict[str, int] = {}
    for second, stage_set in enumerate(named):
        if stage_set.from_library:
            pairs += [
                (first, second)
                for name, first in firsts.items()
                if name != stage_set.name and roles(stage_set) & roles(named[first])
            ]
            firsts.setdefault(stage_set.name, second)
    return pairs


def target_kind(stage: Manifest) -> str:
    """Return the kind of a Stage's objects."""
    return str(_value(stage, "spec", "resourceRef", "kind") or "")


def _value(value: Any, *path: str) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return the value at a path of an unchecked manifest; None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_unscoped(stage: Manifest) -> bool:
    """Return whether a Stage selects objects without a label or annotation."""
    selector = _value(stage, "spec", "selector")
    return isinstance(selector, Mapping) and not selector.get("matchLabels") and not selector.get("matchAnnotations")


def with_owner_label(stage: Manifest) -> Manifest:
    """Return a Stage with the managed-by label."""
    metadata = stage["metadata"]
    labels = {**(metadata.get("labels") or {}), objects.MANAGED_BY: objects.KWOKFLEET}
    return {**stage, "metadata": {**metadata, "labels": labels}}
