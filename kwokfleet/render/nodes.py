"""Renders the Nodes of a pool from its templates.

`render` returns the fields that we own and compare: labels, taints, capacity, addresses. `NodeCreation`
adds fields that save the control plane work at creation (Ready conditions, the TTL controller's annotation). Those
belong to kwok and the controllers later, and are never compared.
"""

import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kwokfleet.api.fleet import DEFAULT_NODE_GROUP_LABEL, NodeGroups
from kwokfleet.api.kwok_controller import DEFAULT_NODE_IP
from kwokfleet.api.node_pool import NodePool
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import TTL
from kwokfleet.kwok import sharding
from kwokfleet.render import lifecycles, node_templates, usage
from kwokfleet.render.distributions import Distribution
from kwokfleet.render.seeded_random import SeededRandom

DEFAULT_RESOURCES = {"cpu": "32", "memory": "256Gi", "pods": "110"}
"""As in `kwokctl scale`."""
HOSTNAME_WEIGHT = 1_000_000
"""The Stage runs before all others."""
MAX_COMBINATIONS = 100_000
"""Combinations of `spread` values; more repeat."""

_METRICS_PATH = f'{{{{ printf "{usage.PATH.replace("{nodeName}", "%s")}" .metadata.name | Quote }}}}'
_MANAGED_ONLY = (objects.INDEX, objects.OWN_TAINTS, usage.METRICS_PATH)
"""Annotations for managed nodes only, or for one node name."""
_TTL_STEPS = ((100, 0), (500, 15), (1000, 30), (2000, 60))
"""Kubelet cache TTL in seconds by cluster size, as the TTL controller sets it."""
_TTL_ABOVE = 300

_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "False", "RouteCreated", "RouteController created a route"),
)
_READY = ("Ready", "True", "KubeletReady", "kubelet is posting ready status")
BOOTING_CONDITION = ("Ready", "False", "KubeletNotReady", "the node is booting")


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Inputs of a pool's nodes beside the pool."""

    fleet: str
    node_ip: str = DEFAULT_NODE_IP
    groups: NodeGroups | None = None
    seed: int = 0
    drawn: tuple[tuple[str, Distribution], ...] = ()
    """Delays drawn for each node, by part of the Lifecycle."""
    port: int | None = None
    """Kubelet port of the first kwok process; each further one has the next port."""
    shards: int = 1
    """Number of kwok processes."""
    in_pods: bool = False
    """Whether they are pods of a StatefulSet: a label names the shard, and a node has its pod's address."""


def render(
    pool: NodePool, indices: Sequence[int], templates: Sequence[Manifest], context: NodeContext
) -> list[Manifest]:
    """Return the Nodes of a pool with these indices; templates are used in turn."""
    bases = [_base(pool, template, context) for template in templates or [{}]]
    network, spread = _network(pool, bases), _spread(pool)
    pattern, draw = _pattern(pool, context.fleet), _drawing(pool, context)
    return [
        _node(bases[index % len(bases)], index, pattern(index), spread[index % len(spread)], network(index), draw)
        for index in indices
    ]


def _drawing(pool: NodePool, context: NodeContext) -> Callable[[int], dict[str, str]] | None:
    """Return a function from a node's index to its delay annotations, if any delay is drawn."""
    if not context.drawn:
        return None
    drawn = [
        (lifecycles.delay_annotation(part), delay, SeededRandom(context.seed, context.fleet, pool.name, "delay", part))
        for part, delay in context.drawn
    ]
    return lambda index: {key: lifecycles.draw_delay(delay, random, index) for key, delay, random in drawn}


def taints(pool: NodePool, templates: Sequence[Manifest]) -> list[Manifest]:
    """Return all taints of a pool's nodes."""
    bases = [_base(pool, template, NodeContext("")) for template in templates or [{}]]
    unique: list[Manifest] = []
    for taint in (taint for base in bases for taint in base["spec"]["taints"]):
        if taint not in unique:
            unique.append(taint)
    return unique


