"""What became of a plan: one Outcome for each Change, and what they come to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import Action, Cause, Change, Plan, Withheld


class Result(StrEnum):
    """What became of one Change."""

    DONE = "done"
    ALREADY = "already"
    """It was so when we came to it."""
    AGAIN = "again"
    """The object is another one by now: the next pass looks again."""
    CONFLICT = "conflict"
    """There is an object of that name that is not ours."""
    REFUSED = "refused"
    """The API server said no, and would say it again."""
    FAILED = "failed"
    DEADLINE = "deadline"
    """A node could not be drained in time."""
    SKIPPED = "skipped"
    """It was not tried."""


GOOD = (Result.DONE, Result.ALREADY, Result.AGAIN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one Change."""

    change: Change
    result: Result
    message: str = ""
    version: int = 0
    """The object's version after it, as far as known."""


@dataclass(frozen=True, slots=True)
class Group:
    """The changes of one pool, or of one kind, as people want to read them."""

    fleet: str
    title: str
    noun: str
    created: int
    changed: int
    replaced: int
    deleted: int
    fields: tuple[tuple[str, int], ...]
    """What kind of field changes, and in how many objects."""


def groups(changes: Iterable[Change]) -> list[Group]:
    """Return the changes by Fleet and pool, or kind."""
    found: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        title = f"pool {change.pool}" if change.pool else plural(change.key.kind)
        found.setdefault((change.fleet, title, change.key.kind), []).append(change)
    return [_group(fleet, title, kind, mine) for (fleet, title, kind), mine in sorted(found.items())]


def _group(fleet: str, title: str, kind: str, changes: Sequence[Change]) -> Group:
    actions = Counter(change.action for change in changes)
    fields = Counter(
        name
        for change in changes
        if change.action is Action.UPDATE
        for name in {category(each.path) for each in change.differences}
    )
    return Group(
        fleet,
        title,
        plural(kind),
        actions[Action.CREATE],
        actions[Action.UPDATE],
        actions[Action.REPLACE],
        actions[Action.DELETE],
        tuple(sorted(fields.items())),
    )


def category(path: diff.Path) -> str:
    """Return what kind of field it is, in one word."""
    if path[0] in ("metadata", "spec", "status") and len(path) > 1:
        return path[1]
    return path[0]


def plural(kind: str) -> str:
    """Return what several objects of a kind are called."""
    known = objects.KWOK_CLUSTER_KINDS | objects.KWOK_NAMESPACED_KINDS
    return known.get(kind) or (f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s")


def line(group: Group) -> str:
    """Return a group as one line: `pool gpu: +120 nodes, ~3 labels, -0`."""
    parts = [f"+{group.created} {group.noun}"]
    parts += [f"~{count} {name}" for name, count in group.fields] or ["~0"]
    if group.replaced:
        parts.append(f"±{group.replaced} replaced")
    parts.append(f"-{group.deleted}")
    return f"{group.title}: {', '.join(parts)}"


def summary(plan: Plan) -> str:
    """Return a plan as one sentence."""
    actions = Counter(change.action for change in plan.changes)
    text = (
        f"{actions[Action.CREATE]} to create, {actions[Action.UPDATE]} to change, "
        f"{actions[Action.REPLACE]} to replace, {actions[Action.DELETE]} to delete"
    )
    withheld = sum(len(each.changes) for each in plan.withheld)
    return f"{text}; {withheld} withheld" if withheld else text


def of_cause(withheld: Iterable[Withheld], *causes: Cause) -> list[Withheld]:
    """Return what is withheld for one of some causes."""
    return [each for each in withheld if each.cause in causes]


def bad(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return what did not go well."""
    return [each for each in outcomes if each.result not in GOOD]
