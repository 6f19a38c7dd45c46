"""Checks across the fields of one Fleet: names, references, networks, node templates.

`api.decode` validates single values first. Each Finding is at the field to change.
"""

import bisect
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ConfigDict

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import lifecycle as lifecycle_api
from kwokfleet.api.fields import MAX_LABEL_LENGTH, Annotations, Items, Labels, Model, Resources
from kwokfleet.api.node_pool import NodePool, Taint
from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import lifecycles, node_templates, nodes, schedule

_NODE_FIELDS: dict[FieldPath, tuple[str, ...]] = {
    (): ("apiVersion", "kind", "metadata", "spec", "status"),
    ("metadata",): ("labels", "annotations"),
    ("spec",): ("taints", "unschedulable", "configSource"),
    ("status",): ("capacity", "allocatable", "nodeInfo", "images", "features", "runtimeHandlers", "declaredFeatures"),
    ("status", "nodeInfo"): (
        "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
        "machineID", "operatingSystem", "osImage", "swap", "systemUUID",
    ),
}  # fmt: skip
_SET_ELSEWHERE = {
    ("metadata", "name"): "use nodeName of the pool",
    ("spec", "providerID"): "use providerID of the pool",
    ("spec", "podCIDR"): "use podCIDR of the pool",
    ("spec", "podCIDRs"): "use podCIDR of the pool",
    ("status", "conditions"): "use a node lifecycle",
    ("status", "addresses"): "use nodeIP of the KwokController",
}


def check(fleet: fleet_api.Fleet) -> Iterator[Finding]:
    """Yield the Findings across the fields of a Fleet."""
    spec = fleet.spec
    for field, items in (("nodePools", spec.node_pools), ("lifecycles", spec.lifecycles), ("waves", spec.waves)):
        yield from _unique(field, [item.name for item in items])
    for index, lifecycle in enumerate(spec.lifecycles):
        yield from _lifecycle(fleet, lifecycle, ("spec", "lifecycles", index))
    for index, pool in enumerate(spec.node_pools):
        yield from _pool(fleet, pool, ("spec", "nodePools", index))
    yield from _same_node_names(fleet)


