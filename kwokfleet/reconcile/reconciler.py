"""One pass, straight down: files and cluster in, a plan out, and then its changes made.

    load files -> render Desired(now) -> observe -> plan -> apply -> report

`kwokfleet diff` is everything before apply, so what it shows is what a sync or the daemon does.
Requests are made only for what the mirror cannot know, and only when there is a need: whether a
name that would be created is taken, whether a namespace that would go is in use, whether a plan that
is withheld was approved. A settled fleet needs none of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from kwokfleet.documents import problems
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Inventory, Observed
from kwokfleet.reconcile import diff, outcomes, planner, scaling
from kwokfleet.reconcile.changes import ChangeAction, Plan, WithheldCause
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy, PlanInput, fleet_policies
from kwokfleet.render import desired
from kwokfleet.source import loader

MAX_FIELD_RESETS = 3
"""So often a field may come back changed before it is given up."""
CONFLICT_WINDOW = timedelta(minutes=1)
"""Changes of a field that lie further apart are no fight."""
STALL_PERIOD = timedelta(minutes=5)
"""How long a field that was given up is left to whoever else writes it."""


class ClusterState(Protocol):
    """What a pass wants to know of the cluster."""

    def inventory(self) -> tuple[Inventory, Mapping[str, str]]:
        """Return our objects, and the kinds of which it is unknown what there is."""

    def foreign_objects(self, keys: Iterable[ObjectKey]) -> Mapping[ObjectKey, Observed]:
        """Return those of some objects that are there and are not ours."""

    def foreign_occupants(self, namespaces: Iterable[str]) -> Mapping[str, str]:
        """Return the namespaces in which somebody else has something, and what."""

    def pod_counts(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return how many pods run on some nodes."""

    def approved_digests(self) -> frozenset[str]:
        """Return the digests of plans that were approved."""


@dataclass(frozen=True, slots=True)
class ReconcileOptions:
    """What whoever asks for a pass may decide."""

    prune: bool = True
    only: frozenset[str] | None = None
    approved: frozenset[str] = frozenset()
    budget: bool = True
    """Whether Fleets' prune budgets hold; not for what somebody has ordered by name."""
    rounds: int = MAX_FIELD_RESETS


