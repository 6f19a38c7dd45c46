"""Snapshot and Events as JSON values, without passwords."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from kwokfleet.daemon.snapshot import Event, FleetSnapshot, Pass, ShardSnapshot, Snapshot, SourceSnapshot
from kwokfleet.documents.problems import Problem

_USERINFO = re.compile(r"(?<=://)[^/\s]+@")


def to_json(state: Snapshot) -> dict[str, Any]:
    """Return a Snapshot as JSON values; passwords in URLs are removed."""
    document: dict[str, Any] = _clean(
        {
            "version": state.version,
            "identity": state.identity,
            "started": _stamp(state.started),
            "role": "leading" if state.leading else "standby",
            "leader": state.leader,
            "suspended": state.suspended,
            "synced": state.synced,
            "source": _source(state.source),
            "passes": [_pass(finished) for finished in state.passes],
            "waiting": list(state.waiting),
            "fleets": [_fleet_json(fleet) for fleet in state.fleets],
            "kwok": [_shard(shard) for shard in state.kwok],
            "objects": _objects(state.objects),
            "newestEvent": state.newest_event,
        }
    )
    return document


def event_json(event: Event) -> dict[str, Any]:
    """Return an Event as JSON values."""
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
    """Remove passwords from every text: git puts URLs into its messages."""
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
            {name: getattr(problem, name) for name in Problem.__dataclass_fields__}
            | {"severity": problem.severity.value}
            for problem in source.problems
        ],
    }


def _pass(finished: Pass) -> dict[str, Any]:
    return {
        "began": _stamp(finished.began),
        "why": finished.why,
        "durationSeconds": round(finished.duration_s, 6),
        "result": finished.result.value,
        "changes": dict(sorted(finished.changes.items())),
        "failures": finished.failures,
        "digest": finished.digest,
        "revision": finished.revision,
    }


def _fleet_json(fleet: FleetSnapshot) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "nodes": asdict(fleet.nodes),
        "pools": [asdict(pool) for pool in fleet.pools],
        "conditions": list(fleet.conditions),
        "withheld": [asdict(withheld) for withheld in fleet.withheld],
        "suspended": fleet.suspended,
        "due": [{"at": _stamp(scheduled.at), "what": scheduled.what} for scheduled in fleet.due],
    }


def _shard(shard: ShardSnapshot) -> dict[str, Any]:
    return {
        "shard": shard.shard,
        "state": str(shard.state),
        "up": shard.up,
        "pid": shard.pid,
        "pod": shard.pod,
        "port": shard.port,
        "restarts": shard.restarts,
        "why": shard.why,
        "memoryBytes": shard.memory,
        "lagSeconds": shard.lag_s,
    }


def _objects(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, state), count in sorted(counts.items()):
        by_kind.setdefault(kind, {})[state] = count
    return by_kind


def without_userinfo(text: str) -> str:
    """Return a text with user names and passwords removed from its URLs."""
    return _USERINFO.sub("", text)
