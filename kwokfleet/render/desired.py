"""From files to Desired: every object that should be in the cluster at `now`, and only from what was read.

The same tree and the same time give the same objects, in the same order. A Renderer remembers the
last result of each pool, so that rendering again costs what changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.api.wave import Wave
from kwokfleet.documents import writer
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.render import lifecycles, nodes, schedule, usage, workloads
from kwokfleet.render import stage_sets as stagesets

Desired = dict[ObjectKey, Manifest]

PartName = tuple[str, str]
"""A Fleet's name and that of its pool or Wave."""

CONFIG_MAP = "kwok-provider-config"
TEMPLATES_MAP = "kwok-provider-templates"


@dataclass(frozen=True, slots=True)
class Tree:
    """Everything the files say, validated, with what they refer to."""

    fleets: tuple[fleet_api.Fleet, ...] = ()
    controller: KwokControllerSpec = field(default_factory=KwokControllerSpec)
    library: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    """The library's sets by name; read when somebody asks."""
    stage_sets: Mapping[str, tuple[stagesets.NamedStageSet, ...]] = field(default_factory=dict)
    """The sets that each Fleet names."""
    templates: Mapping[PartName, tuple[Manifest, ...]] = field(default_factory=dict)
    """Node templates by pool, live ones sanitised."""
    traces: Mapping[PartName, workloads.RecordedArrivals] = field(default_factory=dict)
    kwok_objects: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    """kwok's own objects that each Fleet declares beside Stages, ours already."""

    @property
    def lease(self) -> bool:
        """Whether kwok holds leases."""
        return self.controller.lease_duration.total_seconds() > 0


@dataclass(frozen=True, slots=True)
class ObjectConflict:
    """Two parts of the files that ask for the same object."""

    key: ObjectKey
    by: PartName
    first: str = ""
    """The Fleet that asked first."""


