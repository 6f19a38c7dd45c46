"""Outcomes of changes, and summaries of Plans."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, Withheld, WithheldCause


class ChangeResult(StrEnum):
    """Result of one Change."""

    DONE = "done"
    ALREADY = "already"
    """The object already had the desired state."""
    AGAIN = "again"
    """The object changed meanwhile: the next pass plans it again."""
    CONFLICT = "conflict"
    """The object is not managed by kwokfleet."""
    REFUSED = "refused"
    """The API server rejected it; a retry would not help."""
    FAILED = "failed"
    DEADLINE = "deadline"
    """The node was not drained in time."""
    SKIPPED = "skipped"
    """Not attempted."""


SUCCESSFUL = (ChangeResult.DONE, ChangeResult.ALREADY, ChangeResult.AGAIN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one Change, with the reason."""

    change: Change
    result: ChangeResult
    message: str = ""
    version: int = 0
    """resourceVersion after the change; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Counts of changes of one pool, or of one kind."""

    fleet: str
    title: str
    noun: str
    created: int
    changed: int
    replaced: int
    deleted: int
    fields: tuple[tuple[str, int], ...]
    """Changed field categories, and the number of objects of each."""


def groups(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Return changes grouped by Fleet and pool, or kind."""
    by_group: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        title = f"pool {change.pool}" if change.pool else plural(change.key.kind)
        by_group.setdefault((change.fleet, title, change.key.kind), []).append(change)
    return [_group(fleet, title, kind, members) for (fleet, title, kind), members in sorted(by_group.items())]


def _group(fleet: str, title: str, kind: str, changes: Sequence[Change]) -> ChangeGroup:
    actions = Counter(change.action for change in changes)
    fields = Counter(
        name
        for change in changes
        if change.action is ChangeAction.UPDATE
        for name in {category(difference.path) for difference in change.differences}
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
    """Return the category of a field: `labels`, `taints`, `capacity`."""
    if path[0] in ("metadata", "spec", "status") and len(path) > 1:
        return path[1]
    return path[0]


def plural(kind: str) -> str:
    """Return the plural of a kind in lower case."""
    known = objects.KWOK_CLUSTER_KINDS | objects.KWOK_NAMESPACED_KINDS
    return known.get(kind) or (f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s")


def group_line(group: ChangeGroup) -> str:
    """Return one line: `pool gpu: +120 nodes, ~3 labels, -0`."""
    parts = [f"+{group.created} {group.noun}"]
    parts += [f"~{count} {name}" for name, count in group.fields] or ["~0"]
    if group.replaced:
        parts.append(f"±{group.replaced} replaced")
    parts.append(f"-{group.deleted}")
    return f"{group.title}: {', '.join(parts)}"


def summary(plan: Plan) -> str:
    """Return the counts of a Plan in one sentence."""
    actions = Counter(change.action for change in plan.changes)
    text = (
        f"{actions[ChangeAction.CREATE]} to create, {actions[ChangeAction.UPDATE]} to change, "
        f"{actions[ChangeAction.REPLACE]} to replace, {actions[ChangeAction.DELETE]} to delete"
    )
    withheld = sum(len(group.changes) for group in plan.withheld)
    return f"{text}; {withheld} withheld" if withheld else text


def of_cause(withheld: Iterable[Withheld], *causes: WithheldCause) -> list[Withheld]:
    """Return the withheld groups with one of *causes*."""
    return [group for group in withheld if group.cause in causes]


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that need attention."""
    return [outcome for outcome in outcomes if outcome.result not in SUCCESSFUL]
