"""How a Fleet stands, as the cluster is told: counts of nodes, what is withheld, conditions as kstatus reads them."""

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
from kwokfleet.reconcile.plan_input import FleetPolicy, PoolPolicy

_WORDS = 1024
"""Characters of a condition's message."""


@dataclass(frozen=True, slots=True)
class StatusContext:
    """What a status tells beside the objects themselves; what a command does not know is not told."""

    source: Manifest = field(default_factory=dict)
    """Where the files come from: kind, where, revision, digest."""
    degraded: str = ""
    """Why nodes are not driven; empty if they are, or if nobody here looks after that."""
    plans: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    """The last plans that were carried out, by Fleet."""
    waves: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    """The Ledger, by Fleet."""
    gates: Mapping[str, Manifest] = field(default_factory=dict)
    """A condition for each Fleet that expects something of its Waves."""


def statuses(  # noqa: PLR0913, PLR0917  # everything that a Fleet's state follows from
    names: Iterable[str],
    rules: Mapping[str, FleetPolicy],
    inventory: Inventory,
    left: Plan,
    outcomes: Sequence[Outcome],
    about: StatusContext | None = None,
) -> dict[str, Manifest]:
    """Return the status of each Fleet, without times."""
    pools = {name: {pool: [rule.size, 0, 0, 0] for pool, rule in _pools(rules, name)} for name in names}
    for each in inventory.values():
        if each.key.kind == "Node" and each.fleet in pools:
            mine = pools[each.fleet].setdefault(each.pool, [0, 0, 0, 0])
            mine[1] += 1
            mine[2] += each.ready
            mine[3] += each.schedulable
    known = about or StatusContext()
    asleep = {name for name, rule in rules.items() if rule.suspended}
    return {
        name: _status(name, counts, left, outcomes, known, suspended=name in asleep) | _told(name, known)
        for name, counts in pools.items()
    }


def _pools(rules: Mapping[str, FleetPolicy], name: str) -> Iterable[tuple[str, PoolPolicy]]:
    return rules[name].pools.items() if name in rules else ()


def _told(name: str, about: StatusContext) -> Manifest:
    told: Manifest = {}
    if about.source:
        told["source"] = about.source
    if name in about.plans:
        told["plans"] = list(about.plans[name])
    if name in about.waves:
        told["waves"] = list(about.waves[name])
    return told


def _counted(counts: Sequence[int]) -> Manifest:
    return dict(zip(("desired", "present", "ready", "schedulable"), counts, strict=True))


def _status(  # noqa: PLR0913  # everything that it follows from
    name: str,
    pools: Mapping[str, list[int]],
    left: Plan,
    outcomes: Sequence[Outcome],
    about: StatusContext,
    *,
    suspended: bool,
) -> Manifest:
    nodes = _counted([sum(counts) for counts in zip(*pools.values(), strict=True)] or [0, 0, 0, 0])
    withheld = [each for each in left.withheld if each.fleet == name]
    bad = [each for each in report.failures(outcomes) if each.change.fleet == name]
    waiting = sum(change.fleet == name for change in left.changes)
    stalled = [each for each in withheld if each.cause in guards.NEEDS_OPERATOR]
    why = [_why(each) for each in withheld] + [f"{each.change.key.name}: {each.message}" for each in bad]
    if waiting and not why:
        why = [f"{waiting} changes are left"]
    ready = not why and nodes["present"] == nodes["ready"] == nodes["desired"]
    message = "; ".join(why)[:_WORDS] or f"{nodes['ready']} of {nodes['desired']} nodes are Ready"
    reason = _reason(withheld) if withheld else "Failed" if bad else "Synced" if ready else "Progressing"
    if suspended and not withheld:
        reason, message = "Suspended", f"{message}; suspended"
    moving = bool(waiting) or (not why and not ready)
    return {
        "nodes": nodes,
        "pools": [{"name": pool, **_counted(counts)} for pool, counts in sorted(pools.items())],
        "withheld": [_withheld(each) for each in withheld],
        "conditions": [
            _condition("Ready", ready, reason, message),
            _condition("Reconciling", moving, "Progressing" if moving else "Done", _left(waiting, withheld)),
            _condition("Stalled", bool(stalled), _reason(stalled) if stalled else "NotStalled",
                       "; ".join(f"{each.why}; next: {guards.next_step(each)}" for each in stalled)[:_WORDS]),
            _condition("Degraded", bool(about.degraded), "KwokDown" if about.degraded else "AsExpected",
                       about.degraded[:_WORDS]),
            *([about.gates[name]] if name in about.gates else ()),
        ],
    }  # fmt: skip


def _why(each: Withheld) -> str:
    """Return why something is withheld, for a line that people see first: what an approval takes is nowhere else."""
    return f"{each.why}; kwokfleet approve {each.digest} lets it go" if each.digest else each.why


def _left(waiting: int, withheld: Sequence[Withheld]) -> str:
    held = sum(
        len(each.changes) for each in withheld if each.cause is not WithheldCause.BROKEN
    )  # those are not what is meant
    return f"{waiting} changes left" + (f", {held} withheld" if held else "")


def _reason(withheld: Sequence[Withheld]) -> str:
    words = {
        WithheldCause.APPROVAL: "PruneWithheld",
        WithheldCause.SUSPENDED: "Suspended",
        WithheldCause.WINDOW: "OutsideWindow",
        WithheldCause.BROKEN: "InvalidSource",
        WithheldCause.STALLED: "FieldConflict",
        WithheldCause.CONFLICT: "NotOurs",
        WithheldCause.NOT_FAKE: "NotOurs",
    }
    return next((words[each.cause] for each in withheld if each.cause in words), "Withheld")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:  # noqa: FBT001  # what the condition says
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def _withheld(each: Withheld) -> Manifest:
    found: Manifest = {
        "cause": each.cause.value,
        "why": each.why,
        "changes": len(each.changes),
        "next": guards.next_step(each),
    }
    return found | ({"digest": each.digest} if each.digest else {})


def with_last_desired(status: Manifest, there: Manifest) -> Manifest:
    """Return the status of a Fleet whose files cannot be read now: what they asked for last is what is known."""
    known = {each["name"]: each.get("desired", 0) for each in there.get("pools") or ()}
    pools = [{**each, "desired": known.get(each["name"], 0)} for each in status["pools"]]
    nodes = {**status["nodes"], "desired": (there.get("nodes") or {}).get("desired", 0)}
    return {**status, "nodes": nodes, "pools": pools}


def status_update(status: Manifest, there: Manifest, now: datetime) -> Manifest | None:
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


def suspended_fleets(fleets: Iterable[Manifest]) -> frozenset[str]:
    """Return the Fleets that somebody has suspended in the cluster."""
    metadata = [each["metadata"] for each in fleets]
    return frozenset(
        each["name"] for each in metadata if (each.get("annotations") or {}).get(objects.SUSPEND) == "true"
    )


def fleet_resource(name: str) -> Manifest:
    """Return a Fleet as the cluster has it."""
    return {
        "apiVersion": objects.API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": name, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
    }