def _unique(field: str, names: Sequence[str]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            where = ("spec", field, index, "name")
            yield Finding(where, f"duplicate name {name!r}", "use a unique name", rule="duplicate-name")
        seen.add(name)


# ----------------------------------------------------------------------------------------
# lifecycles


def _lifecycle(fleet: fleet_api.Fleet, lifecycle: lifecycle_api.Lifecycle, where: FieldPath) -> Iterator[Finding]:
    scope = lifecycles.label(fleet.name, lifecycle.name)
    if len(scope) > MAX_LABEL_LENGTH:
        what = f"the label value {scope!r} is longer than {MAX_LABEL_LENGTH} characters"
        yield Finding((*where, "name"), what, "shorten this name or the name of the Fleet", rule="name-too-long")
    if lifecycle.node is not None and lifecycle.node.boot is not None and lifecycle.node.boot.args:
        yield Finding((*where, "node", "boot"), "cannot be args: nodes have no containers", "use a duration")
    pod = lifecycle.pod
    if pod is not None and pod.restart is not None and (pod.complete is not None or pod.fail is not None):
        what = "cannot be combined with complete or fail: kwok would play only one of them"
        yield Finding((*where, "pod", "restart"), what, "use two lifecycles", rule="lifecycle-conflict", at_key=True)
    users = {pool.lifecycle for pool in fleet.spec.node_pools} | {wave.lifecycle for wave in fleet.spec.waves}
    if lifecycle.name not in users:
        what = f"lifecycle {lifecycle.name!r} is not used by any pool or wave of this Fleet"
        hint = f"set it as lifecycle of a pool or wave, or add the pod label kwokfleet.dev/lifecycle: {scope}"
        yield warning((*where, "name"), what, hint, "unused-lifecycle")


def check_lifecycle_reference(
    fleet: fleet_api.Fleet, name: str | None, side: str, where: FieldPath
) -> Iterator[Finding]:
    """Check the lifecycle of a pool (*side* node) or of a Wave (*side* pod)."""
    if name is None:
        return
    known = {lifecycle.name: lifecycle for lifecycle in fleet.spec.lifecycles}
    if name not in known:
        hint = problems.suggestion(name, sorted(known)) if known else "add it to spec.lifecycles"
        yield Finding((*where, "lifecycle"), f"lifecycle {name!r} not found", hint, rule="unknown-reference")
    elif getattr(known[name], side) is None:
        what = f"lifecycle {name!r} is for {'pods' if side == 'node' else 'nodes'}, not for {side}s"
        yield Finding((*where, "lifecycle"), what, f"use a lifecycle with {side}:", rule="wrong-reference")


# ----------------------------------------------------------------------------------------
# pools


def _pool(fleet: fleet_api.Fleet, pool: NodePool, where: FieldPath) -> Iterator[Finding]:
    yield from check_lifecycle_reference(fleet, pool.lifecycle, "node", where)
    yield from _autoscaled(pool, where)
    for key in pool.labels:
        if key in node_templates.LABELS_DROPPED:
            what = f"label {key!r} is set by kwokfleet"
            yield Finding((*where, "labels", key), what, "remove it", rule="conflict", at_key=True)
    template_findings = list(check_node_template(pool.template, (*where, "template")))
    yield from template_findings
    most = schedule.max_replicas(pool)
    longest = nodes.node_name(pool, fleet.name, max(0, most - 1))
    if len(longest) > MAX_LABEL_LENGTH:
        what = f"node name {longest!r} is longer than {MAX_LABEL_LENGTH} characters"
        yield Finding((*where, "name"), what, "use shorter names, or set nodeName", rule="name-too-long")
    if not template_findings and pool.template_from is None:
        yield from check_pod_cidr_size(pool, (), (*where, "podCIDR"))
    for key in pool.spread:
        if key in pool.labels:
            what = f"label {key!r} is also set by spread"
            yield Finding((*where, "labels", key), what, "remove one of them", rule="conflict", at_key=True)


def check_pod_cidr_size(pool: NodePool, templates: Sequence[Manifest], where: FieldPath) -> Iterator[Finding]:
    """Check that the podCIDR is large enough for the nodes of a pool with these *templates*."""
    if pool.pod_cidr is None:
        return
    most = schedule.max_replicas(pool)
    network = ipaddress.ip_network(pool.pod_cidr)
    length = min(nodes.prefix_length(pool, template) for template in templates or [{}]) if network.version == 4 else 64  # noqa: PLR2004  # IPv4
    capacity = 1 << max(0, length - network.prefixlen) if length >= network.prefixlen else 0
    if capacity < most:
        what = f"{network} has room for {capacity} nodes with a /{length} each, but the pool may have {most}"
        yield Finding(where, what, "use a larger network, or reduce pods per node", rule="pod-cidr-too-small")


def _autoscaled(pool: NodePool, where: FieldPath) -> Iterator[Finding]:
    """Check for fields that need different nodes: the autoscaler creates all nodes from one template."""
    if pool.autoscaler is None:
        return
    for key, values in pool.spread.items():
        if len(values) > 1:
            what = "cannot have several values with autoscaler: it creates identical nodes"
            yield Finding((*where, "spread", key), what, "use one pool per value", rule="conflict")
    if pool.pod_cidr is not None:
        what = "cannot be combined with autoscaler: it does not assign a podCIDR"
        yield Finding((*where, "podCIDR"), what, "remove podCIDR", rule="conflict", at_key=True)


def _same_node_names(fleet: fleet_api.Fleet) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for index, pool in enumerate(fleet.spec.node_pools):
        first = nodes.node_name(pool, fleet.name, 0)
        if first in seen and seen[first] != pool.name:
            what = f"node names are the same as in pool {seen[first]!r} ({first}, ...)"
            where = ("spec", "nodePools", index, "nodeName")
            yield Finding(where, what, "add {pool} to nodeName", rule="same-node-names")
        seen.setdefault(first, pool.name)


def overlapping_pod_cidrs(fleets: Iterable[fleet_api.Fleet]) -> Iterator[tuple[str, Finding]]:
    """Yield pools with a podCIDR that overlaps an earlier one, by name of the Fleet."""
    taken: list[tuple[int, int, int, str]] = []
    """IP version, first and last address, and pool; sorted, without overlaps."""
    for fleet in fleets:
        for index, pool in enumerate(fleet.spec.node_pools):
            if pool.pod_cidr is None:
                continue
            network = ipaddress.ip_network(pool.pod_cidr)
            version, first, last = int(network.version), int(network[0]), int(network[-1])
            at = bisect.bisect_right(taken, (version, last), key=lambda entry: entry[:2])
            before = taken[at - 1] if at else (0, 0, 0, "")
            if before[0] == version and before[2] >= first:
                where = ("spec", "nodePools", index, "podCIDR")
                what = f"{network} overlaps the podCIDR of pool {before[3]}"
                yield fleet.name, Finding(where, what, "use a separate network for each pool", rule="pod-cidr-overlap")
            else:
                taken.insert(at, (version, first, last, f"{fleet.name}/{pool.name}"))


def check_node_template(template: Manifest, where: FieldPath) -> Iterator[Finding]:
    """Check a partial v1 Node."""
    for name, value in (("kind", "Node"), ("apiVersion", "v1")):
        if template.get(name, value) != value:
            yield Finding((*where, name), f"must be {value}", f"set {name}: {value}", rule="invalid-template")
    for path, known in _NODE_FIELDS.items():
        part: Any = template
        for step in path:
            part = part.get(step) if isinstance(part, dict) else None
        if part is None and path:
            continue
        if not isinstance(part, dict):
            yield Finding((*where, *path), "must be a mapping", rule="invalid-template")
            continue
        for key in part:
            if key not in known:
                hint = _SET_ELSEWHERE.get((*path, key)) or problems.suggestion(key, list(known))
                what = f"field {key!r} is not allowed in a node template"
                yield Finding((*where, *path, key), what, hint, rule="invalid-template", at_key=True)
    yield from _template_values(template, where)


class _Loose(Model):
    """Base of models that ignore unknown fields."""

    model_config = ConfigDict(extra="ignore")


class _NodeInfo(_Loose):
    architecture: str = ""
    operating_system: str = ""


class _AnyTaint(_Loose):
    key: str
    effect: str


class _AnyMetadata(_Loose):
    labels: Labels | None = None
    annotations: Annotations | None = None


class _AnySpec(_Loose):
    taints: Items[_AnyTaint] | None = None


class _AnyStatus(_Loose):
    capacity: Resources | None = None
    allocatable: Resources | None = None
    node_info: _NodeInfo | None = None


class _AnyNode(_Loose):
    metadata: _AnyMetadata | None = None
    spec: _AnySpec | None = None
    status: _AnyStatus | None = None


def template_problem(node: Manifest) -> str:
    """Return why a Node of a file cannot be a template; empty if it can."""
    findings = decode.to_model(_AnyNode, node)[1]
    return f"{problems.format_path(findings[0].field_path)} {findings[0].what}" if findings else ""


class _TemplateParts(_AnyStatus, _AnyMetadata):
    """Fields of a node template that are validated."""

    taints: Items[Taint] = ()


_TEMPLATE_PARENTS = {
    "metadata": ("labels", "annotations"), "status": ("capacity", "allocatable", "nodeInfo"), "spec": ("taints",),
}  # fmt: skip


def _template_values(template: Manifest, where: FieldPath) -> Iterator[Finding]:
    parts, parents = {}, {}
    for parent_name, names in _TEMPLATE_PARENTS.items():
        parent = template.get(parent_name)
        for name in names:
            if isinstance(parent, dict) and parent.get(name) is not None:
                parts[name], parents[name] = parent[name], parent_name
    for finding in decode.to_model(_TemplateParts, parts)[1] if parts else []:
        path = (*where, parents[str(finding.field_path[0])], *finding.field_path)
        yield Finding(path, finding.what, finding.hint, rule=finding.rule)
