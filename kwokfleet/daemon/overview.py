"""Tables of Fleets, pools, Runs and withheld changes: from Fleet.status and the nodes of the inventory."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kwokfleet.daemon.snapshot import Nodes, nodes_by_pool
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.reconcile import fleet_status

Row = dict[str, object]
"""Values of a table row, by column."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Tables with one row per Fleet, pool, Run or withheld change."""

    fleets: tuple[Row, ...] = ()
    pools: tuple[Row, ...] = ()
    runs: tuple[Row, ...] = ()
    withheld: tuple[Row, ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield a subject and a text for each row, for a log that repeats only changed texts."""
        for row in self.fleets:
            at = f" at {row['revision']}" if row["revision"] else ""
            yield f"fleet {row['fleet']}", f"{row['ready']} ({row['reason']}){at}: {row['message']}"
        for row in self.pools:
            counts = ", ".join(f"{row[name]} {name}" for name in ("desired", "nodes", "ready", "schedulable"))
            yield f"pool {row['fleet']}/{row['pool']}", counts
        for row in self.runs:
            text = f"{row['state']}, {row['submitted']} of {row['total']} submitted, {row['failed']} failed"
            text += f": {row['verdict']}" if row["verdict"] else ""
            yield f"run {row['fleet']}/{row['wave']}/{row['run']}", text
        for row in self.withheld:
            digest = f" (kwokfleet approve {row['digest']})" if row["digest"] else ""
            yield f"withheld {row['fleet']}/{row['cause']}/{row['digest']}".rstrip("/"), f"{row['why']}{digest}"


def overview(fleets: Iterable[Manifest], inventory: Inventory, only: AbstractSet[str] | None = None) -> Overview:
    """Return the tables of all Fleets, or of those in *only*."""
    selected = sorted(
        (fleet for fleet in fleets if only is None or fleet["metadata"]["name"] in only),
        key=lambda fleet: str(fleet["metadata"]["name"]),
    )
    return Overview(
        tuple(_fleet(fleet) for fleet in selected),
        tuple(_pools(selected, inventory, only)),
        tuple(runs(selected)),
        tuple(_withheld(selected)),
    )


def _status(fleet: Manifest) -> Manifest:
    status: Manifest = fleet.get("status") or {}
    return status


def _fleet(fleet: Manifest) -> Row:
    status = _status(fleet)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    names = ("Reconciling", "Stalled", "Degraded")
    others = [name for name in names if conditions.get(name, {}).get("status") == "True"]
    if fleet["metadata"]["name"] in fleet_status.suspended_fleets([fleet]):
        others.append("Suspended")
    word = {"True": "Ready", "False": "NotReady"}.get(ready.get("status", ""), "Unknown")
    return {
        "fleet": fleet["metadata"]["name"],
        "ready": ",".join([word, *others]),
        "reason": ready.get("reason", ""),
        "revision": (status.get("source") or {}).get("revision", ""),
        "message": ready.get("message", "no status yet"),
    }


def _withheld(fleets: Iterable[Manifest]) -> Iterator[Row]:
    for fleet in fleets:
        for entry in _status(fleet).get("withheld") or ():
            yield {
                "fleet": fleet["metadata"]["name"],
                "cause": entry.get("cause", ""),
                "changes": entry.get("changes", 0),
                "digest": entry.get("digest", ""),
                "why": entry.get("why", ""),
            }


def _pools(fleets: Iterable[Manifest], inventory: Inventory, only: AbstractSet[str] | None) -> Iterator[Row]:
    """Yield each pool: desired nodes from the status, the others counted."""
    counted = {name: nodes for name, nodes in nodes_by_pool(inventory).items() if only is None or name[0] in only}
    desired = {
        (str(fleet["metadata"]["name"]), str(pool["name"])): pool.get("desired", 0)
        for fleet in fleets
        for pool in _status(fleet).get("pools") or ()
    }
    for name in sorted({*counted, *desired}):
        nodes = counted.get(name, Nodes())
        yield {
            "fleet": name[0],
            "pool": name[1],
            "desired": desired.get(name, 0),
            "nodes": nodes.present,
            "ready": nodes.ready,
            "schedulable": nodes.schedulable,
        }


def runs(fleets: Iterable[Manifest]) -> Iterator[Row]:
    """Yield each Run of the Ledgers, oldest first."""
    for fleet, wave in _waves(fleets):
        for run in wave.get("runs") or ():
            yield {
                "fleet": fleet,
                "wave": wave["name"],
                "run": run.get("name", ""),
                "state": _state(run),
                **_progress(run),
                "created": run.get("start", ""),
                "why": run.get("why", ""),
            }


def waves(fleets: Iterable[Manifest]) -> Iterator[Row]:
    """Yield each Wave of the Ledgers, with its last Run."""
    for fleet, wave in _waves(fleets):
        last: Manifest = next(reversed(wave.get("runs") or ()), {})
        yield {
            "fleet": fleet,
            "wave": wave["name"],
            "runs": len(wave.get("runs") or ()),
            "last": last.get("name", "-"),
            "state": _state(last) if last else "Waiting",
            **_progress(last),
            "created": wave.get("since", ""),
        }


def _progress(run: Manifest) -> Row:
    return {name: run.get(name, 0) for name in ("submitted", "total", "failed")} | {"verdict": run.get("verdict", "")}


def _state(run: Manifest) -> str:
    """Return the state of a Run; a paused one is Suspended."""
    state = str(run.get("state", ""))
    return "Suspended" if state == "Running" and run.get("paused") else state


def _waves(fleets: Iterable[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for fleet in sorted(fleets, key=lambda fleet: str(fleet["metadata"]["name"])):
        for wave in _status(fleet).get("waves") or ():
            yield fleet["metadata"]["name"], wave
