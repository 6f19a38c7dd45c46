"""Placement of a Wave's pods on the fake nodes of their Fleet: tolerations and node affinity."""

from collections.abc import Mapping, Sequence
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.wave import Wave
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest


def tolerations(
    existing: Sequence[Manifest], fleet: fleet_api.Fleet, wave: Wave, taints: Mapping[str, Sequence[Manifest]]
) -> list[Manifest]:
    """Return tolerations for the fake taint, the autoscaler's, and the taints of the Wave's pools."""
    added = [{"key": objects.FAKE_NODE_KEY, "operator": "Exists", "effect": "NoSchedule"}]
    pools = [pool for pool in fleet.spec.node_pools if not wave.pools or pool.name in wave.pools]
    if any(pool.autoscaler for pool in pools):
        added.append({"key": objects.AUTOSCALER_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"})
    for taint in (taint for pool in pools if pool.name in wave.pools for taint in taints.get(pool.name, ())):
        value = {"operator": "Equal", "value": taint["value"]} if taint.get("value") else {"operator": "Exists"}
        toleration = {"key": taint["key"], **value, "effect": taint["effect"]}
        if toleration not in added and taint["key"] != objects.FAKE_NODE_KEY:
            added.append(toleration)
    tolerated = {(entry.get("key"), entry.get("effect")) for entry in existing}
    return [*existing, *(entry for entry in added if (entry["key"], entry["effect"]) not in tolerated)]


def affinity(existing: Mapping[str, Any], fleet: fleet_api.Fleet, wave: Wave) -> Manifest:
    """Return an affinity that also requires the Fleet's nodes, in every term: terms are alternatives."""
    required_nodes: list[Manifest] = [{"key": objects.FLEET, "operator": "In", "values": [fleet.name]}]
    if wave.pools:
        required_nodes.append({"key": objects.POOL, "operator": "In", "values": list(wave.pools)})
    node = existing.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *required_nodes]}
        for term in (node.get(required) or {}).get("nodeSelectorTerms") or [{}]
    ]
    return {**existing, "nodeAffinity": {**node, required: {"nodeSelectorTerms": terms}}}
