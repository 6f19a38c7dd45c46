"""What shows only when one part of a Fleet is held beside another: names, references, room.

validation.py has seen to it that each value is of its kind. Every rule here answers with findings
at the place where a person would mend it.
"""

import bisect
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ConfigDict

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.fields import MAX_LABEL_LENGTH, Annotations, Items, Labels, Model, Resources
from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, Severity
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
_OURS = {
    ("metadata", "name"): "use nodeName",
    ("spec", "providerID"): "use providerID of the pool",
    ("spec", "podCIDR"): "use podCIDR of the pool",
    ("spec", "podCIDRs"): "use podCIDR of the pool",
    ("status", "conditions"): "use a lifecycle",
    ("status", "addresses"): "nodes get their addresses from the KwokController document",
}


def check(fleet: fleet_api.Fleet) -> Iterator[Finding]:
    """Yield everything wrong with a Fleet that its parts do not show by themselves."""
    spec = fleet.spec
    yield from _unique("nodePools", spec.node_pools)
    yield from _unique("lifecycles", spec.lifecycles)
    yield from _unique("waves", spec.waves)
    for index, lifecycle in enumerate(spec.lifecycles):
        yield from _lifecycle(fleet, lifecycle, ("spec", "lifecycles", index))
    for index, pool in enumerate(spec.node_pools):
        yield from _pool(fleet, pool, ("spec", "nodePools", index))
    yield from _same_node_names(fleet)