class Reconciler:
    """Makes passes, one after the other, and remembers what spares work."""

    def __init__(self, cluster: ClusterState, options: ReconcileOptions) -> None:
        self._cluster, self._options = cluster, options
        self._renderer = desired.Renderer()
        self._planner = planner.Planner()
        self._fights: dict[tuple[ObjectKey, diff.Path], tuple[object, list[datetime]]] = {}
        """What each field had to be set to, and when."""
        self._truces: dict[tuple[ObjectKey, diff.Path], datetime] = {}
        self.stalled: dict[tuple[ObjectKey, diff.Path], str] = {}
        self.policies: Mapping[str, FleetPolicy] = {}
        self._last = Plan()
        self._desired_last: desired.Desired = {}

    def limit_to(self, names: Iterable[str]) -> None:
        """Look at nothing but what belongs to some Fleets alone."""
        self._options = replace(self._options, only=frozenset(names))

    def nodes(self) -> set[ObjectKey]:
        """Return the nodes that should be there, without those that are withheld."""
        withheld = {change.key for each in self._last.withheld for change in each.changes}
        return {key for key in self._desired_last if key.kind == "Node" and key not in withheld}

    def plan(self, loaded: loader.Loaded, now: datetime) -> Plan:
        """Return what is to be done to make the cluster what the files say at *now*."""
        self._forget(now)
        situation = self._situation(loaded, now)
        made = self._planner.plan(situation)
        if outcomes.of_cause(made.withheld, WithheldCause.APPROVAL):
            approved = self._options.approved | self._cluster.approved_digests()
            if any(each.digest in approved for each in made.withheld):
                made = self._planner.plan(replace(situation, approved=approved))
        self._last, self._desired_last = made, situation.desired
        return made

    def _situation(self, loaded: loader.Loaded, now: datetime) -> PlanInput:
        inventory, unknown = self._cluster.inventory()
        desired = self._desired(loaded.tree, inventory, now)
        self.policies = fleet_policies(loaded.tree, now)
        missing = [key for key in desired if key not in inventory and key.kind not in unknown]
        going = [
            key.name
            for key, each in inventory.items()
            if key.kind == "Namespace" and key not in desired and not each.deleting
        ]
        return PlanInput(
            desired,
            inventory,
            self.policies,
            _broken(loaded, self._renderer.clashes),
            _doubt(loaded),
            loaded.frozen,
            unknown,
            self._cluster.foreign_objects(missing) if missing else {},
            self._cluster.foreign_occupants(going) if going else {},
            self.stalled,
            prune=self._options.prune,
            only=self._options.only,
            addresses=loaded.controller_known,
            partial=loaded.partial,
            budget=self._options.budget,
        )

    def _desired(self, tree: desired.Tree, inventory: Inventory, now: datetime) -> desired.Desired:
        there = scaling.live_members(tree, inventory)
        counted = scaling.nodes_to_count(tree, there, now)
        pods = self._cluster.pod_counts(counted) if counted else {}
        return self._renderer.desired(tree, now, scaling.desired_indices(tree, there, pods, now) if there else None)

    def record_outcomes(self, outcomes: Iterable[Outcome], rival: "FieldManagerLookup", now: datetime) -> None:
        """Note when each field had to be set; one that comes back again and again is given up for a while."""
        for outcome in outcomes:
            if outcome.change.action is not ChangeAction.UPDATE or outcome.result is not ChangeResult.DONE:
                continue
            for each in outcome.change.differences:
                mark = (outcome.change.key, each.path)
                asked, times = self._fights.get(mark, (each.desired, []))
                times = [*times, now] if asked == each.desired else [now]  # a file that says something else is no fight
                self._fights[mark] = (each.desired, times)
                if len(times) >= self._options.rounds:
                    self.stalled[mark] = rival(outcome.change.key, each.path)
                    self._truces[mark] = now + STALL_PERIOD

    def _forget(self, now: datetime) -> None:
        """Forget fights that are long past, and try again what was given up then."""
        for mark in [mark for mark, until in self._truces.items() if until <= now]:
            del self._truces[mark], self.stalled[mark]
        self._fights = {mark: each for mark, each in self._fights.items() if now - each[1][-1] < CONFLICT_WINDOW}


def with_suspended(loaded: loader.Loaded, names: AbstractSet[str]) -> loader.Loaded:
    """Return what is loaded, with those Fleets suspended that somebody suspended in the cluster."""
    if not names:
        return loaded
    fleets = tuple(
        each.model_copy(update={"spec": each.spec.model_copy(update={"suspend": True})}) if each.name in names else each
        for each in loaded.tree.fleets
    )
    return replace(loaded, tree=replace(loaded.tree, fleets=fleets))


class FieldManagerLookup(Protocol):
    """Names who holds a field of an object."""

    def __call__(self, key: ObjectKey, path: diff.Path) -> str:
        """Return the manager's name."""


def _broken(loaded: loader.Loaded, clashes: Sequence[desired.ObjectConflict]) -> dict[str, str]:
    """Return the Fleets that must be left alone, and why."""
    wrong = problems.errors(loaded.problems)
    first = str(wrong[0]) if wrong else "see the problems of the files"
    found = dict.fromkeys(sorted(loaded.broken), f"its file has errors: {first}")
    for clash in clashes:
        for name in {clash.by[0], clash.first} - {""}:
            found.setdefault(name, f"two parts of the files ask for {clash.key.kind} {clash.key.name!r}")
    return found


def _doubt(loaded: loader.Loaded) -> str:
    """Return why what is not in the files may be meant to stay: it may be in one that cannot be used."""
    wrong = problems.errors(loaded.problems)
    return f"a file has errors, and may say that it should stay: {wrong[0]}" if wrong else ""
