"""Which Stages a tree of Fleets plays: the sets it names, and those it needs beside them.

Stages are cluster-wide, so the choice is made for all Fleets together. Each set of the library has
a role; a role that nobody filled is filled by the set that is right for most.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
"""Sets of which one at a time may act on objects at large, and for what."""


@dataclass(frozen=True, slots=True)
class NamedStageSet:
    """A set of Stages that a Fleet named."""

    name: str
    stages: tuple[Manifest, ...] = ()
    """The Stages of an author's own; those of the library are read when they are needed."""
    from_library: bool = False


def roles(named: NamedStageSet) -> set[str]:
    """Return the roles that a set fills."""
    if named.from_library:
        return {ROLES[named.name]} if named.name in ROLES else set()
    copied = {ROLES[name] for stage in named.stages if (name := library_set_name(stage)) in ROLES}
    kinds = {target_kind(stage) for stage in named.stages if _at_large(stage) and not library_set_name(stage)}
    return {*copied, *(("pod",) if "Pod" in kinds else ()), *(("node", "heartbeat") if "Node" in kinds else ())}


def library_set_name(stage: Manifest) -> str:
    """Return which set of the library a Stage was copied from, by the label that it carries."""
    metadata = stage.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return str(labels.get(objects.STAGE_SET, "")) if isinstance(labels, Mapping) else ""


def missing_sets(named: Iterable[NamedStageSet], *, lease: bool) -> list[str]:
    """Return the sets of the library that are needed beside the named ones."""
    filled = {each for one in named for each in roles(one)}
    heartbeat = "node-heartbeat-with-lease" if lease else "node-heartbeat"
    wanted = {"node": "node-fast", "heartbeat": heartbeat, "pod": "pod-fast", "recovery": "pod-recover"}
    return [name for each, name in wanted.items() if each not in filled]


def conflicting_pairs(named: Sequence[NamedStageSet]) -> list[tuple[int, int]]:
    """Return the pairs, by position, that would act on the same objects: each with the first of its rival's name."""
    found = []
    firsts: dict[str, int] = {}
    for second, one in enumerate(named):
        if one.from_library:
            found += [
                (first, second)
                for name, first in firsts.items()
                if name != one.name and roles(one) & roles(named[first])
            ]
            firsts.setdefault(one.name, second)
    return found


def target_kind(stage: Manifest) -> str:
    """Return the kind of object that a Stage acts on."""
    spec = stage.get("spec")
    reference = spec.get("resourceRef") if isinstance(spec, Mapping) else None
    return str(reference.get("kind", "")) if isinstance(reference, Mapping) else ""


def _at_large(stage: Manifest) -> bool:
    """Return whether a Stage acts on objects that did not ask for it by a label or annotation."""
    spec = stage.get("spec")
    selector = spec.get("selector") if isinstance(spec, Mapping) else None
    return isinstance(selector, Mapping) and not selector.get("matchLabels") and not selector.get("matchAnnotations")


def with_owner_label(stage: Manifest) -> Manifest:
    """Return a Stage with the label that makes it ours."""
    metadata = stage["metadata"]
    labels = {**(metadata.get("labels") or {}), objects.MANAGED_BY: objects.KWOKFLEET}
    return {**stage, "metadata": {**metadata, "labels": labels}}