class Renderer:
    """Renders trees, one after the other."""

    def __init__(self) -> None:
        self._pools: dict[PartName, tuple[Any, Desired]] = {}
        self.clashes: list[ObjectConflict] = []

    def desired(self, tree: Tree, now: datetime, members: Mapping[PartName, Sequence[int]] | None = None) -> Desired:
        """Return every object that should be there, in the order in which they are applied.

        *members* says which of their nodes pools have where that is not the first so many.
        """
        self.clashes = []
        made: Desired = {}
        in_cluster = tree.controller.stages_as == "resources"
        if in_cluster:
            self._add(made, ("", ""), stages(tree))
            self._add(made, ("", ""), usage.manifests(tree.fleets))
        self._add(made, ("", ""), _namespaces(tree))
        for fleet in tree.fleets if in_cluster else ():
            self._add(made, (fleet.name, ""), tree.kwok_objects.get(fleet.name, ()))
        self._add(made, ("", ""), autoscaler_config_maps(tree))
        kept: dict[PartName, tuple[Any, Desired]] = {}
        for fleet in tree.fleets:
            for pool in fleet.spec.node_pools:
                name = (fleet.name, pool.name)
                kept[name] = self._pool(tree, fleet, pool, (members or {}).get(name) or range(pool_size(pool, now)))
                self._merge(made, name, kept[name][1])
        self._pools = kept
        return made

    def _pool(
        self, tree: Tree, fleet: fleet_api.Fleet, pool: fleet_api.NodePool, indices: Sequence[int]
    ) -> tuple[Any, Desired]:
        """Return a pool's nodes with everything they depend on: if that is as it was, so are they."""
        name = (fleet.name, pool.name)
        depends = (pool, indices, tree.templates.get(name, ()), node_context(tree, fleet, pool))
        last = self._pools.get(name)
        if last is not None and last[0] == depends:
            return last
        made = nodes.render(pool, indices, depends[2], depends[3])
        return depends, {ObjectKey("v1", "Node", "", node["metadata"]["name"]): node for node in made}

    def _merge(self, made: Desired, by: PartName, nodes_of_pool: Desired) -> None:
        """Add a pool's nodes; looking at each one is left to the case that two pools share a name."""
        if made.keys().isdisjoint(nodes_of_pool):
            made |= nodes_of_pool
            return
        self._add(made, by, nodes_of_pool.values())

    def _add(self, made: Desired, by: PartName, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            key = objects.key(manifest)
            if key in made:
                if made[key] != manifest:
                    self.clashes.append(ObjectConflict(key, by, objects.labels(made[key]).get(objects.FLEET, "")))
                continue
            made[key] = manifest


def pool_size(pool: fleet_api.NodePool, now: datetime) -> int:
    """Return how many nodes of a pool are ours to make."""
    return 0 if pool.autoscaler else schedule.scheduled_replicas(pool, now)


def run_context(tree: Tree, fleet: fleet_api.Fleet, wave: Wave, run: str) -> workloads.RunContext:
    """Return what a Wave's objects depend on."""
    taints = {
        pool.name: nodes.taints(pool, tree.templates.get((fleet.name, pool.name), ()))
        for pool in fleet.spec.node_pools
        if pool.name in wave.pools
    }
    return workloads.RunContext(fleet, wave, run, tree.traces.get((fleet.name, wave.name)), taints)


def node_context(tree: Tree, fleet: fleet_api.Fleet, pool: fleet_api.NodePool) -> nodes.NodeContext:
    """Return what a pool's nodes depend on beside the pool."""
    lifecycle = _lifecycle(fleet, pool.lifecycle)
    drawn = lifecycles.drawn_delays(lifecycle) if lifecycle else {}
    runs = tree.controller
    return nodes.NodeContext(
        fleet.name,
        runs.node_ip,
        fleet.spec.node_groups,
        fleet.spec.seed,
        tuple(sorted(drawn.items())),
        runs.port,
        runs.shards,
        runs.stateful_set is not None,
    )


def objects_to_create(tree: Tree, desired: Desired, now: datetime) -> Iterator[Manifest]:
    """Yield the objects as they would be created: nodes settled, or booting where their Lifecycle says so."""
    return map(creation_transform(tree, now, sum(key.kind == "Node" for key in desired)), desired.values())


def creation_transform(tree: Tree, now: datetime, cluster_size: int) -> Callable[[Manifest], Manifest]:
    """Return what makes of an object that is asked for the one that is created."""
    birth = nodes.NodeCreation(now, cluster_size)
    booting = {
        lifecycles.label(fleet.name, lifecycle.name)
        for fleet in tree.fleets
        for lifecycle in fleet.spec.lifecycles
        if lifecycles.starts_not_ready(lifecycle)
    }

    def made(manifest: Manifest) -> Manifest:
        if manifest["kind"] != "Node":
            return manifest
        return birth.born(manifest, ready=manifest["metadata"]["labels"].get(objects.LIFECYCLE) not in booting)

    return made


def stages(tree: Tree) -> Iterator[Manifest]:
    """Yield the Stages of a tree: the named sets, the sets needed beside them, and the Lifecycles'."""
    if not tree.fleets:
        return
    named = [one for fleet in tree.fleets for one in tree.stage_sets.get(fleet.name, ())]
    for name in stagesets.missing_sets(named, lease=tree.lease):
        yield from map(stagesets.with_owner_label, tree.library[name])
    for one in named:
        yield from map(stagesets.with_owner_label, tree.library[one.name] if one.from_library else one.stages)
    compiled = [(fleet, lifecycle) for fleet in tree.fleets for lifecycle in fleet.spec.lifecycles]
    parts = (
        {stage["metadata"]["name"]: stage for name in lifecycles.STAGE_SETS for stage in tree.library[name]}
        if compiled
        else {}
    )
    for fleet, lifecycle in compiled:
        yield from lifecycles.stages(fleet.name, lifecycle, parts, lease=tree.lease)
    answers = tree.controller.port is not None
    for fleet in tree.fleets:
        scaled = (pool for pool in fleet.spec.node_pools if pool.autoscaler)
        yield from (nodes.hostname_stage(pool, fleet.name, answers=answers) for pool in scaled)


def kwok_manifests(tree: Tree) -> Iterator[Manifest]:
    """Yield kwok's own objects beside Stages: those that usage needs, and those that Fleets declare."""
    yield from usage.manifests(tree.fleets)
    for fleet in tree.fleets:
        yield from tree.kwok_objects.get(fleet.name, ())


def kwok_kinds(tree: Tree) -> tuple[str, ...]:
    """Return the kinds that kwok needs beside Stages, and no more than that: Exec runs commands."""
    return tuple(sorted({each["kind"] for each in kwok_manifests(tree)}))


def cluster_kinds(tree: Tree) -> frozenset[str]:
    """Return kwok's kinds that the cluster must know: none, if kwok gets everything in its file."""
    return frozenset(() if tree.controller.stages_as == "file" else ("Stage", *kwok_kinds(tree)))


def _namespaces(tree: Tree) -> Iterator[Manifest]:
    """Yield the namespaces that Waves and kwok's objects need; those with variables are made when their objects are."""
    names = {wave.namespace for fleet in tree.fleets for wave in fleet.spec.waves if wave.namespace}
    if tree.controller.stages_as == "resources":
        own = kwok_manifests(tree)
        names |= {each["metadata"]["namespace"] for each in own if "namespace" in each["metadata"]}
    for name in sorted(names):
        if (
            not workloads.template_variables(name)
            and name != workloads.DEFAULT_NAMESPACE
            and not name.startswith("kube-")
        ):
            yield namespace_manifest(name)


def namespace_manifest(name: str) -> Manifest:
    """Return a namespace of ours."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
    }


def autoscaler_config_maps(tree: Tree) -> Iterator[Manifest]:
    """Yield the configuration and templates of the cluster-autoscaler's kwok provider, by namespace."""
    found: dict[str, tuple[fleet_api.NodeGroups, list[Manifest]]] = {}
    for fleet in tree.fleets:
        for pool in fleet.spec.node_pools:
            if pool.autoscaler is not None:
                groups, items = found.setdefault(fleet.spec.node_groups.namespace, (fleet.spec.node_groups, []))
                templates = tree.templates.get((fleet.name, pool.name), ())
                ready = not lifecycles.starts_not_ready(_lifecycle(fleet, pool.lifecycle))
                items.append(nodes.autoscaler_template(pool, templates, node_context(tree, fleet, pool), ready=ready))
    for namespace, (groups, items) in sorted(found.items()):
        yield _config_map(namespace, CONFIG_MAP, "config", _autoscaler_config(groups))
        yield _config_map(namespace, TEMPLATES_MAP, "templates", {"apiVersion": "v1", "kind": "List", "items": items})


def _autoscaler_config(groups: fleet_api.NodeGroups) -> Manifest:
    by = {"fromNodeAnnotationKey": groups.annotation} if groups.annotation else {}
    config: Manifest = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": by or {"fromNodeLabelKey": groups.label or fleet_api.DEFAULT_NODE_GROUP_LABEL},
        "configmap": {"name": TEMPLATES_MAP},
    }
    if groups.gpu_label:
        types: Manifest = {name: {} for name in groups.gpu_types}
        config["nodes"] = {"gpuConfig": {"gpuLabelKey": groups.gpu_label, "availableGPUTypes": types}}
    return config


def _config_map(namespace: str, name: str, key: str, content: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
        "data": {key: writer.to_yaml(content)},
    }


def _lifecycle(fleet: fleet_api.Fleet, name: str | None) -> fleet_api.Lifecycle | None:
    return next((each for each in fleet.spec.lifecycles if each.name == name), None)
