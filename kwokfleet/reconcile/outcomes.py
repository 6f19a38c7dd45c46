"""Outcomes of changes, and summaries of Plans."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kwokfleet.kube import objects
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan


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

    @property
    def is_applied(self) -> bool:
        """Whether the object has the desired state."""
        return self.result in (ChangeResult.DONE, ChangeResult.ALREADY)


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Counts of changes of one pool, or of one kind."""

    fleet: str
    title: str
    noun: str
    counts: Mapping[str, int]
    """Number of changes of each action."""
    fields: tuple[tuple[str, int], ...]
    """Changed field categories, and the number of objects of each."""


def groups(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Return changes grouped by Fleet and pool, or kind."""
    by_group: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        title = f"pool {change.pool}" if change.pool else plural(change.key.kind)
        by_group.setdefault((change.fleet, title, plural(change.key.kind)), []).append(change)
    return [_group(*names, members) for names, members in sorted(by_group.items())]


def _group(fleet: str, title: str, noun: str, changes: Sequence[Change]) -> ChangeGroup:
    counts = Counter(change.action.value for change in changes)
    fields = Counter(
        name
        for change in changes
        if change.action is ChangeAction.UPDATE
        for name in {category(difference.path) for difference in change.differences}
    )
    return ChangeGroup(fleet, title, noun, counts, tuple(sorted(fields.items())))


def category(path: diff.Path) -> str:
    """Return the category of a field: `labels`, `taints`, `capacity`."""
    return path[1] if path[0] in ("metadata", "spec", "status") and len(path) > 1 else path[0]


def plural(kind: str) -> str:
    """Return the plural of a kind in lower case."""
    known = objects.KWOK_CLUSTER_KINDS | objects.KWOK_NAMESPACED_KINDS
    return known.get(kind) or (f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s")


def group_line(group: ChangeGroup) -> str:
    """Return one line: `pool gpu: +120 nodes, ~3 labels, -0`."""
    parts = [f"+{group.counts['create']} {group.noun}"]
    parts += [f"~{count} {name}" for name, count in group.fields] or ["~0"]
    parts += [f"±{group.counts['replace']} replaced"] if group.counts["replace"] else []
    return f"{group.title}: {', '.join(parts)}, -{group.counts['delete']}"


def summary(plan: Plan) -> str:
    """Return the counts of a Plan in one sentence."""
    counts = plan.counts()
    text = "{create} to create, {update} to change, {replace} to replace, {delete} to delete".format(**counts)
    return f"{text}; {counts['withheld']} withheld" if counts["withheld"] else text


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that need attention."""
    return [outcome for outcome in outcomes if outcome.result not in SUCCESSFUL]