def _unique(field: str, items: Sequence[Model]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = str(getattr(item, "name", ""))
        if name in seen:
            where = ("spec", field, index, "name")
            yield Finding(where, f"{name!r} is the name of an earlier entry", "give it another", rule="duplicate-name")
        seen.add(name)


# ----------------------------------------------------------------------------------------
# lifecycles


def _lifecycle(fleet: fleet_api.Fleet, lifecycle: fleet_api.Lifecycle, where: FieldPath) -> Iterator[Finding]:
    scope = lifecycles.label(fleet.name, lifecycle.name)
    if len(scope) > MAX_LABEL_LENGTH:
        what = f"{scope!r} is longer than a label may be ({MAX_LABEL_LENGTH} characters)"
        yield Finding((*where, "name"), what, "shorten it, or the Fleet's name", rule="name-too-long")
    if lifecycle.node is not None and lifecycle.node.boot is not None and lifecycle.node.boot.args:
        yield Finding((*where, "node", "boot"), "a node has no args", "use a duration", rule="invalid-value")
    pod = lifecycle.pod
    if pod is not None and pod.restart is not None and (pod.complete is not None or pod.fail is not None):
        what = "cannot stand beside complete or fail: kwok plays one of them and forgets the other"
        yield Finding((*where, "pod", "restart"), what, "use two lifecycles", rule="lifecycle-conflict", at_key=True)
    users = {pool.lifecycle for pool in fleet.spec.node_pools} | {wave.lifecycle for wave in fleet.spec.waves}
    if lifecycle.name not in users:
        what = f"{lifecycle.name!r} is used by no pool and no wave of this Fleet"
        hint = f"name it there, or label pods kwokfleet.dev/lifecycle: {scope}"
        yield Finding((*where, "name"), what, hint, Severity.WARNING, "unused-lifecycle")


def check_lifecycle_reference(
    fleet: fleet_api.Fleet, name: str | None, side: str, where: FieldPath
) -> Iterator[Finding]:
    """Yield what is wrong with the Lifecycle that a pool (side node) or a Wave (side pod) names."""
    if name is None:
        return
    known = {each.name: each for each in fleet.spec.lifecycles}
    if name not in known:
        hint = problems.suggestion(name, sorted(known)) if known else "declare it under spec.lifecycles"
        yield Finding((*where, "lifecycle"), f"there is no lifecycle {name!r}", hint, rule="unknown-reference")
    elif getattr(known[name], side) is None:
        what = f"lifecycle {name!r} is about {'pods' if side == 'node' else 'nodes'}, not {side}s"
        yield Finding((*where, "lifecycle"), what, f"name one with {side}:", rule="wrong-reference")


# ----------------------------------------------------------------------------------------
# pools


def _pool(fleet: fleet_api.Fleet, pool: fleet_api.NodePool, where: FieldPath) -> Iterator[Finding]:
    yield from check_lifecycle_reference(fleet, pool.lifecycle, "node", where)
    yield from _autoscaled(pool, where)
    for key in pool.labels:
        if key in node_templates.LABELS_DROPPED:
            what = f"{key!r} is set by kwokfleet on every node"
            yield Finding((*where, "labels", key), what, "remove it", rule="conflict", at_key=True)
    wrong = list(check_node_template(pool.template, (*where, "template")))
    yield from wrong
    most = schedule.max_replicas(pool)
    longest = nodes.node_name(pool, fleet.name, max(0, most - 1))
    if len(longest) > MAX_LABEL_LENGTH:
        what = f"node name {longest!r} is longer than {MAX_LABEL_LENGTH} characters"
        yield Finding((*where, "name"), what, "use shorter names, or nodeName", rule="name-too-long")
    if not wrong and pool.template_from is None:
        yield from check_pod_cidr_size(pool, (), (*where, "podCIDR"))
    for key in pool.spread:
        if key in pool.labels:
            what = f"{key!r} is set by spread as well"
            yield Finding((*where, "labels", key), what, "remove one of the two", rule="conflict", at_key=True)


def check_pod_cidr_size(pool: fleet_api.NodePool, templates: Sequence[Manifest], where: FieldPath) -> Iterator[Finding]:
    """Yield a podCIDR that is too small for the pool's nodes, which are made from *templates*."""
    if pool.pod_cidr is None:
        return
    most = schedule.max_replicas(pool)
    network = ipaddress.ip_network(pool.pod_cidr)
    length = min(nodes.prefix_length(pool, each) for each in templates or [{}]) if network.version == 4 else 64  # noqa: PLR2004  # IPv4
    holds = 1 << max(0, length - network.prefixlen) if length >= network.prefixlen else 0
    if holds < most:
        what = f"{network} holds {holds} networks of /{length}, and the pool may have {most} nodes"
        yield Finding(where, what, "use a larger network, or fewer pods per node", rule="pod-cidr-too-small")


def _autoscaled(pool: fleet_api.NodePool, where: FieldPath) -> Iterator[Finding]:
    """Yield what the autoscaler cannot do: it makes all nodes of a group from one template."""
    if pool.autoscaler is None:
        return
    for key, values in pool.spread.items():
        if len(values) > 1:
            what = "the autoscaler makes all nodes of a pool alike"
            yield Finding((*where, "spread", key), what, "use a pool for each value", rule="conflict")
    if pool.pod_cidr is not None:
        what = "the autoscaler gives its nodes no podCIDR"
        yield Finding((*where, "podCIDR"), what, "remove it", rule="conflict", at_key=True)


def _same_node_names(fleet: fleet_api.Fleet) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for index, pool in enumerate(fleet.spec.node_pools):
        first = nodes.node_name(pool, fleet.name, 0)
        if first in seen and seen[first] != pool.name:
            what = f"its nodes have the same names as those of pool {seen[first]!r} ({first}, ...)"
            where = ("spec", "nodePools", index, "nodeName")
            yield Finding(where, what, "put {pool} into nodeName", rule="same-node-names")
        seen.setdefault(first, pool.name)


def overlapping_pod_cidrs(fleets: Iterable[fleet_api.Fleet]) -> Iterator[tuple[str, Finding]]:
    """Yield pools whose podCIDR overlaps that of an earlier one, with the name of their Fleet."""
    taken: list[tuple[int, int, int, str]] = []
    """Version, first and last address, and whose they are; sorted, and without those that overlap others."""
    for fleet in fleets:
        for index, pool in enumerate(fleet.spec.node_pools):
            if pool.pod_cidr is None:
                continue
            network = ipaddress.ip_network(pool.pod_cidr)
            version, first, last = int(network.version), int(network[0]), int(network[-1])
            at = bisect.bisect_right(taken, (version, last), key=lambda each: each[:2])
            before = taken[at - 1] if at else (0, 0, 0, "")
            if before[0] == version and before[2] >= first:
                where = ("spec", "nodePools", index, "podCIDR")
                what = f"{network} overlaps the network of pool {before[3]}: pods would share addresses"
                yield fleet.name, Finding(where, what, "give each pool a network of its own", rule="pod-cidr-overlap")
            else:
                taken.insert(at, (version, first, last, f"{fleet.name}/{pool.name}"))


def check_node_template(template: Manifest, where: FieldPath) -> Iterator[Finding]:
    """Yield what is wrong with a partial v1 Node."""
    if template.get("kind", "Node") != "Node":
        yield Finding((*where, "kind"), "a node template must be of kind Node", "write Node", rule="invalid-template")
    if template.get("apiVersion", "v1") != "v1":
        yield Finding((*where, "apiVersion"), "a Node's apiVersion is v1", "write v1", rule="invalid-template")
    for place, known in _NODE_FIELDS.items():
        part: Any = template
        for step in place:
            part = part.get(step) if isinstance(part, dict) else None
        if part is None and place:
            continue
        if not isinstance(part, dict):
            yield Finding((*where, *place), "must be a mapping", rule="invalid-template")
            continue
        for key in part:
            if key not in known:
                hint = _OURS.get((*place, key)) or problems.suggestion(key, list(known))
                what = f"{key!r} is not set by a template"
                yield Finding((*where, *place, key), what, hint, rule="invalid-template", at_key=True)
    yield from _template_values(template, where)


class _Loose(Model):
    """Part of an object that others wrote: only what is used of it matters."""

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
    """Return what keeps a Node of a file from being a template, empty if nothing does."""
    found = decode.to_model(_AnyNode, node)[1]
    return f"{problems.format_path(found[0].field_path)} {found[0].what}" if found else ""


class _TemplateParts(Model):
    """The parts of a node template whose values can be told right from wrong."""

    labels: Labels | None = None
    annotations: Annotations | None = None
    capacity: Resources | None = None
    allocatable: Resources | None = None
    node_info: _NodeInfo | None = None
    taints: Items[fleet_api.Taint] = ()


_TEMPLATE_PLACES = {
    "labels": "metadata",
    "annotations": "metadata",
    "capacity": "status",
    "allocatable": "status",
    "nodeInfo": "status",
    "taints": "spec",
}


def _template_values(template: Manifest, where: FieldPath) -> Iterator[Finding]:
    parts = {}
    for name, place in _TEMPLATE_PLACES.items():
        around = template.get(place)
        if isinstance(around, dict) and around.get(name) is not None:
            parts[name] = around[name]
    found = decode.to_model(_TemplateParts, parts)[1] if parts else []
    for finding in found:
        name = str(finding.field_path[0])
        yield Finding(
            (*where, _TEMPLATE_PLACES[name], *finding.field_path), finding.what, finding.hint, rule=finding.rule
        )