def autoscaler_template(
    pool: NodePool, templates: Sequence[Manifest], context: NodeContext, *, ready: bool
) -> Manifest:
    """Return the template Node of this pool for the cluster-autoscaler's kwok provider.

    It has no managed-by label: the nodes belong to the autoscaler.
    """
    if pool.autoscaler is None:
        raise ValueError(f"pool {pool.name} has no autoscaler")
    name, limits = f"{context.fleet}-{pool.name}", pool.autoscaler
    prefix = "cluster-autoscaler.kwok.nodegroup"
    node = _node(_base(pool, (templates or [{}])[0], context), 0, name, _spread(pool)[0], None, None)
    metadata = node["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != objects.MANAGED_BY}
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in _MANAGED_ONLY} | {
        f"{prefix}/name": name,
        f"{prefix}/min-count": str(limits.min),
        f"{prefix}/max-count": str(limits.max),
        f"{prefix}/desired-count": str(limits.min if limits.desired is None else limits.desired),
    }
    groups = context.groups or NodeGroups()
    if groups.annotation:
        annotations[groups.annotation] = name
    else:
        labels[groups.label or DEFAULT_NODE_GROUP_LABEL] = name
    status = {**node["status"], "conditions": _conditions(_READY if ready else BOOTING_CONDITION, None)}
    status["phase"] = "Running" if ready else "Pending"
    return {**node, "metadata": {"name": name, "labels": labels, "annotations": annotations}, "status": status}


def hostname_stage(pool: NodePool, fleet: str, *, serves_kubelet: bool) -> Manifest:
    """Return the Stage that sets hostname and, if kwok serves the kubelet API, metrics path of autoscaler nodes.

    The kwok provider copies those of the template: all nodes would be one host for pod anti-affinity, and
    metrics-server would read metrics of a node that does not exist.
    """
    hostname = f'.metadata.labels["{node_templates.HOSTNAME}"] == .metadata.name | tostring'
    patch = {
        "root": "metadata",
        "type": "merge",
        "template": f"labels:\n  {node_templates.HOSTNAME}: {{{{ .metadata.name | Quote }}}}\n"
        + (f"annotations:\n  {usage.METRICS_PATH}: {_METRICS_PATH}\n" if serves_kubelet else ""),
    }
    return {
        "apiVersion": objects.STAGE_API_VERSION,
        "kind": "Stage",
        "metadata": {
            "name": f"{fleet}-{pool.name}-hostname",
            "labels": {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: fleet},
        },
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Node"},
            "selector": {
                "matchLabels": {objects.FLEET: fleet, objects.POOL: pool.name},
                "matchExpressions": [{"jq": {"key": hostname, "operator": "In", "values": ["false"]}}],
            },
            "weight": HOSTNAME_WEIGHT,
            "steps": [{"patch": patch}],
        },
    }


class NodeCreation:
    """Sets the fields that nodes get only at creation."""

    def __init__(self, now: datetime, cluster_size: int) -> None:
        self._ttl = str(next((ttl for most, ttl in _TTL_STEPS if cluster_size <= most), _TTL_ABOVE))
        self._ready = _conditions(_READY, now)
        self._booting = _conditions(BOOTING_CONDITION, now)

    def apply(self, node: Manifest, *, ready: bool) -> Manifest:
        """Return *node* as it is created: Ready, or not Ready until a Stage boots it."""
        metadata = node["metadata"]
        status = {**node["status"], "conditions": self._ready if ready else self._booting}
        status["phase"] = "Running" if ready else "Pending"
        annotations = {**metadata["annotations"], TTL: self._ttl}
        return {**node, "metadata": {**metadata, "annotations": annotations}, "status": status}


def _conditions(ready: tuple[str, str, str, str], now: datetime | None) -> list[Manifest]:
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if now else None
    times = {"lastHeartbeatTime": stamp, "lastTransitionTime": stamp} if stamp else {}
    return [
        {"type": kind, "status": status, "reason": reason, "message": message, **times}
        for kind, status, reason, message in (ready, *_CONDITIONS)
    ]


