"""Guards: prune budget, broken files, windows, suspension, objects of other owners.

No other module decides what is withheld. A blocked change is not dropped: it becomes Withheld with its reason, so
that a preview shows it and an operator can act on it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from kwokfleet.kube import objects
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import SHARED, Change, ChangeAction, Withheld, WithheldCause, digest, owner
from kwokfleet.reconcile.plan_input import DEFAULT_MAX_PERCENT, PlanInput

_NEXT = {
    WithheldCause.SUSPENDED: "run kwokfleet resume, or remove `suspend` from the file",
    WithheldCause.WINDOW: "wait for the next window, or change `windows` in the file",
    WithheldCause.BROKEN: "fix the file; kwokfleet validate lists every problem",
    WithheldCause.FOLLOWS: "none: applied once the other changes are",
    WithheldCause.UNKNOWN: "check the rights: kubectl auth can-i --list",
    WithheldCause.CONFLICT: "choose another name, or set `adopt: true` to take over a fake node",
    WithheldCause.NOT_FAKE: "remove the label: kubectl label node NAME app.kubernetes.io/managed-by-",
    WithheldCause.OCCUPIED: "move these objects, or delete the namespace by hand",
    WithheldCause.NO_PRUNE: "run again without --no-prune",
    WithheldCause.STALLED: "stop the other field manager, or remove the field from the file",
}
_TEMPORARY = {WithheldCause.SUSPENDED, WithheldCause.WINDOW, WithheldCause.FOLLOWS, WithheldCause.NO_PRUNE}
NEEDS_OPERATOR = frozenset(WithheldCause) - _TEMPORARY
"""Causes that were not requested and do not end by themselves."""


def next_step(withheld: Withheld, program: str = objects.KWOKFLEET) -> str:
    """Return the operator's next step."""
    if withheld.digest:
        return f"review the changes, then run {program} approve {withheld.digest}"
    return _NEXT.get(withheld.cause, "")


def apply_guards(plan_input: PlanInput, changes: Iterable[Change]) -> tuple[list[Change], list[Withheld]]:
    """Return the allowed changes, and the withheld ones."""
    candidates: list[Change] = []
    blocked: dict[tuple[WithheldCause, str, str], list[Change]] = {}
    for change in changes:
        if plan_input.only is not None and change.fleet not in plan_input.only:
            continue
        objection = (
            _ownership_objection(plan_input, change)
            or _uncertainty_objection(plan_input, change)
            or _timing_objection(plan_input, change)
        )
        if objection is None:
            candidates.append(change)
        else:
            cause, why = objection
            blocked.setdefault((cause, change.fleet, why), []).append(change)
    allowed, over_budget = _within_budget(plan_input, candidates)
    allowed, shared = _without_shared(plan_input, allowed, over_budget)
    withheld = [Withheld(cause, fleet, why, tuple(group)) for (cause, fleet, why), group in blocked.items()]
    return allowed, [*withheld, *over_budget, *shared]


