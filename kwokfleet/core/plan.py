"""What to do: every change that turns the cluster into what the files say, in order, and what is not done and why.

All guards are here, and nothing else decides: the prune budget, files that are broken or cannot be
read, windows, suspension, objects of others. A change that a guard stops is not dropped but
Withheld, with its reason, so that a preview shows it and a person can answer.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import orjson

from kwokfleet.core import diff, objects, render, schedule, usage
from kwokfleet.core.diff import Difference
from kwokfleet.core.fleet import Drain
from kwokfleet.core.objects import Manifest, ObjectKey
from kwokfleet.core.observed import Inventory, Observed

DEFAULT_MAX_PERCENT = 25.0
SHARED = ""
"""The Fleet of objects that belong to none alone: Stages of the library, namespaces."""
DIGEST_LENGTH = 16
_METRICS: diff.Path = ("metadata", "annotations", usage.METRICS_PATH)


class Action(StrEnum):
    """What is done to an object."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    """Deleted and created again, because a field differs that nobody can change."""
    DELETE = "delete"


class Cause(StrEnum):
    """Why something is not done."""

    APPROVAL = "approval"
    """More would vanish than the Fleet allows at once."""
    SUSPENDED = "suspended"
    WINDOW = "window"
    BROKEN = "broken"
    """The files that would say whether this is right cannot be used."""
    FOLLOWS = "follows"
    """It goes with something that is withheld."""
    UNKNOWN = "unknown"
    """Objects of this kind could not be listed."""
    CONFLICT = "conflict"
    """An object of that name is there, and is not ours."""
    NOT_FAKE = "not-fake"
    """A node with our label that does not say it is fake."""
    OCCUPIED = "occupied"
    """A namespace in which others have objects."""
    NO_PRUNE = "no-prune"
    STALLED = "stalled"
    """Another manager keeps changing the same field back."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that is to be created, changed or deleted."""

    action: Action
    key: ObjectKey
    fleet: str
    pool: str
    reason: str
    want: Manifest | None = None
    have: Observed | None = None
    differences: tuple[Difference, ...] = ()
    vanished: bool = False
    """Whether it goes because the files no longer speak of it, not because a number was written."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Changes that are not made, and why."""

    cause: Cause
    fleet: str
    why: str
    changes: tuple[Change, ...] = ()
    digest: str = ""
    """What an approval must name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes in the order in which they are made, and those that are withheld."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything is as the files say, as far as anybody can tell."""
        return not self.changes and not self.withheld


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What a pool's file says about its changes."""

    suspended: bool = False
    adopt: bool = False
    drain: Drain = field(default_factory=Drain.model_construct)
    size: int = 0


