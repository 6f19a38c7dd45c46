"""How a Fleet stands, as the cluster is told: counts of nodes, what is withheld, conditions as kstatus reads them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from kwokfleet.core import objects, report
from kwokfleet.core.objects import Manifest
from kwokfleet.core.observed import Inventory
from kwokfleet.core.plan import Cause, Plan, Withheld
from kwokfleet.core.report import Outcome

_WORDS = 1024
"""Characters of a condition's message."""


def statuses(names: Iterable[str], desired: Mapping[str, int], inventory: Inventory, left: Plan,
             outcomes: Sequence[Outcome]) -> dict[str, Manifest]:  # fmt: skip
    """Return the status of each Fleet, without times."""
    counts = {name: {"desired": desired.get(name, 0), "present": 0, "ready": 0, "schedulable": 0} for name in names}
    for each in inventory.values():
        if each.key.kind == "Node" and each.fleet in counts:
            mine = counts[each.fleet]
            mine["present"] += 1
            mine["ready"] += each.ready
            mine["schedulable"] += each.schedulable
    return {name: _status(name, nodes, left, outcomes) for name, nodes in counts.items()}


def _status(name: str, nodes: Manifest, left: Plan, outcomes: Sequence[Outcome]) -> Manifest:
    withheld = [each for each in left.withheld if each.fleet == name]
    bad = [each for each in report.bad(outcomes) if each.change.fleet == name]
    waiting = sum(change.fleet == name for change in left.changes)
    stalled = [each for each in withheld if each.cause is Cause.STALLED]
    why = [each.why for each in withheld] + [f"{each.change.key.name}: {each.message}" for each in bad]
    if waiting and not why:
        why = [f"{waiting} changes are left"]
    ready = not why and nodes["present"] == nodes["ready"] == nodes["desired"]
    message = "; ".join(why)[:_WORDS] or f"{nodes['ready']} of {nodes['desired']} nodes are Ready"
    reason = _reason(withheld) if withheld else "Failed" if bad else "Synced" if ready else "Progressing"
    return {
        "nodes": nodes,
        "withheld": [_withheld(each) for each in withheld],
        "conditions": [
            _condition("Ready", ready, reason, message),
            _condition("Reconciling", bool(waiting), "Progressing" if waiting else "Done", f"{waiting} changes left"),
            _condition("Stalled", bool(stalled), "FieldConflict" if stalled else "NotStalled",
                       "; ".join(each.why for each in stalled)[:_WORDS]),
        ],
    }  # fmt: skip


def _reason(withheld: Sequence[Withheld]) -> str:
    words = {
        Cause.APPROVAL: "PruneWithheld",
        Cause.SUSPENDED: "Suspended",
        Cause.WINDOW: "OutsideWindow",
        Cause.BROKEN: "InvalidSource",
        Cause.STALLED: "FieldConflict",
        Cause.CONFLICT: "NotOurs",
        Cause.NOT_FAKE: "NotOurs",
    }
    return next((words[each.cause] for each in withheld if each.cause in words), "Withheld")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:  # noqa: FBT001  # what the condition says
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def _withheld(each: Withheld) -> Manifest:
    found: Manifest = {"cause": each.cause.value, "why": each.why, "changes": len(each.changes)}
    return found | ({"digest": each.digest} if each.digest else {})


def updated(status: Manifest, there: Manifest, now: datetime) -> Manifest | None:
    """Return the status to be written over the one that is *there*, None if it says the same already."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {each["type"]: each for each in there.get("conditions") or ()}
    conditions = []
    for each in status["conditions"]:
        before = known.get(each["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == each["status"] else None
        conditions.append({**each, "lastTransitionTime": since or stamp})
    made = {**status, "conditions": conditions}
    return None if all(there.get(name) == value for name, value in made.items()) else made


def resource(name: str) -> Manifest:
    """Return a Fleet as the cluster has it."""
    return {
        "apiVersion": objects.API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": name, "labels": {objects.MANAGED_BY: objects.US}},
    }
