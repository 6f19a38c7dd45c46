"""What speaks against a change: the prune budget, files that cannot be used, windows, suspension, objects of others.

All guards are here, and nothing else decides. A change that a guard stops is not dropped but Withheld, with its
reason, so that a preview shows it and a person can answer.
"""

from collections.abc import Iterable, Sequence

from kwokfleet.kube import objects
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import SHARED, Change, ChangeAction, Withheld, WithheldCause, digest, owner
from kwokfleet.reconcile.plan_input import DEFAULT_MAX_PERCENT, PlanInput

_NEXT = {
    WithheldCause.SUSPENDED: "kwokfleet resume it, or remove `suspend` from its file",
    WithheldCause.WINDOW: "wait, or change `windows` in its file",
    WithheldCause.BROKEN: "mend the file; kwokfleet validate shows every problem",
    WithheldCause.FOLLOWS: "it goes along once that is settled",
    WithheldCause.UNKNOWN: "see kubectl auth can-i --list",
    WithheldCause.CONFLICT: "choose another name, or `adopt: true` if it is a fake node that should become ours",
    WithheldCause.NOT_FAKE: "take our label off it: kubectl label node NAME app.kubernetes.io/managed-by-",
    WithheldCause.OCCUPIED: "move that away, or delete the namespace by hand",
    WithheldCause.NO_PRUNE: "leave out --no-prune",
    WithheldCause.STALLED: "stop that manager, or leave the field out of the file",
}
NEEDS_OPERATOR = frozenset(WithheldCause) - {
    WithheldCause.SUSPENDED,
    WithheldCause.WINDOW,
    WithheldCause.FOLLOWS,
    WithheldCause.NO_PRUNE,
}
"""What nobody has ordered and time does not heal: nothing goes on until somebody does something."""


def next_step(each: Withheld, program: str = objects.KWOKFLEET) -> str:
    """Return what a person does about changes that are withheld."""
    return f"look at it, then: {program} approve {each.digest}" if each.digest else _NEXT.get(each.cause, "")


def apply_guards(situation: PlanInput, changes: Iterable[Change]) -> tuple[list[Change], list[Withheld]]:
    """Part what may be done from what may not."""
    free: list[Change] = []
    stopped: dict[tuple[WithheldCause, str, str], list[Change]] = {}
    for change in changes:
        if situation.only is not None and change.fleet not in situation.only:
            continue
        reason = _objection(situation, change)
        if reason is None:
            free.append(change)
        else:
            stopped.setdefault((reason[0], change.fleet, reason[1]), []).append(change)
    allowed, over = _within_budget(situation, free)
    allowed, following = _without_followers(situation, allowed, over)
    withheld = [Withheld(cause, fleet, why, tuple(found)) for (cause, fleet, why), found in stopped.items()]
    return allowed, [*withheld, *over, *following]