@dataclass(frozen=True, slots=True)
class FleetRules:
    """What a Fleet's file says about its changes."""

    suspended: bool = False
    open: bool = True
    adopt: bool = False
    max_percent: float = DEFAULT_MAX_PERCENT
    pools: Mapping[str, PoolRules] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a plan follows from."""

    desired: render.Desired = field(default_factory=dict)
    observed: Inventory = field(default_factory=dict)
    rules: Mapping[str, FleetRules] = field(default_factory=dict)
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
        return frozenset(there - self.rules.keys() - self.broken.keys() - {SHARED})


def rules(tree: render.Tree, now: datetime) -> dict[str, FleetRules]:
    """Return what the files say about changes at *now*."""
    return {
        fleet.name: FleetRules(
            fleet.spec.suspend,
            schedule.open_now(fleet.spec.windows, now),
            fleet.spec.adopt,
            fleet.spec.prune.max_percent,
            {
                pool.name: PoolRules(
                    pool.suspend, pool.adopt or fleet.spec.adopt, pool.drain, render.pool_size(pool, now)
                )
                for pool in fleet.spec.node_pools
            },
        )
        for fleet in tree.fleets
    }


class Planner:
    """Plans again and again, and remembers what was equal: a pass costs what changed."""

    def __init__(self) -> None:
        self._equal: dict[ObjectKey, tuple[Manifest, Observed]] = {}

    def plan(self, situation: Situation) -> Plan:
        """Decide every change that turns what is observed into what is desired, in the order to make them."""
        changes = [*self._wanted(situation), *_unwanted(situation)]
        if not changes:
            return Plan()
        allowed, withheld = _guarded(situation, changes)
        return Plan(tuple(sorted(allowed, key=_order)), tuple(sorted(withheld, key=lambda one: (one.fleet, one.cause))))

    def _wanted(self, situation: Situation) -> Iterator[Change]:
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


def plan(situation: Situation) -> Plan:
    """Decide once."""
    return Planner().plan(situation)


# ----------------------------------------------------------------------------------------
# what would be done if nothing spoke against it


def _create(situation: Situation, key: ObjectKey, want: Manifest) -> Change | None:
    fleet, pool = _owner(want)
    there = situation.foreign.get(key)
    if there is None:
        return Change(Action.CREATE, key, fleet, pool, "is missing", want)
    if key.kind == "Namespace":
        return None  # somebody else's will do, and stays theirs
    found = diff.differences(want, there)
    return Change(Action.UPDATE, key, fleet, pool, "is there, and is not ours", want, there, found)


def _update(situation: Situation, want: Manifest, have: Observed) -> Change | None:
    if have.deleting:  # it cannot be kept; whoever makes it anew waits until it is gone
        return Change(Action.CREATE, have.key, *_owner(want), "is being deleted, and is asked for", want)
    found = diff.differences(want, have)
    if not situation.addresses:
        found = tuple(each for each in found if not _is_whereabouts(each.path))
    if not found:
        return None
    if situation.stalled:  # what is given up waits for a person; if there is more, that is done
        found = tuple(each for each in found if (have.key, each.path) not in situation.stalled) or found
    fleet, pool = _owner(want)
    fixed = diff.needs_replacement(have.key.kind, found)
    if fixed is not None:
        reason = f"{'.'.join(fixed.path)} of a live {have.key.kind.lower()} cannot change"
        return Change(Action.REPLACE, have.key, fleet, pool, reason, want, have, found)
    return Change(Action.UPDATE, have.key, fleet, pool, "differs", want, have, found)


def _is_whereabouts(path: diff.Path) -> bool:
    """Return whether a field says where a node's kubelet is: only the KwokController document knows."""
    return path[:2] in (diff.ADDRESSES, diff.KUBELET) or path == _METRICS


def _unwanted(situation: Situation) -> Iterator[Change]:
    """Yield what is to be deleted."""
    desired, others = situation.desired, situation.others
    for key, have in situation.observed.items():
        if key not in desired and not have.deleting and have.fleet not in others:
            reason, vanished = _why_unwanted(situation, have)
            yield Change(Action.DELETE, key, have.fleet, have.pool, reason, None, have, (), vanished)


def _why_unwanted(situation: Situation, have: Observed) -> tuple[str, bool]:
    fleet = situation.rules.get(have.fleet)
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


def _owner(manifest: Manifest) -> tuple[str, str]:
    labels = objects.labels(manifest)
    return labels.get(objects.FLEET, SHARED), labels.get(objects.POOL, "")


def _order(change: Change) -> tuple[int, int]:
    """Return what sorts changes into the order in which they are made: deletes last, and in reverse."""
    rank = objects.rank(change.key.kind)
    return (1, -rank) if change.action is Action.DELETE else (0, rank)


# ----------------------------------------------------------------------------------------
# what speaks against it


def _guarded(situation: Situation, changes: Iterable[Change]) -> tuple[list[Change], list[Withheld]]:
    """Part what may be done from what may not."""
    free: list[Change] = []
    stopped: dict[tuple[Cause, str, str], list[Change]] = {}
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


def _objection(situation: Situation, change: Change) -> tuple[Cause, str] | None:
    """Return what speaks against one change alone."""
    return _not_ours(situation, change) or _not_sure(situation, change) or _not_now(situation, change)


def _not_ours(situation: Situation, change: Change) -> tuple[Cause, str] | None:
    have = change.have
    if have is None:
        return None
    what = f"{change.key.kind.lower()} {change.key.name}"
    if change.key in situation.foreign:
        why = _not_to_be_taken(situation, change, have)
        return (Cause.CONFLICT, f"{what} is there and {why}") if why else None
    if not objects.is_ours(have.manifest):
        return Cause.NOT_FAKE, f"{what} has our label but not the annotation {objects.FAKE_KEY}={objects.FAKE_VALUE}"
    if change.key.name in situation.occupied and change.key.kind == "Namespace" and change.action is Action.DELETE:
        return Cause.OCCUPIED, f"namespace {change.key.name} holds {situation.occupied[change.key.name]}"
    return None


