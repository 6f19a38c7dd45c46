"""What became of a plan: one Outcome for each Change, and what they come to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, Withheld, WithheldCause


class ChangeResult(StrEnum):
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


SUCCESSFUL = (ChangeResult.DONE, ChangeResult.ALREADY, ChangeResult.AGAIN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one Change."""

    change: Change
    result: ChangeResult
    message: str = ""
    version: int = 0
    """The object's version after it, as far as known."""


@dataclass(frozen=True, slots=True)
class ChangeGroup:
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


def groups(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Return the changes by Fleet and pool, or kind."""
    found: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        title = f"pool {change.pool}" if change.pool else plural(change.key.kind)
        found.setdefault((change.fleet, title, change.key.kind), []).append(change)
    return [_group(fleet, title, kind, mine) for (fleet, title, kind), mine in sorted(found.items())]


def _group(fleet: str, title: str, kind: str, changes: Sequence[Change]) -> ChangeGroup:
    actions = Counter(change.action for change in changes)
    fields = Counter(
        name
        for change in changes
        if change.action is ChangeAction.UPDATE
        for name in {category(each.path) for each in change.differences}
    )
    return ChangeGroup(
        fleet,
        title,
        plural(kind),
        actions[ChangeAction.CREATE],
        actions[ChangeAction.UPDATE],
        actions[ChangeAction.REPLACE],
        actions[ChangeAction.DELETE],
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


def group_line(group: ChangeGroup) -> str:
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
        f"{actions[ChangeAction.CREATE]} to create, {actions[ChangeAction.UPDATE]} to change, "
        f"{actions[ChangeAction.REPLACE]} to replace, {actions[ChangeAction.DELETE]} to delete"
    )
    withheld = sum(len(each.changes) for each in plan.withheld)
    return f"{text}; {withheld} withheld" if withheld else text


def of_cause(withheld: Iterable[Withheld], *causes: WithheldCause) -> list[Withheld]:
    """Return what is withheld for one of some causes."""
    return [each for each in withheld if each.cause in causes]


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return what did not go well."""
    return [each for each in outcomes if each.result not in SUCCESSFUL]
