"""One pass: files and cluster to a Plan.

    load files -> render Desired(now) -> observe -> plan -> apply -> report

`kwokfleet diff` runs every step before apply: its plan is the plan of a sync and of the daemon.
The cache holds managed objects only. Three questions need requests, and only when they arise: does an object with the
name of a creation exist, is a namespace to delete in use, was a withheld plan approved. A synced fleet needs none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kwokfleet.documents import problems
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Inventory
from kwokfleet.reconcile import diff, planner, scaling
from kwokfleet.reconcile.changes import ChangeAction, Plan, WithheldCause
from kwokfleet.reconcile.cluster_state import LiveCluster, SavedCluster
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy, PlanInput, fleet_policies
from kwokfleet.render import desired
from kwokfleet.source import loader

MAX_FIELD_RESETS = 3
"""Writes of a field, each undone by another field manager, before it is stalled."""
CONFLICT_WINDOW = timedelta(minutes=1)
"""Writes further apart than this do not count as a conflict."""
STALL_PERIOD = timedelta(minutes=5)
"""How long a stalled field is left to the other field manager."""


@dataclass(frozen=True, slots=True)
class ReconcileOptions:
    """Options of a pass."""

    prune: bool = True
    only: frozenset[str] | None = None
    approved: frozenset[str] = frozenset()
    budget: bool = True
    """Whether prune budgets apply; not for a deletion requested by name."""
    rounds: int = MAX_FIELD_RESETS


class Reconciler:
    """Plans passes one after another, with caches between them."""

    def __init__(self, cluster: LiveCluster | SavedCluster, options: ReconcileOptions) -> None:
        self._cluster, self._options = cluster, options
        self._renderer = desired.Renderer()
        self._planner = planner.Planner()
        self._writes: dict[tuple[ObjectKey, diff.Path], tuple[object, list[datetime]]] = {}
        """The value written to each field, and when."""
        self._stalled_until: dict[tuple[ObjectKey, diff.Path], datetime] = {}
        self.stalled: dict[tuple[ObjectKey, diff.Path], str] = {}
        self.policies: Mapping[str, FleetPolicy] = {}
        self._last = Plan()
        self._desired_last: desired.Desired = {}

    def limit_to(self, names: Iterable[str]) -> None:
        """Plan only the named Fleets, without shared objects."""
        self._options = replace(self._options, only=frozenset(names))

    def nodes(self) -> set[ObjectKey]:
        """Return the desired nodes of the last plan that are not withheld."""
        withheld = {change.key for group in self._last.withheld for change in group.changes}
        return {key for key in self._desired_last if key.kind == "Node" and key not in withheld}

    def plan(self, loaded: loader.Loaded, now: datetime) -> Plan:
        """Return the Plan from the cluster to the files at *now*."""
        self._expire_stalled(now)
        plan_input = self._plan_input(loaded, now)
        plan = self._planner.plan(plan_input)
        if any(group.cause is WithheldCause.APPROVAL for group in plan.withheld):
            approved = self._options.approved | self._cluster.approved_digests()
            if any(group.digest in approved for group in plan.withheld):
                plan = self._planner.plan(replace(plan_input, approved=approved))
        self._last, self._desired_last = plan, plan_input.desired
        return plan

    def _plan_input(self, loaded: loader.Loaded, now: datetime) -> PlanInput:
        inventory, unknown = self._cluster.inventory()
        desired = self._desired(loaded.tree, inventory, now)
        self.policies = fleet_policies(loaded.tree, now)
        missing = [key for key in desired if key not in inventory and key.kind not in unknown]
        namespaces = (live for key, live in inventory.items() if key.kind == "Namespace" and key not in desired)
        removed_namespaces = [namespace.key.name for namespace in namespaces if not namespace.deleting]
        return PlanInput(
            desired,
            inventory,
            self.policies,
            _broken(loaded, self._renderer.conflicts),
            _doubt(loaded),
            loaded.frozen,
            unknown,
            self._cluster.foreign_objects(missing) if missing else {},
            self._cluster.foreign_occupants(removed_namespaces) if removed_namespaces else {},
            self.stalled,
            prune=self._options.prune,
            only=self._options.only,
            addresses=loaded.controller_known,
            partial=loaded.partial,
            budget=self._options.budget,
        )

    def _desired(self, tree: desired.Tree, inventory: Inventory, now: datetime) -> desired.Desired:
        members = scaling.live_members(tree, inventory)
        counted = scaling.nodes_to_count(tree, members, now)
        pods = self._cluster.pod_counts(counted) if counted else {}
        return self._renderer.desired(tree, now, scaling.desired_indices(tree, members, pods, now) if members else None)

    def record_outcomes(
        self, outcomes: Iterable[Outcome], lookup: Callable[[ObjectKey, diff.Path], str], now: datetime
    ) -> None:
        """Record field writes. A field that is undone every time is stalled for a while."""
        for outcome in outcomes:
            if outcome.change.action is not ChangeAction.UPDATE or outcome.result is not ChangeResult.DONE:
                continue
            for difference in outcome.change.differences:
                field = (outcome.change.key, difference.path)
                value, times = self._writes.get(field, (difference.desired, []))
                times = [*times, now] if value == difference.desired else [now]  # a new value starts again
                self._writes[field] = (difference.desired, times)
                if len(times) >= self._options.rounds:
                    self.stalled[field] = lookup(*field)
                    self._stalled_until[field] = now + STALL_PERIOD

    def _expire_stalled(self, now: datetime) -> None:
        """Drop old writes, and release fields whose stall period is over."""
        for field in [field for field, until in self._stalled_until.items() if until <= now]:
            del self._stalled_until[field], self.stalled[field]
        self._writes = {field: write for field, write in self._writes.items() if now - write[1][-1] < CONFLICT_WINDOW}


def with_suspended(loaded: loader.Loaded, names: AbstractSet[str]) -> loader.Loaded:
    """Return the loaded files with the named Fleets suspended."""
    if not names:
        return loaded
    fleets = tuple(
        fleet.model_copy(update={"spec": fleet.spec.model_copy(update={"suspend": True})})
        if fleet.name in names
        else fleet
        for fleet in loaded.tree.fleets
    )
    return replace(loaded, tree=replace(loaded.tree, fleets=fleets))


def _broken(loaded: loader.Loaded, clashes: Sequence[desired.ObjectConflict]) -> dict[str, str]:
    """Return the Fleets with errors, and why."""
    file_errors = problems.errors(loaded.problems)
    first = str(file_errors[0]) if file_errors else "kwokfleet validate lists them"
    broken = dict.fromkeys(sorted(loaded.broken), f"its file has errors: {first}")
    for clash in clashes:
        for name in {clash.by[0], clash.first} - {""}:
            broken.setdefault(name, f"{clash.key.kind} {clash.key.name!r} is declared twice")
    return broken


def _doubt(loaded: loader.Loaded) -> str:
    """Return why undeclared objects are kept: a file with errors may declare them."""
    file_errors = problems.errors(loaded.problems)
    return f"a file with errors may declare it: {file_errors[0]}" if file_errors else ""
