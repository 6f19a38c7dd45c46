"""How all Fleets stand, in a few rows: what the cluster was told of them, beside the nodes that are there now."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.reconcile import fleet_status

Row = dict[str, object]
"""What a line of a table shows, by column."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Tables, each row of which is about one thing."""

    fleets: tuple[Row, ...] = ()
    pools: tuple[Row, ...] = ()
    runs: tuple[Row, ...] = ()
    withheld: tuple[Row, ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what each row is about, and what it says: for a log, in which only what is new is written."""
        for row in self.fleets:
            at = f" at {row['revision']}" if row["revision"] else ""
            yield f"fleet {row['fleet']}", f"{row['ready']} ({row['reason']}){at}: {row['message']}"
        for row in self.pools:
            told = ", ".join(f"{row[name]} {name}" for name in ("desired", "nodes", "ready", "schedulable"))
            yield f"pool {row['fleet']}/{row['pool']}", told
        for row in self.runs:
            told = f"{row['state']}, {row['submitted']} of {row['total']} submitted, {row['failed']} failed"
            told += f": {row['verdict']}" if row["verdict"] else ""
            yield f"run {row['fleet']}/{row['wave']}/{row['run']}", told
        for row in self.withheld:
            digest = f" (kwokfleet approve {row['digest']})" if row["digest"] else ""
            yield f"withheld {row['fleet']}/{row['cause']}/{row['digest']}".rstrip("/"), f"{row['why']}{digest}"


def overview(fleets: Iterable[Manifest], inventory: Inventory, only: AbstractSet[str] | None = None) -> Overview:
    """Return how Fleets stand; *only*: some of them."""
    chosen = sorted(
        (each for each in fleets if only is None or each["metadata"]["name"] in only),
        key=lambda each: str(each["metadata"]["name"]),
    )
    return Overview(
        tuple(_fleet(each) for each in chosen),
        tuple(_pools(chosen, inventory, only)),
        tuple(runs(chosen)),
        tuple(
            {"fleet": each["metadata"]["name"], "cause": held.get("cause", ""), "changes": held.get("changes", 0),
             "digest": held.get("digest", ""), "why": held.get("why", "")}
            for each in chosen for held in _status(each).get("withheld") or ()
        ),
    )  # fmt: skip


def _status(fleet: Manifest) -> Manifest:
    found: Manifest = fleet.get("status") or {}
    return found


def _fleet(fleet: Manifest) -> Row:
    status = _status(fleet)
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    others = [name for name in ("Reconciling", "Stalled", "Degraded") if _holds(conditions.get(name))]
    if fleet["metadata"]["name"] in fleet_status.suspended_fleets([fleet]):
        others.append("Suspended")
    word = {"True": "Ready", "False": "NotReady"}.get(ready.get("status", ""), "Unknown")
    return {
        "fleet": fleet["metadata"]["name"],
        "ready": ",".join([word, *others]),
        "reason": ready.get("reason", ""),
        "revision": (status.get("source") or {}).get("revision", ""),
        "message": ready.get("message", "nothing was told of it yet"),
    }


def _holds(condition: Manifest | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _pools(fleets: Iterable[Manifest], inventory: Inventory, only: AbstractSet[str] | None) -> Iterator[Row]:
    """Yield each pool: how many nodes the files ask for was told, how many there are is counted."""
    there: dict[tuple[str, str], list[int]] = {}
    for each in inventory.values():
        if each.key.kind == "Node" and (only is None or each.fleet in only):
            counts = there.setdefault((each.fleet, each.pool), [0, 0, 0])
            counts[0] += 1
            counts[1] += each.ready
            counts[2] += each.schedulable
    desired = {
        (str(fleet["metadata"]["name"]), str(pool["name"])): pool.get("desired", 0)
        for fleet in fleets
        for pool in _status(fleet).get("pools") or ()
    }
    for name in sorted({*there, *desired}):
        nodes, ready, schedulable = there.get(name, (0, 0, 0))
        yield {
            "fleet": name[0],
            "pool": name[1],
            "desired": desired.get(name, 0),
            "nodes": nodes,
            "ready": ready,
            "schedulable": schedulable,
        }


def runs(fleets: Iterable[Manifest]) -> Iterator[Row]:
    """Yield each Run that the Ledgers know of, the oldest first."""
    for fleet, wave in _waves(fleets):
        for run in wave.get("runs") or ():
            yield {
                "fleet": fleet,
                "wave": wave["name"],
                "run": run.get("name", ""),
                "state": _state(run),
                "submitted": run.get("submitted", 0),
                "total": run.get("total", 0),
                "failed": run.get("failed", 0),
                "verdict": run.get("verdict", ""),
                "created": run.get("start", ""),
                "why": run.get("why", ""),
            }


def waves(fleets: Iterable[Manifest]) -> Iterator[Row]:
    """Yield each Wave that the Ledgers know of, with its last Run."""
    for fleet, wave in _waves(fleets):
        last: Manifest = next(reversed(wave.get("runs") or ()), {})
        yield {
            "fleet": fleet,
            "wave": wave["name"],
            "runs": len(wave.get("runs") or ()),
            "last": last.get("name", "-"),
            "state": _state(last) if last else "Waiting",
            "submitted": last.get("submitted", 0),
            "total": last.get("total", 0),
            "failed": last.get("failed", 0),
            "verdict": last.get("verdict", ""),
            "created": wave.get("since", ""),
        }


def _state(run: Manifest) -> str:
    """Return how a Run fares, in a word."""
    state = str(run.get("state", ""))
    return "Suspended" if state == "Running" and run.get("paused") else state


def _waves(fleets: Iterable[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for fleet in sorted(fleets, key=lambda each: str(each["metadata"]["name"])):
        for wave in _status(fleet).get("waves") or ():
            yield fleet["metadata"]["name"], wave