def _not_to_be_taken(situation: Situation, change: Change, have: Observed) -> str:
    """Return why somebody else's object is not made ours; empty if it is."""
    if change.key.kind == "Node" and not objects.is_fake(have.manifest):
        return "is not a fake node: it is never touched"
    if not _adopts(situation, change):
        return "is not ours"
    # Only a new object could have another value there, and what others made is not deleted for that.
    fixed = diff.needs_replacement(change.key.kind, change.differences)
    return f"cannot be adopted: its {'.'.join(fixed.path)} cannot change" if fixed else ""


def _adopts(situation: Situation, change: Change) -> bool:
    fleet = situation.rules.get(change.fleet)
    if change.fleet == SHARED:
        return any(each.adopt for each in situation.rules.values())
    pool = fleet.pools.get(change.pool) if fleet else None
    return bool(fleet and fleet.adopt) or bool(pool and pool.adopt)


def _not_sure(situation: Situation, change: Change) -> tuple[Cause, str] | None:
    if situation.frozen:
        return Cause.BROKEN, situation.frozen
    for name in (change.fleet, change.have.fleet if change.have else change.fleet):
        if name in situation.broken:
            return Cause.BROKEN, situation.broken[name]
    if change.key.kind in situation.unknown:
        return Cause.UNKNOWN, situation.unknown[change.key.kind]
    if situation.doubt and change.vanished:
        return Cause.BROKEN, situation.doubt
    if change.differences and situation.stalled:
        rivals = [situation.stalled.get((change.key, each.path)) for each in change.differences]
        if all(rivals):
            what = ", ".join(".".join(each.path) for each in change.differences)
            return Cause.STALLED, f"{rivals[0]} keeps changing {what} of {change.key.kind.lower()} {change.key.name}"
    return None


def _not_now(situation: Situation, change: Change) -> tuple[Cause, str] | None:
    for name, pool in ((change.fleet, change.pool), _owner(change.have.manifest) if change.have else ("", "")):
        fleet = situation.rules.get(name)
        if fleet is None:
            continue
        if fleet.suspended:
            return Cause.SUSPENDED, f"fleet {name} is suspended"
        if pool in fleet.pools and fleet.pools[pool].suspended:
            return Cause.SUSPENDED, f"pool {pool} is suspended"
        if not fleet.open:
            return Cause.WINDOW, f"fleet {name} is outside its windows"
    if not situation.prune and change.action in (Action.DELETE, Action.REPLACE):
        return Cause.NO_PRUNE, "nothing is to be deleted"
    return None


def _within_budget(situation: Situation, changes: Sequence[Change]) -> tuple[list[Change], list[Withheld]]:
    """Withhold all changes of Fleets of which more would vanish than they allow, unless exactly that was approved."""
    vanishing: dict[str, int] = {}
    for change in changes if situation.budget else ():
        if change.vanished:
            vanishing[change.fleet] = vanishing.get(change.fleet, 0) + 1
    allowed = list(changes)
    withheld: list[Withheld] = []
    for name, count in vanishing.items():
        rule = situation.rules.get(name)
        percent = rule.max_percent if rule else DEFAULT_MAX_PERCENT
        total = sum(each.fleet == name for each in situation.observed.values())
        if count * 100 <= percent * total:
            continue
        mine = tuple(change for change in allowed if change.fleet == name)
        mark = digest(mine)
        if mark not in situation.approved:
            why = f"{count} of {total} objects of fleet {name} would vanish, more than {percent:g} %"
            withheld.append(Withheld(Cause.APPROVAL, name, why, mine, mark))
            allowed = [change for change in allowed if change.fleet != name]
    return allowed, withheld


def _without_followers(
    situation: Situation, changes: Sequence[Change], over: Sequence[Withheld]
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
        if change.fleet == SHARED and (change.action is not Action.CREATE or (change.key.kind == "Stage" and played))
    )
    if not waiting:
        return list(changes), []
    held = set(map(id, waiting))
    return [each for each in changes if id(each) not in held], [Withheld(Cause.FOLLOWS, SHARED, reason, waiting)]


# ----------------------------------------------------------------------------------------
# what an approval names


def digest(changes: Iterable[Change]) -> str:
    """Return what tells these changes, to these very objects, from all others."""
    lines = sorted(orjson.dumps(_identity(change), option=orjson.OPT_SORT_KEYS, default=str) for change in changes)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:DIGEST_LENGTH]


def _identity(change: Change) -> tuple[object, ...]:
    content = change.want if change.action is Action.CREATE else [tuple(each) for each in change.differences]
    return change.action, tuple(change.key), change.have.uid if change.have else "", content
