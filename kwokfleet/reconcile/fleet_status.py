"""Computes Fleet.status: node counts, withheld changes, conditions for kstatus."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.reconcile import guards
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Plan, Withheld, WithheldCause
from kwokfleet.reconcile.outcomes import Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy

_WORDS = 1024
"""Maximum length of a condition's message."""
_REASONS = {
    WithheldCause.APPROVAL: "PruneWithheld",
    WithheldCause.SUSPENDED: "Suspended",
    WithheldCause.WINDOW: "OutsideWindow",
    WithheldCause.BROKEN: "InvalidSource",
    WithheldCause.STALLED: "FieldConflict",
    WithheldCause.CONFLICT: "NotOurs",
    WithheldCause.NOT_FAKE: "NotOurs",
}


@dataclass(frozen=True, slots=True)
class StatusContext:
    """Parts of Fleet.status that do not follow from objects. A command leaves out what it does not know."""

    source: Manifest = field(default_factory=dict)
    """Source of the files: kind, where, revision, digest."""
    degraded: str = ""
    """Why kwok does not drive the nodes; empty if it does, or if kwok is not managed here."""
    plans: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    """Last applied plans, by Fleet."""
    waves: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    """Ledger, by Fleet."""
    gates: Mapping[str, Manifest] = field(default_factory=dict)
    """Gate condition of each Fleet whose Waves have gates."""


def statuses(  # noqa: PLR0913, PLR0917  # all inputs of a status
    names: Iterable[str],
    policies: Mapping[str, FleetPolicy],
    inventory: Inventory,
    left: Plan,
    outcomes: Sequence[Outcome],
    about: StatusContext,
) -> dict[str, Manifest]:
    """Return the status of each Fleet, without timestamps."""
    pools = {
        name: {pool: [policy.size, 0, 0, 0] for pool, policy in policies.get(name, FleetPolicy()).pools.items()}
        for name in names
    }
    for live in inventory.values():
        if live.key.kind == "Node" and live.fleet in pools:
            counts = pools[live.fleet].setdefault(live.pool, [0, 0, 0, 0])
            counts[1] += 1
            counts[2] += live.ready
            counts[3] += live.schedulable
    suspended = {name for name, policy in policies.items() if policy.suspended}
    return {
        name: _status(name, counts, left, outcomes, about, suspended=name in suspended) | _context_fields(name, about)
        for name, counts in pools.items()
    }


def _context_fields(name: str, about: StatusContext) -> Manifest:
    lists = {"plans": about.plans, "waves": about.waves}
    source = {"source": about.source} if about.source else {}
    return source | {field: list(by_fleet[name]) for field, by_fleet in lists.items() if name in by_fleet}


def _node_counts(counts: Sequence[int]) -> Manifest:
    return dict(zip(("desired", "present", "ready", "schedulable"), counts, strict=True))


def _status(  # noqa: PLR0913  # all inputs of a status
    name: str,
    pools: Mapping[str, list[int]],
    left: Plan,
    outcomes: Sequence[Outcome],
    about: StatusContext,
    *,
    suspended: bool,
) -> Manifest:
    nodes = _node_counts([sum(counts) for counts in zip(*pools.values(), strict=True)] or [0, 0, 0, 0])
    withheld = [group for group in left.withheld if group.fleet == name]
    failed = [outcome for outcome in report.failures(outcomes) if outcome.change.fleet == name]
    waiting = sum(change.fleet == name for change in left.changes)
    stalled = [group for group in withheld if group.cause in guards.NEEDS_OPERATOR]
    # kubectl get shows only the Ready condition, so it names the command of an approval.
    why = [
        f"{group.why}; to allow it: kwokfleet approve {group.digest}" if group.digest else group.why
        for group in withheld
    ]
    why += [f"{outcome.change.key.name}: {outcome.message}" for outcome in failed]
    if waiting and not why:
        why = [f"{waiting} changes left to apply"]
    ready = not why and nodes["present"] == nodes["ready"] == nodes["desired"]
    message = "; ".join(why)[:_WORDS] or f"{nodes['ready']} of {nodes['desired']} nodes are Ready"
    reason = _reason(withheld) if withheld else "Failed" if failed else "Synced" if ready else "Progressing"
    if suspended and not withheld:
        reason, message = "Suspended", f"{message}; suspended"
    moving = bool(waiting) or (not why and not ready)
    return {
        "nodes": nodes,
        "pools": [{"name": pool, **_node_counts(counts)} for pool, counts in sorted(pools.items())],
        "withheld": [_withheld(group) for group in withheld],
        "conditions": [
            _condition("Ready", ready, reason, message),
            _condition("Reconciling", moving, "Progressing" if moving else "Done", _left(waiting, withheld)),
            _condition("Stalled", bool(stalled), _reason(stalled) if stalled else "NotStalled",
                       "; ".join(f"{group.why}; next: {guards.next_step(group)}" for group in stalled)[:_WORDS]),
            _condition("Degraded", bool(about.degraded), "KwokDown" if about.degraded else "AsExpected",
                       about.degraded[:_WORDS]),
            *([about.gates[name]] if name in about.gates else ()),
        ],
    }  # fmt: skip


def _left(waiting: int, withheld: Sequence[Withheld]) -> str:
    # Changes of a broken file are guesses: they are not counted.
    held = sum(len(group.changes) for group in withheld if group.cause is not WithheldCause.BROKEN)
    return f"{waiting} changes left" + (f", {held} withheld" if held else "")


def _reason(withheld: Sequence[Withheld]) -> str:
    return next((_REASONS[group.cause] for group in withheld if group.cause in _REASONS), "Withheld")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:  # noqa: FBT001  # status of the condition
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def _withheld(group: Withheld) -> Manifest:
    fields = {"cause": group.cause.value, "why": group.why, "changes": len(group.changes)}
    return fields | {"next": guards.next_step(group)} | ({"digest": group.digest} if group.digest else {})


def with_last_desired(status: Manifest, live: Manifest) -> Manifest:
    """Return the status of a Fleet whose files have errors, with the desired counts of the live status."""
    desired = {pool["name"]: pool.get("desired", 0) for pool in live.get("pools") or ()}
    pools = [{**pool, "desired": desired.get(pool["name"], 0)} for pool in status["pools"]]
    nodes = {**status["nodes"], "desired": (live.get("nodes") or {}).get("desired", 0)}
    return {**status, "nodes": nodes, "pools": pools}


def status_update(status: Manifest, live: Manifest, now: datetime) -> Manifest | None:
    """Return the status to write over the *live* one, with transition times; None if nothing changed."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    live_conditions = {condition["type"]: condition for condition in live.get("conditions") or ()}
    conditions = []
    for condition in status["conditions"]:
        before = live_conditions.get(condition["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
        conditions.append({**condition, "lastTransitionTime": since or stamp})
    update = {**status, "conditions": conditions}
    return None if all(live.get(name) == value for name, value in update.items()) else update


def suspended_fleets(fleets: Iterable[Manifest]) -> frozenset[str]:
    """Return the Fleets suspended by annotation."""
    annotations = {fleet["metadata"]["name"]: fleet["metadata"].get("annotations") or {} for fleet in fleets}
    return frozenset(name for name, values in annotations.items() if values.get(objects.SUSPEND) == "true")


def fleet_resource(name: str) -> Manifest:
    """Return the custom resource of a Fleet, without status."""
    metadata = {"name": name, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}}
    return {"apiVersion": objects.API_VERSION, "kind": "Fleet", "metadata": metadata}
