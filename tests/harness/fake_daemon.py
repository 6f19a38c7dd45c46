"""Fake daemon behind the real HTTP server, for tests of the HTTP API."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kwokfleet import errors
from kwokfleet.daemon import metrics
from kwokfleet.daemon.snapshot import (
    Event,
    FleetSnapshot,
    Nodes,
    Pass,
    PassResult,
    PoolSnapshot,
    ScheduledTime,
    ShardSnapshot,
    Snapshot,
    SourceSnapshot,
    WithheldSummary,
)
from kwokfleet.daemon.trigger import PassReason
from kwokfleet.documents.problems import Problem
from kwokfleet.measure.result import ResultSummary
from kwokfleet.server import http_server

TOKEN = "s3cret-t0ken-of-the-test"  # noqa: S105  # used only in tests
NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
EVENT_LIMIT = 100
"""Maximum number of stored Events."""

SNAPSHOT = Snapshot(
    version="1.2.3",
    identity="host_a",
    started=NOW,
    leading=True,
    leader="host_a",
    synced=True,
    source=SourceSnapshot(
        "git", "https://me:hunter2@git.example/fleets.git", "abc123", "d1", NOW, NOW,
        (Problem("fleets/a.yaml", 12, 7, "spec", "must be 0 or more", "fix the value"),),
    ),
    passes=(Pass(NOW, "timer", 0.25, PassResult.CHANGED, {"create": 3}, 1, "p1", "abc123"),),
    waiting=("file",),
    fleets=(
        FleetSnapshot(
            "lab",
            Nodes(5, 4, 3, 2),
            (PoolSnapshot("cpu", Nodes(3, 3, 3, 2)), PoolSnapshot("gpu", Nodes(2, 1, 0, 0), suspended=True)),
            ({"type": "Ready", "status": "False", "reason": "PruneWithheld", "message": "too much",
              "lastTransitionTime": "2026-03-02T08:00:00Z"},
             {"type": "Stalled", "status": "True", "reason": "FieldConflict", "message": "",
              "lastTransitionTime": "2026-03-02T08:00:00Z"}),
            (
                WithheldSummary("approval", "too much would vanish", "w1", 7),
                WithheldSummary("approval", "and more", "w2", 2),
            ),
            due=(ScheduledTime(NOW + timedelta(hours=1), "pool gpu: 80 nodes"),),
        ),
        FleetSnapshot("other", suspended=True),
    ),
    kwok=(ShardSnapshot(0, "ready", 11, 10247, 2, "", 1 << 20, 0.5), ShardSnapshot(1, "waiting", why="it ended")),
    objects={"Node": {"present": 4, "ready": 3}, "Stage": {"present": 9}},
    measured=(
        ResultSummary("lab", "load", "1", "Failed", "deadline: wanted 1m, got 2m",
                      {"deadline": False, "failures": True}, {("podStartup", "pods", "watch", "p99"): 1.5}),
    ),
)  # fmt: skip


@dataclass
class FakeDaemon:
    """Records calls and returns fixed values."""

    current: Snapshot = SNAPSHOT
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    is_live: tuple[bool, str] = (True, "")
    is_ready: tuple[bool, list[str]] = (True, ["synced", "kwok lives", "leading"])
    plan_json: str = '{"differs": false}'
    """Return value of plan()."""
    error: Exception | None = None
    """Exception raised by plan()."""
    result_files: dict[tuple[str, str, str, str], str] = field(default_factory=dict)
    """Result files by Fleet, Wave, Run and file name."""
    plan_allowed: threading.Event = field(default_factory=threading.Event)
    """plan() waits for it; initially set."""
    plan_called: threading.Event = field(default_factory=threading.Event)
    """Set when plan() is called."""
    _events: list[Event] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        """Let plan() return."""
        self.plan_allowed.set()

    def reset(self) -> None:
        """Restore the initial state."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(FakeDaemon(), name))

    def add_event(self, message: str) -> None:
        """Add an Event."""
        with self._changed:
            number = self.current.newest_event + 1
            self._events = [*self._events, Event(number, NOW, "pass", "lab", message, {"changes": number})][
                -EVENT_LIMIT:
            ]
            self.current = replace(self.current, newest_event=number)
            self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return self.current

    def plan(self) -> str:
        """Return the plan, or raise *error*."""
        self.plan_called.set()
        self.plan_allowed.wait(30)
        if self.error:
            raise self.error
        return self.plan_json

    def list_objects(self, thing: str, fleet: str) -> list[dict[str, Any]]:
        """Return the arguments."""
        return [{"thing": thing, "fleet": fleet}]

    def results(self, fleet: str, wave: str, limit: int) -> list[dict[str, Any]]:
        """Return the arguments."""
        return [{"fleet": fleet, "wave": wave, "limit": limit}]

    def result_file(self, fleet: str, wave: str, run: str, file: str) -> str:
        """Return a stored result file."""
        return self.result_files.get((fleet, wave, run, file), "")

    def request_pass(self, why: PassReason) -> None:
        """Record the call."""
        self.calls.append(("ask", why))

    def suspend(self, fleet: str, on: bool) -> None:  # noqa: FBT001  # as the protocol has it
        """Record the call."""
        self.calls.append(("suspend", fleet, on))

    def approve(self, digest: str) -> bool:
        """Record the call; one digest is withheld."""
        self.calls.append(("approve", digest))
        return digest == "w1"

    def handle_push(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Accept a body with the right signature."""
        if headers.get("x-hub-signature-256") != "right":
            return 401, "the signature is wrong"
        self.calls.append(("pushed", body))
        return 202, "fetching https://me:hunter2@git.example/fleets.git"

    def events(self, after: int, timeout_s: float) -> list[Event]:
        """Return the Events after a number."""
        with self._changed:
            self._changed.wait_for(lambda: self.current.newest_event > after, timeout_s)
            return [event for event in self._events if event.number > after]

    def readiness(self) -> tuple[bool, list[str]]:
        """Return the configured value."""
        return self.is_ready

    def liveness(self) -> tuple[bool, str]:
        """Return the configured value."""
        return self.is_live


@dataclass(frozen=True)
class HttpResponse:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401  # any JSON
        """The parsed body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class HttpClient:
    """Sends requests to the server."""

    address: tuple[str, int]

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:  # noqa: ANN401  # bytes or values
        """Send one request on a new connection; `_` in a header name becomes `-`."""
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent_headers.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request(method, path, body, sent_headers)
            response = connection.getresponse()
            return HttpResponse(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> HttpResponse:
        """Send a GET request."""
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any = None, token: str = TOKEN, **headers: str) -> HttpResponse:  # noqa: ANN401  # as request
        """Send a POST request with the token."""
        return self.request("POST", path, body, authorization=f"Bearer {token}", **headers)


@contextmanager
def serving(daemon: FakeDaemon, options: http_server.HttpOptions | None = None) -> Iterator[HttpClient]:
    """Serve the fake daemon on a free loopback port."""
    daemon_metrics = metrics.Metrics()
    daemon_metrics.registry.register(metrics.SnapshotGauges(daemon.snapshot))
    server = http_server.HttpServer(
        daemon, daemon_metrics.page, daemon_metrics.served, options or http_server.HttpOptions(token=TOKEN)
    )
    server.start()
    try:
        yield HttpClient(server.address)
    finally:
        server.stop()


CLUSTER_ERROR = errors.ClusterError("the cluster at https://me:hunter2@c.example is away", hint="wait")
