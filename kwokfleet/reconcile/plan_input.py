"""PlanInput: desired and observed objects, the policies of the files, known uncertainties."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kwokfleet.api.fleet import Prune
from kwokfleet.api.node_pool import Drain
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import SHARED
from kwokfleet.render import desired as render
from kwokfleet.render import schedule

DEFAULT_MAX_PERCENT = Prune().max_percent


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Rules of a pool for its changes."""

    suspended: bool = False
    adopt: bool = False
    drain: Drain = field(default_factory=Drain.model_construct)
    size: int = 0


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """Rules of a Fleet for its changes."""

    suspended: bool = False
    open: bool = True
    adopt: bool = False
    max_percent: float = DEFAULT_MAX_PERCENT
    pools: Mapping[str, PoolPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """All inputs of a Plan."""

    desired: render.Desired = field(default_factory=dict)
    observed: Inventory = field(default_factory=dict)
    policies: Mapping[str, FleetPolicy] = field(default_factory=dict)
    """Of the declared Fleets."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Fleets with errors, and the first error."""
    doubt: str = ""
    """Why files may be incomplete; empty if all could be read."""
    frozen: str = ""
    """Why every change is withheld; empty if none is."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kinds that could not be listed, and why."""
    foreign: Mapping[ObjectKey, Observed] = field(default_factory=dict)
    """Live objects with a desired name that are not managed by kwokfleet."""
    occupied: Mapping[str, str] = field(default_factory=dict)
    """Managed namespaces, and a foreign object in each."""
    stalled: Mapping[tuple[ObjectKey, diff.Path], str] = field(default_factory=dict)
    """Fields left to another field manager, and its name."""
    approved: frozenset[str] = frozenset()
    prune: bool = True
    only: frozenset[str] | None = None
    """Fleets to plan; None: all."""
    addresses: bool = True
    """Whether the addresses and ports of nodes are known."""
    budget: bool = True
    """Whether prune budgets apply."""
    partial: bool = False
    """Whether undeclared Fleets are left alone: true for a single file, false for a folder."""

    @property
    def others(self) -> frozenset[str]:
        """Fleets of the cluster that are left alone."""
        if not self.partial:
            return frozenset()
        live = {observed.fleet for observed in self.observed.values()}
        return frozenset(live - self.policies.keys() - self.broken.keys() - {SHARED})


def fleet_policies(tree: render.Tree, now: datetime) -> dict[str, FleetPolicy]:
    """Return the policy of each Fleet at *now*."""
    return {
        fleet.name: FleetPolicy(
            fleet.spec.suspend,
            schedule.is_open(fleet.spec.windows, now),
            fleet.spec.adopt,
            fleet.spec.prune.max_percent,
            {
                pool.name: PoolPolicy(
                    pool.suspend, pool.adopt or fleet.spec.adopt, pool.drain, render.pool_size(pool, now)
                )
                for pool in fleet.spec.node_pools
            },
        )
        for fleet in tree.fleets
    }
