"""Everything that a plan follows from: what is desired and observed, what the files allow, what is in doubt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kwokfleet.api.fleet import Drain, Prune
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import SHARED
from kwokfleet.render import desired as render
from kwokfleet.render import schedule

DEFAULT_MAX_PERCENT = Prune().max_percent


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What a pool's file says about its changes."""

    suspended: bool = False
    adopt: bool = False
    drain: Drain = field(default_factory=Drain.model_construct)
    size: int = 0


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """What a Fleet's file says about its changes."""

    suspended: bool = False
    open: bool = True
    adopt: bool = False
    max_percent: float = DEFAULT_MAX_PERCENT
    pools: Mapping[str, PoolPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """Everything that a plan follows from."""

    desired: render.Desired = field(default_factory=dict)
    observed: Inventory = field(default_factory=dict)
    policies: Mapping[str, FleetPolicy] = field(default_factory=dict)
    """Of the Fleets that the files declare."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Fleets that cannot be used, and why."""
    doubt: str = ""
    """Why the files may say more than could be read; empty if all of them could."""
    frozen: str = ""
    """Why nothing at all can be done."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kinds that could not be listed, and why."""
    foreign: Mapping[ObjectKey, Observed] = field(default_factory=dict)
    """Live objects that are not ours, of names that the files ask for."""
    occupied: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of ours, and an object of somebody else in each."""
    stalled: Mapping[tuple[ObjectKey, diff.Path], str] = field(default_factory=dict)
    """Fields that are given up, and to whom."""
    approved: frozenset[str] = frozenset()
    prune: bool = True
    only: frozenset[str] | None = None
    """The Fleets that are looked at; all without it."""
    addresses: bool = True
    """Whether it is known which addresses and ports nodes should show."""
    budget: bool = True
    """Whether the Fleets' prune budgets hold."""
    partial: bool = False
    """Whether the files speak only of the Fleets they declare: a single file does, a folder speaks of all."""

    @property
    def others(self) -> frozenset[str]:
        """Fleets of the cluster that the files do not speak of."""
        if not self.partial:
            return frozenset()
        there = {each.fleet for each in self.observed.values()}
        return frozenset(there - self.policies.keys() - self.broken.keys() - {SHARED})


def fleet_policies(tree: render.Tree, now: datetime) -> dict[str, FleetPolicy]:
    """Return what the files say about changes at *now*."""
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
