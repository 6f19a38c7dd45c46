"""Changes as server-sent events."""

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

LIFE = int(fake_daemon.NOW.timestamp() * 1000)


class Follower:
    """A client that follows the events."""

    def __init__(self, client: HttpClient, query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection(*client.address, timeout=30)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", f"/api/v1/events{query}", headers=given)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        if self.status == 200:
            assert self.next() == {"retry": "2000"}

    def next(self) -> dict[str, str]:
        """Return the fields of the next message; empty if the stream has ended."""
        fields: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\r"):
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        return fields

    def message(self) -> Any:  # noqa: ANN401  # whatever it is
        """Return the text of the next event."""
        return json.loads(self.next()["data"])["message"]

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self._connection.close()


@contextmanager
def following(client: HttpClient, query: str = "", **headers: str) -> Iterator[Follower]:
    """Follow the events for a while."""
    follower = Follower(client, query, **headers)
    try:
        yield follower
    finally:
        follower.close()


def test_events_come_in_order_and_whole() -> None:
    """From the moment of asking on, each with its id."""
    memory = FakeDaemon()
    memory.add_event("before")
    with fake_daemon.serving(memory) as client, following(client) as follower:
        assert follower.answer.headers["content-type"].startswith("text/event-stream")
        for number in range(20):
            memory.add_event(f"change {number}")
        first = follower.next()
        assert first["id"] == f"{LIFE}-2"
        assert json.loads(first["data"]) == {
            "number": 2,
            "time": "2026-03-02T08:00:00.000Z",
            "kind": "pass",
            "fleet": "lab",
            "message": "change 0",
            "keys": {"changes": 2},
        }
        assert [follower.message() for _ in range(19)] == [f"change {number}" for number in range(1, 20)]


def test_a_stream_is_taken_up_where_it_broke_off() -> None:
    """By the id of the last event, or by a number; 0 is all that is remembered."""
    memory = FakeDaemon()
    for number in range(1, 5):
        memory.add_event(f"change {number}")
    with fake_daemon.serving(memory) as client:
        with following(client, Last_Event_ID=f"{LIFE}-2") as follower:
            assert [follower.message(), follower.message()] == ["change 3", "change 4"]
        with following(client, "?after=3") as follower:
            assert follower.message() == "change 4"
        with following(client, "?after=0") as follower:
            assert follower.message() == "change 1"
        with following(client, "?after=0", Last_Event_ID=f"{LIFE}-3") as follower:
            assert follower.message() == "change 4"


def test_who_missed_something_is_told() -> None:
    """What is no longer remembered, and what was before the daemon's start."""
    memory = FakeDaemon()
    for number in range(1, fake_daemon.EVENT_LIMIT + 11):
        memory.add_event(f"change {number}")
    with fake_daemon.serving(memory) as client:
        with following(client, "?after=2") as follower:
            told = follower.next()
            assert told["event"] == "missed"
            assert json.loads(told["data"]) == {"why": "8 events are no longer kept"}
            assert follower.message() == "change 11"
        memory.shown = replace(memory.shown, started=fake_daemon.NOW + timedelta(days=1))
        with following(client, Last_Event_ID=f"{LIFE}-105") as follower:
            assert "was restarted" in json.loads(follower.next()["data"])["why"]


def test_a_silent_stream_shows_that_it_lives() -> None:
    """By a comment, which clients pass over."""
    with (
        fake_daemon.serving(FakeDaemon(), http_server.HttpOptions(heartbeat_s=0.01)) as client,
        following(client) as follower,
    ):
        assert follower.next() == {"": "keep-alive"}


def test_so_many_clients_and_no_more() -> None:
    """503 for one too many, until another one goes."""
    memory = FakeDaemon()
    with fake_daemon.serving(memory, http_server.HttpOptions(max_streams=2)) as client:
        with following(client), following(client):
            refused = Follower(client)
            assert (refused.status, refused.answer.headers["retry-after"]) == (503, "5")
            refused.close()
        memory.add_event("after")
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


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    """Its place is free again; the others have lost nothing."""
    memory = FakeDaemon()
    options = http_server.HttpOptions(max_streams=2, deadlines=uvicorn_thread.ConnectionDeadlines(stall_s=2.0))
    with fake_daemon.serving(memory, options) as client, following(client) as quick, following(client) as slow:
        assert slow.status == 200

        def place_is_free() -> Follower | None:
            memory.add_event("x" * 1_000_000)
            assert len(quick.message()) == 1_000_000
            return _accepted(client)

        taken = waiting.until(place_is_free)
        assert taken
        taken.close()


def test_a_stop_ends_the_streams() -> None:
    """In good order: clients get the last chunk, not a broken connection; and no thread is left."""
    before = set(threading.enumerate())
    with fake_daemon.serving(FakeDaemon()) as client:
        followers = [socket.create_connection(client.address, timeout=30) for _ in range(5)]
        for follower in followers:
            follower.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert follower.recv(1) == b"H"
    for follower in followers:
        with follower, follower.makefile("rb") as said:
            assert said.read().endswith(b"\r\n0\r\n\r\n")
    assert set(threading.enumerate()) <= before


def test_asking_for_the_head_alone_opens_no_stream() -> None:
    """HEAD ends."""
    with fake_daemon.serving(FakeDaemon(), http_server.HttpOptions(max_streams=1)) as client:
        assert client.ask("HEAD", "/api/v1/events").status == 200
        with following(client) as follower:
            assert follower.status == 200