def _ownership_objection(plan_input: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    live, name = change.live, change.key.name
    if live is None:
        return None
    what = f"{change.key.kind.lower()} {name}"
    if change.key in plan_input.foreign:
        why = _adoption_objection(plan_input, change, live)
        return (WithheldCause.CONFLICT, f"{what} already exists and {why}") if why else None
    if not objects.is_managed(live.manifest):
        annotation = f"{objects.FAKE_NODE_KEY}={objects.FAKE_NODE_VALUE}"
        return WithheldCause.NOT_FAKE, f"{what} has kwokfleet's label but not the annotation {annotation}"
    if name in plan_input.occupied and change.key.kind == "Namespace" and change.action is ChangeAction.DELETE:
        return WithheldCause.OCCUPIED, f"namespace {name} contains {plan_input.occupied[name]}"
    return None


def _adoption_objection(plan_input: PlanInput, change: Change, live: Observed) -> str:
    """Return why a foreign object is not adopted; empty if it is."""
    if change.key.kind == "Node" and not objects.is_fake_node(live.manifest):
        return "is a real node: kwokfleet never changes real nodes"
    if not _adopts(plan_input, change):
        return "is not managed by kwokfleet"
    # Only a replacement could change an immutable field, and foreign objects are never deleted.
    immutable = diff.needs_replacement(change.key.kind, change.differences)
    return f"cannot be adopted: {'.'.join(immutable.path)} is immutable" if immutable else ""


def _adopts(plan_input: PlanInput, change: Change) -> bool:
    if change.fleet == SHARED:
        return any(policy.adopt for policy in plan_input.policies.values())
    fleet = plan_input.policies.get(change.fleet)
    pool = fleet.pools.get(change.pool) if fleet else None
    return bool(fleet and fleet.adopt) or bool(pool and pool.adopt)


def _uncertainty_objection(plan_input: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    if plan_input.frozen:
        return WithheldCause.BROKEN, plan_input.frozen
    for name in (change.fleet, change.live.fleet if change.live else change.fleet):
        if name in plan_input.broken:
            return WithheldCause.BROKEN, plan_input.broken[name]
    if change.key.kind in plan_input.unknown:
        return WithheldCause.UNKNOWN, plan_input.unknown[change.key.kind]
    if plan_input.doubt and change.vanished:
        return WithheldCause.BROKEN, plan_input.doubt
    if change.differences and plan_input.stalled:
        managers = [plan_input.stalled.get((change.key, difference.path)) for difference in change.differences]
        if all(managers):
            fields = ", ".join(".".join(difference.path) for difference in change.differences)
            what = f"{change.key.kind.lower()} {change.key.name}"
            return WithheldCause.STALLED, f"{managers[0]} keeps changing {fields} of {what}"
    return None


def _timing_objection(plan_input: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    for name, pool in ((change.fleet, change.pool), owner(change.live.manifest) if change.live else ("", "")):
        fleet = plan_input.policies.get(name)
        if fleet is None:
            continue
        if fleet.suspended:
            return WithheldCause.SUSPENDED, f"fleet {name} is suspended"
        if pool in fleet.pools and fleet.pools[pool].suspended:
            return WithheldCause.SUSPENDED, f"pool {pool} is suspended"
        if not fleet.open:
            return WithheldCause.WINDOW, f"fleet {name} is outside its windows"
    if not plan_input.prune and change.action in (ChangeAction.DELETE, ChangeAction.REPLACE):
        return WithheldCause.NO_PRUNE, "--no-prune forbids deletions"
    return None


def _within_budget(plan_input: PlanInput, changes: Sequence[Change]) -> tuple[list[Change], list[Withheld]]:
    """Withhold every change of a Fleet that would prune more than its budget, unless that plan was approved."""
    pruned = Counter(change.fleet for change in changes if plan_input.budget and change.vanished)
    allowed = list(changes)
    withheld: list[Withheld] = []
    for name, count in pruned.items():
        policy = plan_input.policies.get(name)
        percent = policy.max_percent if policy else DEFAULT_MAX_PERCENT
        total = sum(live.fleet == name for live in plan_input.observed.values())
        if count * 100 <= percent * total:
            continue
        fleet_changes = tuple(change for change in changes if change.fleet == name)
        plan_digest = digest(fleet_changes)
        if plan_digest not in plan_input.approved:
            why = f"{count} of {total} objects of fleet {name} would be pruned; the budget is {percent:g} %"
            withheld.append(Withheld(WithheldCause.APPROVAL, name, why, fleet_changes, plan_digest))
            allowed = [change for change in allowed if change.fleet != name]
    return allowed, withheld


def _without_shared(
    plan_input: PlanInput, changes: Sequence[Change], over_budget: Sequence[Withheld]
) -> tuple[list[Change], list[Withheld]]:
    """Withhold changes of shared objects while the needs of one Fleet are not certain.

    The set of Stages follows from all Fleets together. It stays unchanged while one Fleet cannot be read, or was
    removed without approval. Where no Stage exists yet, Stages are created.
    """
    reason = plan_input.doubt or next(iter(plan_input.broken.values()), "")
    if over_budget and not reason:
        reason = f"fleet {over_budget[0].fleet} may still need it"
    if plan_input.others and not reason:
        reason = f"fleet {min(plan_input.others)} is not in this file and may need it"
    if not reason:
        return list(changes), []
    has_stages = any(key.kind == "Stage" and live.fleet == SHARED for key, live in plan_input.observed.items())
    allowed, waiting = list[Change](), list[Change]()
    for change in changes:
        may_create = change.action is ChangeAction.CREATE and not (change.key.kind == "Stage" and has_stages)
        (allowed if change.fleet != SHARED or may_create else waiting).append(change)
    return allowed, [Withheld(WithheldCause.FOLLOWS, SHARED, reason, tuple(waiting))] if waiting else []