# one pool


def _base(pool: NodePool, template: Manifest, context: NodeContext) -> Manifest:
    """Return the common parts of all nodes with one template."""
    cleaned = node_templates.static_template(template)
    if not cleaned["status"].get("capacity"):
        cleaned["status"] = {**cleaned["status"], "capacity": DEFAULT_RESOURCES}
    merged: Manifest = objects.overlay(cleaned, pool.template)
    metadata, spec, status = merged.get("metadata") or {}, merged.get("spec") or {}, merged.get("status") or {}
    info = {**node_templates.DEFAULT_NODE_INFO, **(status.get("nodeInfo") or {})}
    own = [taint.model_dump(exclude_defaults=True) for taint in pool.taints]
    fake = [objects.FAKE_NODE_TAINT] if pool.taint else []
    taints: list[Manifest] = objects.overlay(spec.get("taints") or [], [*own, *fake], "taints")
    return {
        "labels": _labels(pool, metadata.get("labels") or {}, info, context.fleet),
        "annotations": {
            **(metadata.get("annotations") or {}),
            **pool.annotations,
            objects.FAKE_NODE_KEY: objects.FAKE_NODE_VALUE,
            **({objects.OWN_TAINTS: listed} if (listed := own_taints(taints)) else {}),
            **usage.node_annotations(pool.usage),
        },
        "spec": {**spec, "taints": taints},
        "status": _status(pool, status, info),
        "kubelet": _kubelet(context),
        "shards": context.shards if context.shards > 1 or context.in_pods else 0,
        "provider": pool.provider_id,
    }


def _labels(pool: NodePool, template: Mapping[str, str], info: Mapping[str, str], fleet: str) -> dict[str, str]:
    arch, system = info["architecture"], info["operatingSystem"]
    labels = {
        "beta.kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": system,
        "kubernetes.io/arch": arch,
        "kubernetes.io/os": system,
        "node-role.kubernetes.io/agent": "",
        "type": "kwok",
        **template,
        **pool.labels,
        objects.MANAGED_BY: objects.KWOKFLEET,
        objects.FLEET: fleet,
        objects.POOL: pool.name,
    }
    if pool.lifecycle:
        labels[objects.LIFECYCLE] = f"{fleet}.{pool.lifecycle}"
    return dict(sorted(labels.items()))


def _status(pool: NodePool, template: Mapping[str, Any], info: Mapping[str, str]) -> Manifest:
    capacity = {name: str(value) for name, value in (template.get("capacity") or {}).items()} | pool.resources
    reduced = {name: str(value) for name, value in (template.get("allocatable") or {}).items()}
    allocatable = capacity | reduced | pool.resources
    others = {name: value for name, value in template.items() if name not in {"conditions", "phase"}}
    parts = {"capacity": capacity, "allocatable": allocatable, "nodeInfo": info}
    return others | {name: dict(sorted(part.items())) for name, part in parts.items()}


def _node(  # noqa: PLR0913, PLR0917  # what one node is made of
    base: Manifest,
    index: int,
    name: str,
    zone: Mapping[str, str],
    network: str | None,
    draw: Callable[[int], dict[str, str]] | None,
) -> Manifest:
    spec: Manifest = dict(base["spec"])
    if not spec["taints"]:
        del spec["taints"]
    if base["provider"]:
        spec["providerID"] = f"kwok://{name}"
    if network is not None:
        spec["podCIDR"] = network
        spec["podCIDRs"] = [network]
    drawn = draw(index) if draw else {}
    endpoint, metrics_path = base["kubelet"](name)
    shard = {objects.SHARD: str(sharding.shard_index(name, base["shards"]))} if base["shards"] else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**base["labels"], node_templates.HOSTNAME: name, **zone, **shard},
            "annotations": {**base["annotations"], **metrics_path, objects.INDEX: str(index), **drawn},
        },
        "spec": spec,
        "status": {**endpoint, **base["status"]},
    }


