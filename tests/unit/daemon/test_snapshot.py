"""What a running daemon shows, as values and as JSON."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kwokfleet.daemon import snapshot, snapshot_json
from kwokfleet.daemon.snapshot import (
    Event,
    Nodes,
    Pass,
    PoolSnapshot,
    ScheduledTime,
    ShardSnapshot,
    Snapshot,
    SourceSnapshot,
    WithheldSummary,
)
from kwokfleet.documents.problems import Problem, Severity
from kwokfleet.reconcile.plan_input import FleetPolicy, PoolPolicy
from kwokfleet.server import access
from tests.harness import fake_daemon, manifests

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


# ----------------------------------------------------------------------------------------
# values


def test_the_last_ten_passes_are_remembered() -> None:
    """The newest is the last."""
    passes: tuple[Pass, ...] = ()
    for number in range(13):
        passes = snapshot.append_pass(passes, Pass(NOW, f"{number}", 0.1))
    assert [each.why for each in passes] == [str(number) for number in range(3, 13)]


def test_a_file_with_many_errors_is_one_invalid_file() -> None:
    """One with warnings alone is none."""
    found = (
        Problem("a.yaml", 1, 1, "", "wrong"),
        Problem("a.yaml", 2, 1, "", "wrong too"),
        Problem("b.yaml", 1, 1, "", "odd", severity=Severity.WARNING),
    )
    assert SourceSnapshot(problems=found).invalid_files == 1


@pytest.mark.parametrize(("state", "up"), [("ready", True), ("lagging", True), ("starting", False), ("refused", False)])
def test_a_kwok_that_drives_its_nodes_is_up(state: str, up: bool) -> None:  # noqa: FBT001  # what is expected
    """Also while it lags."""
    assert ShardSnapshot(0, state).up is up


def test_fleets_are_counted_by_pool() -> None:
    """What the rules want beside what is there; a pool that vanished from the files is shown while it has nodes."""
    nodes = [
        manifests.observe(manifests.node("n0", pool="cpu", status=READY)),
        manifests.observe(manifests.node("n1", pool="cpu")),
        manifests.observe(manifests.node("n2", pool="gone", status=READY)),
        manifests.observe(manifests.node("n3", fleet="stranger", pool="cpu", status=READY)),
    ]
    rules = {
        "lab": FleetPolicy(
            suspended=True, pools={"cpu": PoolPolicy(size=3), "gpu": PoolPolicy(size=2, suspended=True)}
        ),
        "a": FleetPolicy(),
    }
    status = {
        "conditions": [{"type": "Ready"}],
        "withheld": [{"cause": "approval", "why": "much", "changes": 4, "newer": "?"}],
    }
    late, soon = ScheduledTime(NOW + timedelta(hours=2), "late"), ScheduledTime(NOW, "soon")
    first, lab = snapshot.fleet_snapshots(
        rules, {each.key: each for each in nodes}, {"lab": status}, {"lab": [late, soon]}
    )
    assert (first.name, first.nodes, first.pools) == ("a", Nodes(), ())
    assert lab.pools == (
        PoolSnapshot("cpu", Nodes(3, 2, 1, 1)),
        PoolSnapshot("gone", Nodes(0, 1, 1, 1)),
        PoolSnapshot("gpu", Nodes(2, 0, 0, 0), suspended=True),
    )
    assert lab.nodes == Nodes(5, 3, 2, 2)
    assert lab.conditions == ({"type": "Ready"},)
    assert lab.withheld == (WithheldSummary("approval", "much", changes=4),)
    assert lab.suspended
    assert lab.due == (soon, late)


# ----------------------------------------------------------------------------------------
# JSON


def test_everything_of_a_picture_is_in_its_json() -> None:
    """Under names as Kubernetes writes them, times in UTC."""
    made = snapshot_json.to_json(fake_daemon.SNAPSHOT)
    assert json.loads(json.dumps(made)) == made
    assert made["role"] == "leading"
    assert made["source"] == {
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
             "hint": "mend it", "severity": "error", "rule": "invalid-value"},
        ],
    }  # fmt: skip
    assert made["passes"] == [
        {"began": "2026-03-02T08:00:00.000Z", "why": "timer", "durationSeconds": 0.25, "result": "changed",
         "changes": {"create": 3}, "failures": 1, "digest": "p1", "revision": "abc123"},
    ]  # fmt: skip
    lab = made["fleets"][0]
    assert lab["nodes"] == {"desired": 5, "present": 4, "ready": 3, "schedulable": 2}
    assert lab["pools"][1]["suspended"] is True
    assert lab["withheld"][0] == {"cause": "approval", "why": "too much would vanish", "digest": "w1", "changes": 7,
                                  "next": ""}  # fmt: skip
    assert lab["due"] == [{"at": "2026-03-02T09:00:00.000Z", "what": "pool gpu: 80 nodes"}]
    assert made["kwok"][0]["memoryBytes"] == 1 << 20
    assert [each["up"] for each in made["kwok"]] == [True, False]
    assert made["objects"] == {"Node": {"present": 4, "ready": 3}, "Stage": {"present": 9}}


def test_a_picture_of_nothing_has_the_same_names() -> None:
    """A reader need not ask which there are."""
    empty = snapshot_json.to_json(Snapshot("1", "me", NOW, leading=False))
    assert empty.keys() == snapshot_json.to_json(fake_daemon.SNAPSHOT).keys()
    assert empty["role"] == "standby"
    assert empty["source"]["since"] is None


def test_times_are_told_in_utc() -> None:
    """Wherever they were read."""
    there = replace(fake_daemon.SNAPSHOT, started=datetime(2026, 3, 2, 10, tzinfo=timezone(timedelta(hours=2))))
    assert snapshot_json.to_json(there)["started"] == "2026-03-02T08:00:00.000Z"


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
def test_no_password_of_an_address_is_shown(text: str, clean: str) -> None:
    """Wherever it stands: in an address, a reason, a message, an event."""
    assert snapshot_json.without_userinfo(text) == clean
    shown = replace(
        fake_daemon.SNAPSHOT, source=SourceSnapshot(where=text, frozen=text), passes=(Pass(NOW, text, 0.1),)
    )
    made = snapshot_json.to_json(shown)
    assert (made["source"]["where"], made["source"]["frozen"], made["passes"][0]["why"]) == (clean,) * 3
    event = snapshot_json.event_json(Event(1, NOW, "source", "", text, {"from": [text]}))
    assert (event["message"], event["keys"]) == (clean, {"from": [clean]})


# ----------------------------------------------------------------------------------------
# rules of the HTTP API


@pytest.mark.parametrize(
    ("host", "is_so"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")),  # noqa: S104  # told apart
    ],
)
def test_loopback_is_known_by_its_address(host: str, is_so: bool) -> None:  # noqa: FBT001  # what is expected
    """All of 127/8, and one name."""
    assert access.is_loopback(host) is is_so


@pytest.mark.parametrize(
    ("header", "token", "is_so"),
    [
        ("Bearer abc", "abc", True),
        ("bearer  abc ", "abc", True),
        ("Bearer tokén".encode().decode("latin-1"), "tokén", True),
        ("Bearer abcd", "abc", False),
        ("Bearer ab", "abc", False),
        ("abc", "abc", False),
        ("Bearer ", "", False),
        ("", "", False),
    ],
)
def test_a_token_is_the_same_or_not(header: str, token: str, is_so: bool) -> None:  # noqa: FBT001  # what is expected
    """An empty one never is."""
    assert access.is_token(header, token) is is_so


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("17", (17, True)),
        ("5-17", (17, True)),
        ("4-17", (0, False)),
        ("0", (0, True)),
        *((text, None) for text in ("", "x", "-1", "5-", "x-17", "5-x", "1.5", "٣", "9" * 40)),
    ],
)
def test_a_position_is_read_or_refused(text: str, at: tuple[int, bool] | None) -> None:
    """Numbers of another life begin again."""
    assert access.position(text, "5") == at


def test_an_event_is_one_message_whatever_it_says() -> None:
    """A line break inside would end it."""
    sent = access.event_message(Event(3, NOW, "pass", "", "one\ntwo\r\n\n", {}), "5").decode()
    assert sent.startswith("id: 5-3\ndata: {")
    assert sent.count("\n") == 3
    assert "\r" not in sent
