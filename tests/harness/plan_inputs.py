"""Inputs of the planner, and summaries of its Plan."""

from typing import Any

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile.changes import Plan, WithheldCause
from kwokfleet.reconcile.plan_input import FleetPolicy, PoolPolicy
from tests.harness import manifests


def desired(*desired_manifests: Manifest) -> dict[ObjectKey, Manifest]:
    """Return desired objects by key."""
    return {objects.key(manifest): manifest for manifest in desired_manifests}


def inventory(*items: Observed | Manifest) -> dict[ObjectKey, Observed]:
    """Return observed objects by key."""
    observed = [item if isinstance(item, Observed) else manifests.observe(item) for item in items]
    return {item.key: item for item in observed}


def fleet_rules(*pools: str, **fields: Any) -> dict[str, FleetPolicy]:  # noqa: ANN401  # of a Fleet
    """Return the rules of a Fleet `lab` with some pools."""
    return {"lab": FleetPolicy(pools={name: PoolPolicy(size=1) for name in pools}, **fields)}


def nodes(count: int, pool: str = "gpu", **parts: Any) -> list[Manifest]:  # noqa: ANN401  # of a manifest
    """Return nodes of a pool of the Fleet `lab`."""
    return [manifests.node(f"lab-{pool}-{number}", pool=pool, **parts) for number in range(count)]


def actions(plan: Plan) -> list[tuple[str, str]]:
    """Return the action and object name of each Change."""
    return [(change.action.value, change.key.name) for change in plan.changes]


def causes(plan: Plan) -> list[tuple[WithheldCause, str, int]]:
    """Return the cause, Fleet and number of Changes of each Withheld."""
    return [(withheld.cause, withheld.fleet, len(withheld.changes)) for withheld in plan.withheld]
