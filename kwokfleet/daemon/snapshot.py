"""State of a running daemon as one frozen value.

Status, metrics and the HTTP API all read a Snapshot. Building one sends no request and waits for no pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import Problem
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile.plan_input import FleetPolicy

DRIVING_STATES = ("ready", "lagging")
"""States of a kwok shard that drives its nodes."""


class PassResult(StrEnum):
    """Result of a pass."""

    UNCHANGED = "unchanged"
    """The cluster was equal to the files."""
    CHANGED = "changed"
    WITHHELD = "withheld"
    """Some changes wait for an approval or another condition."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """A newer revision arrived, or the daemon stopped."""


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """The source of the files, and its state."""

    kind: str = ""
    """`folder` or `git`."""
    where: str = ""
    revision: str = ""
    digest: str = ""
    since: datetime | None = None
    """Start of use of this revision."""
    succeeded: datetime | None = None
    """Last load without an error."""
    problems: tuple[Problem, ...] = ()
    frozen: str = ""
    """Why the daemon changes nothing; empty if it does."""

    @property
    def invalid_files(self) -> int:
        """Number of files with errors."""
        return len({problem.path for problem in problems.errors(self.problems)})


@dataclass(frozen=True, slots=True)
class Pass:
    """A finished pass."""

    began: datetime
    why: str
    """Reasons of the request."""
    duration_s: float
    result: PassResult = PassResult.UNCHANGED
    changes: Mapping[str, int] = field(default_factory=dict)
    """Number of changes made, by action."""
    failures: int = 0
    digest: str = ""
    """Digest of its Plan."""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Number of nodes: desired, present, Ready, and schedulable."""

    desired: int = 0
    present: int = 0
    ready: int = 0
    schedulable: int = 0


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """State of a NodePool."""

    name: str
    nodes: Nodes = Nodes()
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class WithheldSummary:
    """Changes that are withheld, and why."""

    cause: str = ""
    why: str = ""
    digest: str = ""
    """The digest that an approval names."""
    changes: int = 0
    next: str = ""
    """What an operator can do."""


@dataclass(frozen=True, slots=True)
class ScheduledTime:
    """A scheduled change."""

    at: datetime
    what: str


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """State of a Fleet."""

    name: str
    nodes: Nodes = Nodes()
    pools: tuple[PoolSnapshot, ...] = ()
    conditions: tuple[Manifest, ...] = ()
    """Kubernetes conditions: type, status, reason, message, lastTransitionTime."""
    withheld: tuple[WithheldSummary, ...] = ()
    suspended: bool = False
    due: tuple[ScheduledTime, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """State of a kwok shard; the fields are those of the supervisor's status."""

    shard: int
    state: str
    pid: int = 0
    port: int = 0
    restarts: int = 0
    why: str = ""
    memory: int = 0
    """Bytes."""
    lag_s: float = 0.0
    pod: str = ""

    @property
    def up(self) -> bool:
        """Whether the shard drives its nodes."""
        return self.state in DRIVING_STATES


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a daemon."""

    version: str
    identity: str
    started: datetime
    leading: bool
    leader: str = ""
    """Identity of the leader, if known."""
    suspended: bool = False
    """Whether the daemon changes nothing."""
    synced: bool = False
    """Whether a pass found nothing to do since the start."""
    source: SourceSnapshot = SourceSnapshot()
    passes: tuple[Pass, ...] = ()
    """Last passes, newest last."""
    waiting: tuple[str, ...] = ()
    """Reasons of requests that no pass has taken yet."""
    fleets: tuple[FleetSnapshot, ...] = ()
    """Sorted by name."""
    kwok: tuple[ShardSnapshot, ...] = ()
    objects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of objects by kind and state: `{"Node": {"ready": 200}}`."""
    newest_event: int = 0
    """Number of the last Event, 0 before the first."""
    measured: tuple[ResultSummary, ...] = ()
    """Sorted by Fleet and Wave."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the event log. Numbers start at 1 with each start of the daemon."""

    number: int
    time: datetime
    kind: str
    """One word: pass, source, drift, withheld, kwok, leader, suspended, wave, …"""
    fleet: str
    """Empty if it concerns no single Fleet."""
    message: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Details as JSON values."""


def nodes_by_pool(inventory: Inventory) -> dict[tuple[str, str], Nodes]:
    """Count the present, Ready and schedulable nodes of each Fleet and pool."""
    counts: dict[tuple[str, str], list[int]] = {}
    for observed in inventory.values():
        if observed.key.kind == "Node":
            count = counts.setdefault((observed.fleet, observed.pool), [0, 0, 0])
            count[0] += 1
            count[1] += observed.ready
            count[2] += observed.schedulable
    return {name: Nodes(0, *count) for name, count in counts.items()}


def fleet_snapshots(
    rules: Mapping[str, FleetPolicy],
    inventory: Inventory,
    statuses: Mapping[str, Manifest],
    scheduled: Mapping[str, Sequence[ScheduledTime]],
) -> tuple[FleetSnapshot, ...]:
    """Return the state of each Fleet: nodes counted from the inventory, the rest from its status."""
    nodes = nodes_by_pool(inventory)
    fleets = []
    for name in sorted({*rules, *statuses}):
        rule, status = rules.get(name, FleetPolicy()), statuses.get(name, {})
        pools = _pools(name, rule, nodes)
        fleets.append(
            FleetSnapshot(
                name,
                total_nodes(pool.nodes for pool in pools),
                pools,
                tuple(status.get("conditions") or ()),
                tuple(_withheld(entry) for entry in status.get("withheld") or ()),
                rule.suspended,
                tuple(sorted(scheduled.get(name, ()), key=lambda entry: entry.at)),
            )
        )
    return tuple(fleets)


def _pools(fleet: str, rule: FleetPolicy, nodes: Mapping[tuple[str, str], Nodes]) -> tuple[PoolSnapshot, ...]:
    """Return the pools of the files, and those that only have nodes left."""
    sizes = {name: (pool.size, pool.suspended) for name, pool in rule.pools.items()}
    sizes |= {pool: (0, False) for owner, pool in nodes if owner == fleet and pool not in sizes}
    return tuple(
        PoolSnapshot(name, replace(nodes.get((fleet, name), Nodes()), desired=size), suspended)
        for name, (size, suspended) in sorted(sizes.items())
    )


def _withheld(entry: Manifest) -> WithheldSummary:
    """Return an entry of a Fleet's status, which a daemon of another version may have written."""
    return WithheldSummary(**{field.name: entry.get(field.name, field.default) for field in fields(WithheldSummary)})


def total_nodes(counts: Iterable[Nodes]) -> Nodes:
    """Return the sum of several counts."""
    return Nodes(*map(sum, zip(*map(astuple, counts), strict=True)))