def _kubelet(context: NodeContext) -> Callable[[str], tuple[Manifest, dict[str, str]]]:
    """Return a function from a node's name to its kubelet endpoint and its annotations for metrics-server.

    The API server prefers Hostname to InternalIP. If kwok serves the kubelet API, nodes have no Hostname, because
    it cannot be resolved.
    """
    internal = {"type": "InternalIP", "address": context.node_ip}
    port, shards = context.port, context.shards
    if port is None:
        return lambda name: ({"addresses": [internal, {"type": "Hostname", "address": name}]}, {})
    if context.in_pods:  # the address is set later: it changes with the pod
        endpoint = {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        return lambda name: (endpoint, {usage.METRICS_PATH: usage.PATH.replace("{nodeName}", name)})
    addresses = [internal]
    ports = [{"kubeletEndpoint": {"Port": port + shard}} for shard in range(shards)]
    return lambda name: (
        {"addresses": addresses, "daemonEndpoints": ports[sharding.shard_index(name, shards) if shards > 1 else 0]},
        {usage.METRICS_PATH: usage.PATH.replace("{nodeName}", name)},
    )


def node_name(pool: NodePool, fleet: str, index: int) -> str:
    """Return the name of one node of a pool."""
    return _pattern(pool, fleet)(index)


def _pattern(pool: NodePool, fleet: str) -> Callable[[int], str]:
    text = pool.node_name.replace("{fleet}", fleet).replace("{pool}", pool.name)
    text = text.replace("{index}", "{0}").replace("{index:", "{0:")
    return text.format


def _spread(pool: NodePool) -> list[dict[str, str]]:
    """Return the label combinations that nodes take in turn, by index.

    Each value of a key, and each combination, occurs equally often. Keys with coprime numbers of values do so
    by themselves; others are shifted by one each time they repeat.
    """
    keys = sorted(pool.spread.items())
    turns = min(math.prod(len(values) for _, values in keys), MAX_COMBINATIONS)
    combinations: list[dict[str, str]] = [{} for _ in range(turns)]
    before = 1
    for key, values in keys:
        size = len(values)
        step, steps = math.lcm(before, size), math.gcd(before, size)
        for index, combination in enumerate(combinations):
            combination[key] = values[(index + index // step % steps) % size]
        before *= size
    return combinations


def prefix_length(pool: NodePool, template: Manifest) -> int:
    """Return the prefix length of a node's podCIDR, from its pod capacity."""
    capacity = (objects.overlay(template, pool.template).get("status") or {}).get("capacity") or {}
    pods = str(pool.resources.get("pods", capacity.get("pods", DEFAULT_RESOURCES["pods"])))
    addresses = int(pods) + 2 if pods.isdigit() else 256
    return 32 - max(8, (addresses - 1).bit_length())


def _network(pool: NodePool, bases: Sequence[Manifest]) -> Callable[[int], str | None]:
    """Return a function from a node's index to its podCIDR."""
    if pool.pod_cidr is None:
        return lambda _index: None
    network = ipaddress.ip_network(pool.pod_cidr)
    first = int(network.network_address)
    if network.version == 6:  # noqa: PLR2004  # IPv6
        return lambda index: f"{ipaddress.IPv6Address(first + (index << 64))}/64"
    length = min(prefix_length(pool, {"status": base["status"]}) for base in bases)
    step = 1 << (32 - length)
    return lambda index: f"{ipaddress.IPv4Address(first + index * step)}/{length}"


def own_taints(taints: Iterable[Mapping[str, Any]]) -> str:
    """Return the annotation value that lists our taints on a node; the fake taint is always ours."""
    # Sorted: the order of taints in a file must not make a difference.
    return ",".join(
        sorted(f"{taint['key']}:{taint.get('effect', '')}" for taint in taints if taint["key"] != objects.FAKE_NODE_KEY)
    )
