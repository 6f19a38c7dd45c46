"""Renders a Tree to Desired: every object that should be in the cluster at `now`.

The same tree and time give the same objects in the same order. A Renderer caches each pool, so rendering again
costs only what changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.api.node_pool import NodePool
from kwokfleet.api.wave import Wave
from kwokfleet.documents import writer
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.render import lifecycles, nodes, schedule, usage, workload_template, workloads
from kwokfleet.render import stage_sets as stage_set_rules

Desired = dict[ObjectKey, Manifest]

PartName = tuple[str, str]
"""Names of a Fleet and of its pool or Wave."""

CONFIG_MAP = "kwok-provider-config"
TEMPLATES_MAP = "kwok-provider-templates"
TEMPLATES_KEY = "templates"


@dataclass(frozen=True, slots=True)
class Tree:
    """The valid Fleets of all files, with their references."""

    fleets: tuple[fleet_api.Fleet, ...] = ()
    controller: KwokControllerSpec = field(default_factory=KwokControllerSpec)
    library: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    """The Stages of the library by set, read on demand."""
    stage_sets: Mapping[str, tuple[stage_set_rules.NamedStageSet, ...]] = field(default_factory=dict)
    """The Stage sets of each Fleet."""
    templates: Mapping[PartName, tuple[Manifest, ...]] = field(default_factory=dict)
    """Node templates by pool."""
    traces: Mapping[PartName, workloads.RecordedArrivals] = field(default_factory=dict)
    kwok_objects: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    """kwok objects of each Fleet other than Stages, with our labels."""

    @property
    def lease(self) -> bool:
        """Whether kwok renews node leases."""
        return self.controller.lease_duration.total_seconds() > 0


@dataclass(frozen=True, slots=True)
class ObjectConflict:
    """Two parts of a tree that define the same object differently."""

    key: ObjectKey
    by: PartName
    first: str = ""
    """The Fleet with the first definition."""


class Renderer:
    """Renders trees and caches pools."""

    def __init__(self) -> None:
        self._pools: dict[PartName, tuple[Any, Desired]] = {}
        self.conflicts: list[ObjectConflict] = []

    def desired(self, tree: Tree, now: datetime, members: Mapping[PartName, Sequence[int]] | None = None) -> Desired:
        """Return every object, in the order in which they are applied.

        *members* are the node indices of pools that do not have the first ones.
        """
        self.conflicts = []
        desired: Desired = {}
        in_cluster = tree.controller.stages_as == "resources"
        if in_cluster:
            self._add(desired, ("", ""), stages(tree))
            self._add(desired, ("", ""), usage.manifests(tree.fleets))
        self._add(desired, ("", ""), _namespaces(tree))
        for fleet in tree.fleets if in_cluster else ():
            self._add(desired, (fleet.name, ""), tree.kwok_objects.get(fleet.name, ()))
        self._add(desired, ("", ""), autoscaler_config_maps(tree))
        pools: dict[PartName, tuple[Any, Desired]] = {}
        for fleet in tree.fleets:
            for pool in fleet.spec.node_pools:
                name = (fleet.name, pool.name)
                pools[name] = self._pool(tree, fleet, pool, (members or {}).get(name) or range(pool_size(pool, now)))
                pool_nodes = pools[name][1]
                if desired.keys().isdisjoint(pool_nodes):
                    desired |= pool_nodes
                else:  # two pools share a node name
                    self._add(desired, name, pool_nodes.values())
        self._pools = pools
        return desired

    def _pool(self, tree: Tree, fleet: fleet_api.Fleet, pool: NodePool, indices: Sequence[int]) -> tuple[Any, Desired]:
        """Return a pool's nodes and their inputs; with equal inputs the last result is reused."""
        name = (fleet.name, pool.name)
        inputs = (pool, indices, tree.templates.get(name, ()), node_context(tree, fleet, pool))
        last = self._pools.get(name)
        if last is not None and last[0] == inputs:
            return last
        rendered = nodes.render(pool, indices, inputs[2], inputs[3])
        return inputs, {ObjectKey("v1", "Node", "", node["metadata"]["name"]): node for node in rendered}

    def _add(self, desired: Desired, by: PartName, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            key = objects.key(manifest)
            first = desired.setdefault(key, manifest)
            if first != manifest:
                self.conflicts.append(ObjectConflict(key, by, objects.labels(first).get(objects.FLEET, "")))


def pool_size(pool: NodePool, now: datetime) -> int:
    """Return the number of nodes that kwokfleet creates for a pool."""
    return 0 if pool.autoscaler else schedule.scheduled_replicas(pool, now)


def run_context(tree: Tree, fleet: fleet_api.Fleet, wave: Wave, run: str) -> workloads.RunContext:
    """Return the inputs of a Run's objects."""
    taints = {
        pool.name: nodes.taints(pool, tree.templates.get((fleet.name, pool.name), ()))
        for pool in fleet.spec.node_pools
        if pool.name in wave.pools
    }
    return workloads.RunContext(fleet, wave, run, tree.traces.get((fleet.name, wave.name)), taints)


def node_context(tree: Tree, fleet: fleet_api.Fleet, pool: NodePool) -> nodes.NodeContext:
    """Return the inputs of a pool's nodes beside the pool."""
    lifecycle = fleet.spec.lifecycle(pool.lifecycle)
    drawn = lifecycles.drawn_delays(lifecycle) if lifecycle else {}
    controller = tree.controller
    return nodes.NodeContext(
        fleet.name,
        controller.node_ip,
        fleet.spec.node_groups,
        fleet.spec.seed,
        tuple(sorted(drawn.items())),
        controller.port,
        controller.shards,
        controller.stateful_set is not None,
    )


def objects_to_create(tree: Tree, desired: Desired, now: datetime) -> Iterator[Manifest]:
    """Yield the objects as they are created: nodes Ready, or booting if their Lifecycle says so."""
    return map(creation_transform(tree, now, sum(key.kind == "Node" for key in desired)), desired.values())


def creation_transform(tree: Tree, now: datetime, cluster_size: int) -> Callable[[Manifest], Manifest]:
    """Return a function from a desired object to the object to create."""
    creation = nodes.NodeCreation(now, cluster_size)
    booting = {
        lifecycles.label(fleet.name, lifecycle.name)
        for fleet in tree.fleets
        for lifecycle in fleet.spec.lifecycles
        if lifecycles.starts_not_ready(lifecycle)
    }

    def transform(manifest: Manifest) -> Manifest:
        if manifest["kind"] != "Node":
            return manifest
        return creation.apply(manifest, ready=manifest["metadata"]["labels"].get(objects.LIFECYCLE) not in booting)

    return transform


def stages(tree: Tree) -> Iterator[Manifest]:
    """Yield the Stages of a tree: missing default sets, the Fleets' sets, Lifecycles and autoscaler hostnames."""
    if not tree.fleets:
        return
    named = [stage_set for fleet in tree.fleets for stage_set in tree.stage_sets.get(fleet.name, ())]
    defaults = [tree.library[name] for name in stage_set_rules.missing_sets(named, lease=tree.lease)]
    chosen = [tree.library[stage_set.name] if stage_set.from_library else stage_set.stages for stage_set in named]
    for stage_set_stages in (*defaults, *chosen):
        yield from map(stage_set_rules.with_owner_label, stage_set_stages)
    if compiled := [(fleet.name, lifecycle) for fleet in tree.fleets for lifecycle in fleet.spec.lifecycles]:
        parts = {stage["metadata"]["name"]: stage for name in lifecycles.STAGE_SETS for stage in tree.library[name]}
        for fleet_name, lifecycle in compiled:
            yield from lifecycles.stages(fleet_name, lifecycle, parts, lease=tree.lease)
    serves_kubelet = tree.controller.port is not None
    for fleet in tree.fleets:
        scaled = (pool for pool in fleet.spec.node_pools if pool.autoscaler)
        yield from (nodes.hostname_stage(pool, fleet.name, serves_kubelet=serves_kubelet) for pool in scaled)


def kwok_manifests(tree: Tree) -> Iterator[Manifest]:
    """Yield the kwok objects other than Stages: for usage, and those of Fleets."""
    yield from usage.manifests(tree.fleets)
    for fleet in tree.fleets:
        yield from tree.kwok_objects.get(fleet.name, ())


def kwok_kinds(tree: Tree) -> tuple[str, ...]:
    """Return the kinds that kwok must enable beside Stages. Only those in use: Exec runs commands."""
    return tuple(sorted({manifest["kind"] for manifest in kwok_manifests(tree)}))


def cluster_kinds(tree: Tree) -> frozenset[str]:
    """Return the kwok kinds whose CRDs the cluster needs: none if kwok reads them from a file."""
    return frozenset(() if tree.controller.stages_as == "file" else ("Stage", *kwok_kinds(tree)))


def _namespaces(tree: Tree) -> Iterator[Manifest]:
    """Yield the namespaces of Waves and kwok objects. One with variables is created with its objects."""
    names = {wave.namespace for fleet in tree.fleets for wave in fleet.spec.waves if wave.namespace}
    if tree.controller.stages_as == "resources":
        metadata = [manifest["metadata"] for manifest in kwok_manifests(tree)]
        names |= {entry["namespace"] for entry in metadata if "namespace" in entry}
    for name in sorted(names - {workloads.DEFAULT_NAMESPACE}):
        if not workload_template.template_variables(name) and not name.startswith("kube-"):
            yield namespace_manifest(name)


def namespace_manifest(name: str) -> Manifest:
    """Return a managed namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
    }


def autoscaler_config_maps(tree: Tree) -> Iterator[Manifest]:
    """Yield the ConfigMaps of the cluster-autoscaler's kwok provider, by namespace."""
    by_namespace: dict[str, tuple[fleet_api.NodeGroups, list[Manifest]]] = {}
    for fleet in tree.fleets:
        for pool in fleet.spec.node_pools:
            if pool.autoscaler is not None:
                groups, items = by_namespace.setdefault(fleet.spec.node_groups.namespace, (fleet.spec.node_groups, []))
                templates = tree.templates.get((fleet.name, pool.name), ())
                ready = not lifecycles.starts_not_ready(fleet.spec.lifecycle(pool.lifecycle))
                items.append(nodes.autoscaler_template(pool, templates, node_context(tree, fleet, pool), ready=ready))
    for namespace, (groups, items) in sorted(by_namespace.items()):
        yield _config_map(namespace, CONFIG_MAP, "config", _autoscaler_config(groups))
        yield _config_map(namespace, TEMPLATES_MAP, TEMPLATES_KEY, {"apiVersion": "v1", "kind": "List", "items": items})


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
