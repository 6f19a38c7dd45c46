"""What a running daemon shows of itself: one frozen value, and what whoever shows it may ask of the daemon.

The daemon makes a Picture when something has changed and keeps it; status, metrics and the HTTP API
only read it. So looking costs no request, never waits for a pass, and all see the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from kwokfleet.documents import problems
from kwokfleet.documents.problems import Problem
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile.plan_input import FleetPolicy

MOST_PASSES = 10
"""How many of the last passes are remembered."""
DRIVING = ("ready", "lagging")
"""States of a kwok process that makes nodes live."""


class PassResult(StrEnum):
    """What a pass came to."""

    UNCHANGED = "unchanged"
    """Everything was as the files say."""
    CHANGED = "changed"
    WITHHELD = "withheld"
    """Something is not done until somebody or something else allows it."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Something newer came, or the daemon stopped."""


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Where the files come from, and how they fare."""

    kind: str = ""
    """`folder` or `git`."""
    where: str = ""
    revision: str = ""
    digest: str = ""
    since: datetime | None = None
    """Since when this revision has been the one in use."""
    succeeded: datetime | None = None
    """When the files were last read whole and without an error."""
    problems: tuple[Problem, ...] = ()
    frozen: str = ""
    """Why nothing at all is done; empty if it is not so."""

    @property
    def invalid_files(self) -> int:
        """How many files cannot be used."""
        return len({each.path for each in problems.errors(self.problems)})


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass that is over."""

    began: datetime
    why: str
    """What asked for it."""
    duration_s: float
    result: PassResult = PassResult.UNCHANGED
    changes: Mapping[str, int] = field(default_factory=dict)
    """How many were made, by action."""
    failures: int = 0
    digest: str = ""
    """Of its plan."""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many nodes there should be, are, are Ready, and would be given pods."""

    desired: int = 0
    present: int = 0
    ready: int = 0
    schedulable: int = 0


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """How a pool stands."""

    name: str
    nodes: Nodes = field(default_factory=Nodes)
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class WithheldSummary:
    """What is not done, and why."""

    cause: str
    why: str
    digest: str = ""
    """What an approval must name."""
    changes: int = 0
    next: str = ""
    """What a person does about it."""


@dataclass(frozen=True, slots=True)
class ScheduledTime:
    """What will happen by itself."""

    at: datetime
    what: str


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """How a Fleet stands."""

    name: str
    nodes: Nodes = field(default_factory=Nodes)
    pools: tuple[PoolSnapshot, ...] = ()
    conditions: tuple[Manifest, ...] = ()
    """As Kubernetes has them: type, status, reason, message, lastTransitionTime."""
    withheld: tuple[WithheldSummary, ...] = ()
    suspended: bool = False
    due: tuple[ScheduledTime, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """How a kwok process fares; the fields are those of `keeper.Status`."""

    shard: int
    state: str
    pid: int = 0
    port: int = 0
    restarts: int = 0
    why: str = ""
    memory: int = 0
    """In bytes."""
    lag_s: float = 0.0
    pod: str = ""

    @property
    def up(self) -> bool:
        """Whether it drives its nodes."""
        return self.state in DRIVING


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a running daemon shows."""

    version: str
    identity: str
    started: datetime
    leading: bool
    leader: str = ""
    """Who leads, as far as known."""
    suspended: bool = False
    """Whether the whole process only looks on."""
    synced: bool = False
    """Whether a pass has come to its end since the start."""
    source: SourceSnapshot = field(default_factory=SourceSnapshot)
    passes: tuple[Pass, ...] = ()
    """The last ones, newest last."""
    waiting: tuple[str, ...] = ()
    """What has asked for a pass that has not begun."""
    fleets: tuple[FleetSnapshot, ...] = ()
    """In the order of their names."""
    kwok: tuple[ShardSnapshot, ...] = ()
    objects: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How many objects of a kind are in a state: `("Node", "ready"): 200`."""
    newest_event: int = 0
    """The number of the last Event, 0 before the first."""
    measured: tuple[ResultSummary, ...] = ()
    """In the order of Fleets and Waves."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has changed. Numbers rise by one and start at 1 with each start of the daemon."""

    number: int
    time: datetime
    kind: str
    """One word: pass, source, drift, withheld, kwok, leader, suspended, wave, …"""
    fleet: str
    """Empty if it is of none."""
    message: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    """More about it, of values that JSON has."""


def append_pass(passes: Sequence[Pass], last: Pass) -> tuple[Pass, ...]:
    """Return the last passes after one more."""
    return (*passes, last)[-MOST_PASSES:]


def fleet_snapshots(rules: Mapping[str, FleetPolicy], inventory: Inventory, statuses: Mapping[str, Manifest],
           due: Mapping[str, Sequence[ScheduledTime]]) -> tuple[FleetSnapshot, ...]:  # fmt: skip
    """Return how each Fleet stands: its pools counted, the rest out of its status in the cluster."""
    there: dict[tuple[str, str], list[int]] = {}
    for each in inventory.values():
        if each.key.kind == "Node":
            counts = there.setdefault((each.fleet, each.pool), [0, 0, 0])
            counts[0] += 1
            counts[1] += each.ready
            counts[2] += each.schedulable
    names = sorted({*rules, *statuses})
    return tuple(
        _fleet(name, rules.get(name, FleetPolicy()), there, statuses.get(name, {}), due.get(name, ())) for name in names
    )


def _fleet(name: str, rule: FleetPolicy, there: Mapping[tuple[str, str], Sequence[int]], status: Manifest,
           due: Iterable[ScheduledTime]) -> FleetSnapshot:  # fmt: skip
    gone = {pool for fleet, pool in there if fleet == name} - rule.pools.keys()
    sizes = {pool: (each.size, each.suspended) for pool, each in rule.pools.items()} | dict.fromkeys(gone, (0, False))
    pools = tuple(
        PoolSnapshot(pool, Nodes(size, *there.get((name, pool), (0, 0, 0))), suspended)
        for pool, (size, suspended) in sorted(sizes.items())
    )
    return FleetSnapshot(
        name,
        total_nodes(pool.nodes for pool in pools),
        pools,
        tuple(status.get("conditions") or ()),
        tuple(_held(each) for each in status.get("withheld") or ()),
        rule.suspended,
        tuple(sorted(due, key=lambda each: each.at)),
    )


def _held(told: Manifest) -> WithheldSummary:
    """Return what was told of a Fleet, perhaps by a daemon of another version."""
    return WithheldSummary(
        told.get("cause", ""), told.get("why", ""), told.get("digest", ""), told.get("changes", 0), told.get("next", "")
    )


def total_nodes(counts: Iterable[Nodes]) -> Nodes:
    """Return the sum of several counts."""
    rows = [(each.desired, each.present, each.ready, each.schedulable) for each in counts]
    return Nodes(*map(sum, zip(*rows, strict=True))) if rows else Nodes()