def _objection(situation: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    """Return what speaks against one change alone."""
    return _not_ours(situation, change) or _not_sure(situation, change) or _not_now(situation, change)


def _not_ours(situation: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    have = change.live
    if have is None:
        return None
    what = f"{change.key.kind.lower()} {change.key.name}"
    if change.key in situation.foreign:
        why = _not_to_be_taken(situation, change, have)
        return (WithheldCause.CONFLICT, f"{what} is there and {why}") if why else None
    if not objects.is_managed(have.manifest):
        return (
            WithheldCause.NOT_FAKE,
            f"{what} has our label but not the annotation {objects.FAKE_NODE_KEY}={objects.FAKE_NODE_VALUE}",
        )
    if (
        change.key.name in situation.occupied
        and change.key.kind == "Namespace"
        and change.action is ChangeAction.DELETE
    ):
        return WithheldCause.OCCUPIED, f"namespace {change.key.name} holds {situation.occupied[change.key.name]}"
    return None


def _not_to_be_taken(situation: PlanInput, change: Change, have: Observed) -> str:
    """Return why somebody else's object is not made ours; empty if it is."""
    if change.key.kind == "Node" and not objects.is_fake_node(have.manifest):
        return "is not a fake node: it is never touched"
    if not _adopts(situation, change):
        return "is not ours"
    # Only a new object could have another value there, and what others made is not deleted for that.
    fixed = diff.needs_replacement(change.key.kind, change.differences)
    return f"cannot be adopted: its {'.'.join(fixed.path)} cannot change" if fixed else ""


def _adopts(situation: PlanInput, change: Change) -> bool:
    fleet = situation.policies.get(change.fleet)
    if change.fleet == SHARED:
        return any(each.adopt for each in situation.policies.values())
    pool = fleet.pools.get(change.pool) if fleet else None
    return bool(fleet and fleet.adopt) or bool(pool and pool.adopt)


def _not_sure(situation: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    if situation.frozen:
        return WithheldCause.BROKEN, situation.frozen
    for name in (change.fleet, change.live.fleet if change.live else change.fleet):
        if name in situation.broken:
            return WithheldCause.BROKEN, situation.broken[name]
    if change.key.kind in situation.unknown:
        return WithheldCause.UNKNOWN, situation.unknown[change.key.kind]
    if situation.doubt and change.vanished:
        return WithheldCause.BROKEN, situation.doubt
    if change.differences and situation.stalled:
        rivals = [situation.stalled.get((change.key, each.path)) for each in change.differences]
        if all(rivals):
            what = ", ".join(".".join(each.path) for each in change.differences)
            return (
                WithheldCause.STALLED,
                f"{rivals[0]} keeps changing {what} of {change.key.kind.lower()} {change.key.name}",
            )
    return None


def _not_now(situation: PlanInput, change: Change) -> tuple[WithheldCause, str] | None:
    for name, pool in ((change.fleet, change.pool), owner(change.live.manifest) if change.live else ("", "")):
        fleet = situation.policies.get(name)
        if fleet is None:
            continue
        if fleet.suspended:
            return WithheldCause.SUSPENDED, f"fleet {name} is suspended"
        if pool in fleet.pools and fleet.pools[pool].suspended:
            return WithheldCause.SUSPENDED, f"pool {pool} is suspended"
        if not fleet.open:
            return WithheldCause.WINDOW, f"fleet {name} is outside its windows"
    if not situation.prune and change.action in (ChangeAction.DELETE, ChangeAction.REPLACE):
        return WithheldCause.NO_PRUNE, "nothing is to be deleted"
    return None


def _within_budget(situation: PlanInput, changes: Sequence[Change]) -> tuple[list[Change], list[Withheld]]:
    """Withhold all changes of Fleets of which more would vanish than they allow, unless exactly that was approved."""
    vanishing: dict[str, int] = {}
    for change in changes if situation.budget else ():
        if change.vanished:
            vanishing[change.fleet] = vanishing.get(change.fleet, 0) + 1
    allowed = list(changes)
    withheld: list[Withheld] = []
    for name, count in vanishing.items():
        rule = situation.policies.get(name)
        percent = rule.max_percent if rule else DEFAULT_MAX_PERCENT
        total = sum(each.fleet == name for each in situation.observed.values())
        if count * 100 <= percent * total:
            continue
        mine = tuple(change for change in allowed if change.fleet == name)
        mark = digest(mine)
        if mark not in situation.approved:
            why = f"{count} of {total} objects of fleet {name} would vanish, more than {percent:g} %"
            withheld.append(Withheld(WithheldCause.APPROVAL, name, why, mine, mark))
            allowed = [change for change in allowed if change.fleet != name]
    return allowed, withheld


def _without_followers(
    situation: PlanInput, changes: Sequence[Change], over: Sequence[Withheld]
) -> tuple[list[Change], list[Withheld]]:
    """Withhold what all Fleets share while it is open what one of them needs.

    Which Stages are played follows from all Fleets together. As long as one cannot be read, or has vanished
    and that is not approved, they stay as they are; where there are none yet, they are made.
    """
    reason = situation.doubt or next(iter(situation.broken.values()), "")
    if over and not reason:
        reason = f"fleet {over[0].fleet} may still need it"
    if situation.others and not reason:
        reason = f"fleet {min(situation.others)} is not in this file, and may need it"
    if not reason:
        return list(changes), []
    played = any(key.kind == "Stage" and have.fleet == SHARED for key, have in situation.observed.items())
    waiting = tuple(
        change
        for change in changes
        if change.fleet == SHARED
        and (change.action is not ChangeAction.CREATE or (change.key.kind == "Stage" and played))
    )
    if not waiting:
        return list(changes), []
    held = set(map(id, waiting))
    return [each for each in changes if id(each) not in held], [
        Withheld(WithheldCause.FOLLOWS, SHARED, reason, waiting)
    ]
