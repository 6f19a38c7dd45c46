"""A Picture and its Events as values that JSON has, and no password in them."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from kwokfleet.daemon.snapshot import Event, FleetSnapshot, Pass, ShardSnapshot, Snapshot, SourceSnapshot
from kwokfleet.documents.problems import Problem

_USERINFO = re.compile(r"(?<=://)[^/\s]+@")


def to_json(made: Snapshot) -> dict[str, Any]:
    """Return a Picture as values that JSON has, without any password that an address may hold."""
    document: dict[str, Any] = _clean(
        {
            "version": made.version,
            "identity": made.identity,
            "started": _stamp(made.started),
            "role": "leading" if made.leading else "standby",
            "leader": made.leader,
            "suspended": made.suspended,
            "synced": made.synced,
            "source": _source(made.source),
            "passes": [_pass(each) for each in made.passes],
            "waiting": list(made.waiting),
            "fleets": [_fleet_json(each) for each in made.fleets],
            "kwok": [_shard(each) for each in made.kwok],
            "objects": _objects(made.objects),
            "newestEvent": made.newest_event,
        }
    )
    return document


def event_json(event: Event) -> dict[str, Any]:
    """Return an Event as values that JSON has."""
    document: dict[str, Any] = _clean(
        {
            "number": event.number,
            "time": _stamp(event.time),
            "kind": event.kind,
            "fleet": event.fleet,
            "message": event.message,
            "keys": dict(event.keys),
        }
    )
    return document


def _clean(value: Any) -> Any:  # noqa: ANN401  # any part of a document
    """Take passwords out of every text: git puts addresses into its messages, and those go anywhere."""
    if isinstance(value, str):
        return without_userinfo(value)
    if isinstance(value, Mapping):
        return {name: _clean(part) for name, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list) else value


def _stamp(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _source(source: SourceSnapshot) -> dict[str, Any]:
    return {
        "kind": source.kind,
        "where": source.where,
        "revision": source.revision,
        "digest": source.digest,
        "since": _stamp(source.since),
        "succeeded": _stamp(source.succeeded),
        "frozen": source.frozen,
        "invalidFiles": source.invalid_files,
        "problems": [
            {name: getattr(each, name) for name in Problem.__dataclass_fields__} | {"severity": each.severity.value}
            for each in source.problems
        ],
    }


def _pass(each: Pass) -> dict[str, Any]:
    return {
        "began": _stamp(each.began),
        "why": each.why,
        "durationSeconds": round(each.duration_s, 6),
        "result": each.result.value,
        "changes": dict(sorted(each.changes.items())),
        "failures": each.failures,
        "digest": each.digest,
        "revision": each.revision,
    }


def _fleet_json(fleet: FleetSnapshot) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "nodes": asdict(fleet.nodes),
        "pools": [asdict(each) for each in fleet.pools],
        "conditions": list(fleet.conditions),
        "withheld": [asdict(each) for each in fleet.withheld],
        "suspended": fleet.suspended,
        "due": [{"at": _stamp(each.at), "what": each.what} for each in fleet.due],
    }


def _shard(each: ShardSnapshot) -> dict[str, Any]:
    return {
        "shard": each.shard,
        "state": str(each.state),
        "up": each.up,
        "pid": each.pid,
        "pod": each.pod,
        "port": each.port,
        "restarts": each.restarts,
        "why": each.why,
        "memoryBytes": each.memory,
        "lagSeconds": each.lag_s,
    }


def _objects(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (kind, state), count in sorted(counts.items()):
        found.setdefault(kind, {})[state] = count
    return found


def without_userinfo(text: str) -> str:
    """Return a text with all names and passwords taken out of its addresses."""
    return _USERINFO.sub("", text)
