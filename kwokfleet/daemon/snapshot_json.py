"""Snapshot and Events as JSON values, without passwords."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kwokfleet.daemon.snapshot import Event, Snapshot

_USERINFO = re.compile(r"(?<=://)[^/\s]+@")
_NAMES = {
    "duration_s": "durationSeconds",
    "lag_s": "lagSeconds",
    "memory": "memoryBytes",
    "newest_event": "newestEvent",
}
"""JSON names of fields that have another name in Python."""


def to_json(state: Snapshot) -> dict[str, Any]:
    """Return a Snapshot as JSON values; passwords in URLs are removed."""
    document: dict[str, Any] = _json_value(replace(state, measured=()))
    del document["measured"]
    document["role"] = "leading" if document.pop("leading") else "standby"
    document["source"]["invalidFiles"] = state.source.invalid_files
    for entry, shard in zip(document["kwok"], state.kwok, strict=True):
        entry["up"] = shard.up
    return document


def event_json(event: Event) -> dict[str, Any]:
    """Return an Event as JSON values."""
    document: dict[str, Any] = _json_value(event)
    return document


def _json_value(value: Any) -> Any:  # noqa: ANN401  # any part of a document
    """Return dataclasses as objects and times in UTC; remove passwords from every text: git puts URLs into messages."""
    if isinstance(value, str):
        return without_userinfo(str(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {name: _json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if is_dataclass(value):
        names = (field.name for field in fields(value))
        return {_NAMES.get(name, name): _json_value(getattr(value, name)) for name in names}
    return value


def without_userinfo(text: str) -> str:
    """Return a text with user names and passwords removed from its URLs."""
    return _USERINFO.sub("", text)
