"""Planner: desired and observed objects to an ordered Plan."""

from collections.abc import Iterator

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff, guards
from kwokfleet.reconcile.changes import SHARED, Change, ChangeAction, Plan, owner
from kwokfleet.reconcile.plan_input import PlanInput
from kwokfleet.render import usage

_METRICS: diff.Path = ("metadata", "annotations", usage.METRICS_PATH)


class Planner:
    """Plans repeatedly. Remembers equal pairs, so that a pass costs only what changed."""

    def __init__(self) -> None:
        self._equal: dict[ObjectKey, tuple[Manifest, Observed]] = {}

    def plan(self, plan_input: PlanInput) -> Plan:
        """Return the changes from observed to desired, in apply order, and the withheld ones."""
        changes = [*self._desired_changes(plan_input), *_deletions(plan_input)]
        if not changes:
            return Plan()
        allowed, withheld = guards.apply_guards(plan_input, changes)
        withheld.sort(key=lambda group: (group.fleet, group.cause))
        return Plan(tuple(sorted(allowed, key=_order)), tuple(withheld))

    def _desired_changes(self, plan_input: PlanInput) -> Iterator[Change]:
        """Yield creations, updates and replacements."""
        equal, observed = self._equal, plan_input.observed
        for key, desired in plan_input.desired.items():
            live = observed.get(key)
            known = equal.get(key)
            if known is not None and known[0] is desired and known[1] is live:
                continue
            change = _create(plan_input, key, desired) if live is None else _update(plan_input, desired, live)
            if change is not None:
                equal.pop(key, None)
                yield change
            elif live is not None and plan_input.addresses:
                equal[key] = (desired, live)


def _create(plan_input: PlanInput, key: ObjectKey, desired: Manifest) -> Change | None:
    fleet, pool = owner(desired)
    foreign = plan_input.foreign.get(key)
    if foreign is None:
        return Change(ChangeAction.CREATE, key, fleet, pool, "is missing", desired)
    if key.kind == "Namespace":
        return None  # a foreign namespace is used as it is
    reason = "exists and is not managed by kwokfleet"
    differences = diff.differences(desired, foreign)
    return Change(ChangeAction.UPDATE, key, fleet, pool, reason, desired, foreign, differences)


def _update(plan_input: PlanInput, desired: Manifest, live: Observed) -> Change | None:
    if live.deleting:  # created again once the deletion is complete
        return Change(ChangeAction.CREATE, live.key, *owner(desired), "is being deleted, and is desired", desired)
    differences = diff.differences(desired, live)
    if not plan_input.addresses:
        differences = tuple(difference for difference in differences if not _is_kubelet_address(difference.path))
    if not differences:
        return None
    if plan_input.stalled:  # stalled fields wait; other differences are applied
        stalled = plan_input.stalled
        free = tuple(difference for difference in differences if (live.key, difference.path) not in stalled)
        differences = free or differences
    fleet, pool = owner(desired)
    fixed = diff.needs_replacement(live.key.kind, differences)
    if fixed is not None:
        reason = f"{'.'.join(fixed.path)} of a live {live.key.kind.lower()} is immutable"
        return Change(ChangeAction.REPLACE, live.key, fleet, pool, reason, desired, live, differences)
    return Change(ChangeAction.UPDATE, live.key, fleet, pool, "differs", desired, live, differences)


def _is_kubelet_address(path: diff.Path) -> bool:
    """Return whether a field holds the kubelet's address, which only the KwokController document defines."""
    return path[:2] in (diff.ADDRESSES, diff.KUBELET) or path == _METRICS


def _deletions(plan_input: PlanInput) -> Iterator[Change]:
    """Yield deletions."""
    desired, others = plan_input.desired, plan_input.others
    for key, live in plan_input.observed.items():
        if key not in desired and not live.deleting and live.fleet not in others:
            reason, vanished = _deletion_reason(plan_input, live)
            yield Change(ChangeAction.DELETE, key, live.fleet, live.pool, reason, None, live, (), vanished)


def _deletion_reason(plan_input: PlanInput, live: Observed) -> tuple[str, bool]:
    fleet = plan_input.policies.get(live.fleet)
    if live.fleet == SHARED:
        return "is not declared", False
    if fleet is None:
        return f"fleet {live.fleet} is not declared", True
    if live.key.kind != "Node":
        return f"is no longer declared by fleet {live.fleet}", True
    if live.pool not in fleet.pools:
        return f"pool {live.pool} is not declared", True
    return f"pool {live.pool} is scaled to {fleet.pools[live.pool].size}", False


def _order(change: Change) -> tuple[int, int]:
    """Return the sort key of apply order: deletions last, in reverse."""
    rank = objects.apply_rank(change.key.kind)
    return (1, -rank) if change.action is ChangeAction.DELETE else (0, rank)
