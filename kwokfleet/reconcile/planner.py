"""What to do: every change that turns the cluster into what the files say, in order, and what is not done and why."""

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
    """Plans again and again, and remembers what was equal: a pass costs what changed."""

    def __init__(self) -> None:
        self._equal: dict[ObjectKey, tuple[Manifest, Observed]] = {}

    def plan(self, situation: PlanInput) -> Plan:
        """Decide every change that turns what is observed into what is desired, in the order to make them."""
        changes = [*self._wanted(situation), *_unwanted(situation)]
        if not changes:
            return Plan()
        allowed, withheld = guards.apply_guards(situation, changes)
        return Plan(tuple(sorted(allowed, key=_order)), tuple(sorted(withheld, key=lambda one: (one.fleet, one.cause))))

    def _wanted(self, situation: PlanInput) -> Iterator[Change]:
        """Yield what is to be created or changed."""
        equal, observed = self._equal, situation.observed
        for key, want in situation.desired.items():
            have = observed.get(key)
            known = equal.get(key)
            if known is not None and known[0] is want and known[1] is have:
                continue
            change = _create(situation, key, want) if have is None else _update(situation, want, have)
            if change is not None:
                equal.pop(key, None)
                yield change
            elif have is not None and situation.addresses:
                equal[key] = (want, have)


def plan(situation: PlanInput) -> Plan:
    """Decide once."""
    return Planner().plan(situation)


# ----------------------------------------------------------------------------------------
# what would be done if nothing spoke against it


def _create(situation: PlanInput, key: ObjectKey, want: Manifest) -> Change | None:
    fleet, pool = owner(want)
    there = situation.foreign.get(key)
    if there is None:
        return Change(ChangeAction.CREATE, key, fleet, pool, "is missing", want)
    if key.kind == "Namespace":
        return None  # somebody else's will do, and stays theirs
    found = diff.differences(want, there)
    return Change(ChangeAction.UPDATE, key, fleet, pool, "is there, and is not ours", want, there, found)


def _update(situation: PlanInput, want: Manifest, have: Observed) -> Change | None:
    if have.deleting:  # it cannot be kept; whoever makes it anew waits until it is gone
        return Change(ChangeAction.CREATE, have.key, *owner(want), "is being deleted, and is asked for", want)
    found = diff.differences(want, have)
    if not situation.addresses:
        found = tuple(each for each in found if not _is_whereabouts(each.path))
    if not found:
        return None
    if situation.stalled:  # what is given up waits for a person; if there is more, that is done
        found = tuple(each for each in found if (have.key, each.path) not in situation.stalled) or found
    fleet, pool = owner(want)
    fixed = diff.needs_replacement(have.key.kind, found)
    if fixed is not None:
        reason = f"{'.'.join(fixed.path)} of a live {have.key.kind.lower()} cannot change"
        return Change(ChangeAction.REPLACE, have.key, fleet, pool, reason, want, have, found)
    return Change(ChangeAction.UPDATE, have.key, fleet, pool, "differs", want, have, found)


def _is_whereabouts(path: diff.Path) -> bool:
    """Return whether a field says where a node's kubelet is: only the KwokController document knows."""
    return path[:2] in (diff.ADDRESSES, diff.KUBELET) or path == _METRICS


def _unwanted(situation: PlanInput) -> Iterator[Change]:
    """Yield what is to be deleted."""
    desired, others = situation.desired, situation.others
    for key, have in situation.observed.items():
        if key not in desired and not have.deleting and have.fleet not in others:
            reason, vanished = _why_unwanted(situation, have)
            yield Change(ChangeAction.DELETE, key, have.fleet, have.pool, reason, None, have, (), vanished)


def _why_unwanted(situation: PlanInput, have: Observed) -> tuple[str, bool]:
    fleet = situation.policies.get(have.fleet)
    if have.fleet == SHARED:
        return "nothing in the files asks for it", False
    if fleet is None:
        return f"fleet {have.fleet} is not in the files", True
    if have.key.kind != "Node":
        return f"fleet {have.fleet} no longer asks for it", True
    pool = fleet.pools.get(have.pool)
    if pool is None:
        return f"pool {have.pool} is not in the files", True
    return f"pool {have.pool} has {pool.size} nodes now", False


def _order(change: Change) -> tuple[int, int]:
    """Return what sorts changes into the order in which they are made: deletes last, and in reverse."""
    rank = objects.apply_rank(change.key.kind)
    return (1, -rank) if change.action is ChangeAction.DELETE else (0, rank)
