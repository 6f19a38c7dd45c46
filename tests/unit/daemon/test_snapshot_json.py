"""The Snapshot of a daemon as JSON."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kwokfleet.daemon import snapshot_json
from kwokfleet.daemon.snapshot import (
    Event,
    Pass,
    Snapshot,
    SourceSnapshot,
)
from tests.harness import fake_daemon

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_the_json_has_all_fields_of_a_snapshot() -> None:
    """With names in camel case, and times in UTC."""
    document = snapshot_json.to_json(fake_daemon.SNAPSHOT)
    assert json.loads(json.dumps(document)) == document
    assert document["role"] == "leading"
    assert document["source"] == {
        "kind": "git",
        "where": "https://git.example/fleets.git",
        "revision": "abc123",
        "digest": "d1",
        "since": "2026-03-02T08:00:00.000Z",
        "succeeded": "2026-03-02T08:00:00.000Z",
        "frozen": "",
        "invalidFiles": 1,
        "problems": [
            {"path": "fleets/a.yaml", "line": 12, "column": 7, "field": "spec", "what": "must be 0 or more",
             "hint": "fix the value", "severity": "error", "rule": "invalid-value"},
        ],
    }  # fmt: skip
    assert document["passes"] == [
        {"began": "2026-03-02T08:00:00.000Z", "why": "timer", "durationSeconds": 0.25, "result": "changed",
         "changes": {"create": 3}, "failures": 1, "digest": "p1", "revision": "abc123"},
    ]  # fmt: skip
    lab = document["fleets"][0]
    assert lab["nodes"] == {"desired": 5, "present": 4, "ready": 3, "schedulable": 2}
    assert lab["pools"][1]["suspended"] is True
    assert lab["withheld"][0] == {"cause": "approval", "why": "too much would vanish", "digest": "w1", "changes": 7,
                                  "next": ""}  # fmt: skip
    assert lab["due"] == [{"at": "2026-03-02T09:00:00.000Z", "what": "pool gpu: 80 nodes"}]
    assert document["kwok"][0]["memoryBytes"] == 1 << 20
    assert [shard["up"] for shard in document["kwok"]] == [True, False]
    assert document["objects"] == {"Node": {"present": 4, "ready": 3}, "Stage": {"present": 9}}


def test_an_empty_snapshot_has_the_same_names() -> None:
    """Clients need not check which names exist."""
    empty = snapshot_json.to_json(Snapshot("1", "me", NOW, leading=False))
    assert empty.keys() == snapshot_json.to_json(fake_daemon.SNAPSHOT).keys()
    assert empty["role"] == "standby"
    assert empty["source"]["since"] is None


def test_times_are_in_utc() -> None:
    """Other time zones are converted."""
    elsewhere = replace(fake_daemon.SNAPSHOT, started=datetime(2026, 3, 2, 10, tzinfo=timezone(timedelta(hours=2))))
    assert snapshot_json.to_json(elsewhere)["started"] == "2026-03-02T08:00:00.000Z"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:hunter2@git.example/a.git", "https://git.example/a.git"),
        ("https://ghp_token@git.example/a.git", "https://git.example/a.git"),
        ("https://me:p@ss@git.example/a.git", "https://git.example/a.git"),
        (
            "fatal: 'ssh://me@a/b' and https://u:p@c.example:8443 failed",
            "fatal: 'ssh://a/b' and https://c.example:8443 failed",
        ),
        ("https://git.example/a@b", "https://git.example/a@b"),
        ("write to me@example", "write to me@example"),
    ],
)
def test_passwords_are_removed_from_urls(text: str, clean: str) -> None:
    """In addresses, reasons, messages and events."""
    assert snapshot_json.without_userinfo(text) == clean
    state = replace(
        fake_daemon.SNAPSHOT, source=SourceSnapshot(where=text, frozen=text), passes=(Pass(NOW, text, 0.1),)
    )
    document = snapshot_json.to_json(state)
    assert (document["source"]["where"], document["source"]["frozen"], document["passes"][0]["why"]) == (clean,) * 3
    event = snapshot_json.event_json(Event(1, NOW, "source", "", text, {"from": [text]}))
    assert (event["message"], event["keys"]) == (clean, {"from": [clean]})
