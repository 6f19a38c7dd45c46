"""What shows only when one part of a Fleet is held beside another: names, references, room.

validation.py has seen to it that each value is of its kind. Every rule here answers with findings
at the place where a person would mend it.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kwokfleet.core import fleet as model
from kwokfleet.core import lifecycles, nodes, problems, schedule, validation
from kwokfleet.core.fields import Annotations, Items, Labels, Model, Resources
from kwokfleet.core.objects import Manifest
from kwokfleet.core.problems import Finding, Severity, Where

MAX_LABEL = 63
"""Characters in a label's value; a node's name is the value of kubernetes.io/hostname."""

_NODE_FIELDS: dict[Where, tuple[str, ...]] = {
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


def check(fleet: model.Fleet) -> Iterator[Finding]:
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


def _lifecycle(fleet: model.Fleet, lifecycle: model.Lifecycle, where: Where) -> Iterator[Finding]:
    scope = lifecycles.label(fleet.name, lifecycle.name)
    if len(scope) > MAX_LABEL:
        what = f"{scope!r} is longer than a label may be ({MAX_LABEL} characters)"
        yield Finding((*where, "name"), what, "shorten it, or the Fleet's name", rule="name-too-long")
    pod = lifecycle.pod
    if pod is not None and pod.restart is not None and (pod.complete is not None or pod.fail is not None):
        what = "cannot stand beside complete or fail: kwok plays one of them and forgets the other"
        yield Finding((*where, "pod", "restart"), what, "use two lifecycles", rule="lifecycle-conflict", at_key=True)
    users = {pool.lifecycle for pool in fleet.spec.node_pools} | {wave.lifecycle for wave in fleet.spec.waves}
    if lifecycle.name not in users:
        what = f"{lifecycle.name!r} is used by no pool and no wave of this Fleet"
        hint = f"name it there, or label pods kwokfleet.dev/lifecycle: {scope}"
        yield Finding((*where, "name"), what, hint, Severity.WARNING, "unused-lifecycle")


def reference(fleet: model.Fleet, name: str | None, side: str, where: Where) -> Iterator[Finding]:
    """Yield what is wrong with the Lifecycle that a pool (side node) or a Wave (side pod) names."""
    if name is None:
        return
    known = {each.name: each for each in fleet.spec.lifecycles}
    if name not in known:
        hint = problems.meant(name, sorted(known)) if known else "declare it under spec.lifecycles"
        yield Finding((*where, "lifecycle"), f"there is no lifecycle {name!r}", hint, rule="unknown-reference")
    elif getattr(known[name], side) is None:
        what = f"lifecycle {name!r} is about {'pods' if side == 'node' else 'nodes'}, not {side}s"
        yield Finding((*where, "lifecycle"), what, f"name one with {side}:", rule="wrong-reference")


# ----------------------------------------------------------------------------------------
# pools


def _pool(fleet: model.Fleet, pool: model.NodePool, where: Where) -> Iterator[Finding]:
    yield from reference(fleet, pool.lifecycle, "node", where)
    yield from node_template(pool.template, (*where, "template"))
    most = schedule.most_replicas(pool)
    longest = nodes.name(pool, fleet.name, max(0, most - 1))
    if len(longest) > MAX_LABEL:
        what = f"node names such as {longest!r} are longer than the hostname label may be ({MAX_LABEL} characters)"
        yield Finding((*where, "name"), what, "use shorter names, or nodeName", rule="name-too-long")
    if pool.pod_cidr is not None:
        yield from _room(pool, most, (*where, "podCIDR"))
    for key in pool.spread:
        if key in pool.labels:
            what = f"{key!r} is set by spread as well"
            yield Finding((*where, "labels", key), what, "remove one of the two", rule="conflict", at_key=True)


def _room(pool: model.NodePool, most: int, where: Where) -> Iterator[Finding]:
    network = ipaddress.ip_network(pool.pod_cidr or "")
    length = nodes.prefix_length(pool, {}) if network.version == 4 else 64  # noqa: PLR2004  # IPv4
    holds = 1 << max(0, length - network.prefixlen) if length >= network.prefixlen else 0
    if holds < most:
        what = f"{network} holds {holds} networks of /{length}, and the pool may have {most} nodes"
        yield Finding(where, what, "use a larger network, or fewer pods per node", rule="pod-cidr-too-small")


def _same_node_names(fleet: model.Fleet) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for index, pool in enumerate(fleet.spec.node_pools):
        first = nodes.name(pool, fleet.name, 0)
        if first in seen and seen[first] != pool.name:
            what = f"its nodes have the same names as those of pool {seen[first]!r} ({first}, ...)"
            where = ("spec", "nodePools", index, "nodeName")
            yield Finding(where, what, "put {pool} into nodeName", rule="same-node-names")
        seen.setdefault(first, pool.name)


def overlapping_networks(fleets: Iterable[model.Fleet]) -> Iterator[tuple[str, Finding]]:
    """Yield pools whose podCIDR overlaps that of an earlier one, with the name of their Fleet."""
    taken: list[tuple[Any, str]] = []
    for fleet in fleets:
        for index, pool in enumerate(fleet.spec.node_pools):
            if pool.pod_cidr is None:
                continue
            network = ipaddress.ip_network(pool.pod_cidr)
            rival = next(
                (by for other, by in taken if other.version == network.version and other.overlaps(network)), None
            )
            if rival:
                where = ("spec", "nodePools", index, "podCIDR")
                what = f"{network} overlaps the network of pool {rival}: pods would share addresses"
                yield fleet.name, Finding(where, what, "give each pool a network of its own", rule="pod-cidr-overlap")
            taken.append((network, f"{fleet.name}/{pool.name}"))


def node_template(template: Manifest, where: Where) -> Iterator[Finding]:
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
                hint = _OURS.get((*place, key)) or problems.meant(key, list(known))
                what = f"{key!r} is not set by a template"
                yield Finding((*where, *place, key), what, hint, rule="invalid-template", at_key=True)
    yield from _template_values(template, where)


class _TemplateParts(Model):
    """The parts of a node template whose values can be told right from wrong."""

    labels: Labels | None = None
    annotations: Annotations | None = None
    capacity: Resources | None = None
    allocatable: Resources | None = None
    taints: Items[model.Taint] = ()


_TEMPLATE_PLACES = {
    "labels": "metadata",
    "annotations": "metadata",
    "capacity": "status",
    "allocatable": "status",
    "taints": "spec",
}


def _template_values(template: Manifest, where: Where) -> Iterator[Finding]:
    parts = {}
    for name, place in _TEMPLATE_PLACES.items():
        around = template.get(place)
        if isinstance(around, dict) and around.get(name) is not None:
            parts[name] = around[name]
    found = validation.read(_TemplateParts, parts)[1] if parts else []
    for finding in found:
        name = str(finding.where[0])
        yield Finding((*where, _TEMPLATE_PLACES[name], *finding.where), finding.what, finding.hint, rule=finding.rule)
