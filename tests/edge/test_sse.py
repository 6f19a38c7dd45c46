"""The event log as server-sent events."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kwokfleet.server import http_server, uvicorn_thread
from tests.harness import fake_daemon, waiting
from tests.harness.fake_daemon import FakeDaemon, HttpClient

START_ID = int(fake_daemon.NOW.timestamp() * 1000)


class Follower:
    """A client that follows the events."""

    def __init__(self, client: HttpClient, query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection(*client.address, timeout=30)
        dashed = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", f"/api/v1/events{query}", headers=dashed)
        self.response = self._connection.getresponse()
        self.status = self.response.status
        if self.status == 200:
            assert self.next() == {"retry": "2000"}

    def next(self) -> dict[str, str]:
        """Return the fields of the next message; empty if the stream has ended."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\r"):
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        return fields

    def message(self) -> Any:  # noqa: ANN401  # any JSON
        """Return the text of the next event."""
        return json.loads(self.next()["data"])["message"]

    def close(self) -> None:
        """Disconnect."""
        self.response.close()
        self._connection.close()


@contextmanager
def following(client: HttpClient, query: str = "", **headers: str) -> Iterator[Follower]:
    """Follow the events in a block."""
    follower = Follower(client, query, **headers)
    try:
        yield follower
    finally:
        follower.close()


def test_events_are_complete_and_in_order() -> None:
    """From the time of the request on, each with its id."""
    daemon = FakeDaemon()
    daemon.add_event("before")
    with fake_daemon.serving(daemon) as client, following(client) as follower:
        assert follower.response.headers["content-type"].startswith("text/event-stream")
        for number in range(20):
            daemon.add_event(f"change {number}")
        first = follower.next()
        assert first["id"] == f"{START_ID}-2"
        assert json.loads(first["data"]) == {
            "number": 2,
            "time": "2026-03-02T08:00:00.000Z",
            "kind": "pass",
            "fleet": "lab",
            "message": "change 0",
            "keys": {"changes": 2},
        }
        assert [follower.message() for _ in range(19)] == [f"change {number}" for number in range(1, 20)]


def test_a_stream_resumes_after_a_position() -> None:
    """The position is the id of the last event, or a number; 0 is all stored events."""
    daemon = FakeDaemon()
    for number in range(1, 5):
        daemon.add_event(f"change {number}")
    with fake_daemon.serving(daemon) as client:
        with following(client, Last_Event_ID=f"{START_ID}-2") as follower:
            assert [follower.message(), follower.message()] == ["change 3", "change 4"]
        with following(client, "?after=3") as follower:
            assert follower.message() == "change 4"
        with following(client, "?after=0") as follower:
            assert follower.message() == "change 1"
        with following(client, "?after=0", Last_Event_ID=f"{START_ID}-3") as follower:
            assert follower.message() == "change 4"


def test_missed_events_are_reported() -> None:
    """Events that are no longer stored, and those before a restart of the daemon."""
    daemon = FakeDaemon()
    for number in range(1, fake_daemon.EVENT_LIMIT + 11):
        daemon.add_event(f"change {number}")
    with fake_daemon.serving(daemon) as client:
        with following(client, "?after=2") as follower:
            message = follower.next()
            assert message["event"] == "missed"
            assert json.loads(message["data"]) == {"why": "8 events are no longer kept"}
            assert follower.message() == "change 11"
        daemon.current = replace(daemon.current, started=fake_daemon.NOW + timedelta(days=1))
        with following(client, Last_Event_ID=f"{START_ID}-105") as follower:
            assert "was restarted" in json.loads(follower.next()["data"])["why"]


def test_an_idle_stream_sends_keep_alives() -> None:
    """As a comment, which clients ignore."""
    with (
        fake_daemon.serving(FakeDaemon(), http_server.HttpOptions(heartbeat_s=0.01)) as client,
        following(client) as follower,
    ):
        assert follower.next() == {"": "keep-alive"}


def test_the_number_of_clients_is_limited() -> None:
    """503 until another client disconnects."""
    daemon = FakeDaemon()
    with fake_daemon.serving(daemon, http_server.HttpOptions(max_streams=2)) as client:
        with following(client), following(client):
            rejected = Follower(client)
            assert (rejected.status, rejected.response.headers["retry-after"]) == (503, "5")
            rejected.close()
        daemon.add_event("after")
        follower = waiting.until(lambda: _accepted(client))
        assert follower
        assert follower.message() == "after"
        follower.close()


def _accepted(client: HttpClient) -> Follower | None:
    follower = Follower(client, "?after=0")
    if follower.status == 200:
        return follower
    follower.close()
    return None


def test_a_client_that_does_not_read_is_disconnected() -> None:
    """A new client can connect; the others lose no event."""
    daemon = FakeDaemon()
    options = http_server.HttpOptions(max_streams=2, deadlines=uvicorn_thread.ConnectionDeadlines(stall_s=2.0))
    with fake_daemon.serving(daemon, options) as client, following(client) as quick, following(client) as slow:
        assert slow.status == 200

        def connect_another() -> Follower | None:
            daemon.add_event("x" * 1_000_000)
            assert len(quick.message()) == 1_000_000
            return _accepted(client)

        another = waiting.until(connect_another)
        assert another
        another.close()


def test_a_stop_ends_the_streams() -> None:
    """Clients get the last chunk, not a reset; and no thread is left."""
    before = set(threading.enumerate())
    with fake_daemon.serving(FakeDaemon()) as client:
        followers = [socket.create_connection(client.address, timeout=30) for _ in range(5)]
        for follower in followers:
            follower.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert follower.recv(1) == b"H"
    for follower in followers:
        with follower, follower.makefile("rb") as response:
            assert response.read().endswith(b"\r\n0\r\n\r\n")
    assert set(threading.enumerate()) <= before


def test_a_head_request_opens_no_stream() -> None:
    """The response ends at once."""
    with fake_daemon.serving(FakeDaemon(), http_server.HttpOptions(max_streams=1)) as client:
        assert client.request("HEAD", "/api/v1/events").status == 200
        with following(client) as follower:
            assert follower.status == 200
