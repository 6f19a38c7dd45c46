"""The HTTP API: a real server on loopback, and a daemon that has only a memory."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from kwokfleet import errors, settings
from kwokfleet.cli import logging
from kwokfleet.server import http_server, routes, uvicorn_thread
from tests.harness import fake_daemon
from tests.harness.fake_daemon import TOKEN, FakeDaemon, HttpClient

READING = (
    "status",
    "fleets",
    "fleets/lab",
    "fleets/lab/pools",
    "nodes",
    "stages",
    "waves",
    "runs",
    "results",
    "plan",
    "source",
    "kwok",
    "passes",
)
CHANGING = ("sync", "suspend", "resume", "approve")


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[FakeDaemon, HttpClient]]:
    """Serve one daemon to all tests that are content with it: each stop takes a moment."""
    memory = FakeDaemon()
    with fake_daemon.serving(memory) as made:
        yield memory, made


@pytest.fixture
def memory(shared: tuple[FakeDaemon, HttpClient]) -> FakeDaemon:
    """Return a daemon that has only a memory, and nothing in it."""
    shared[0].reset()
    return shared[0]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Log everything there is into a text."""
    stream = io.StringIO()
    logging.configure(settings.LogLevel.DEBUG, settings.LogFormat.JSON, stream=stream)
    yield stream
    logging.configure(settings.LogLevel.INFO, settings.LogFormat.JSON)


@pytest.fixture
def client(shared: tuple[FakeDaemon, HttpClient], memory: FakeDaemon, log: io.StringIO) -> HttpClient:
    """Ask the shared server, which has a token."""
    return shared[1]


# ----------------------------------------------------------------------------------------
# probes and reading


def test_the_probes_say_what_the_daemon_says(client: HttpClient, memory: FakeDaemon) -> None:
    """200 and a word, or 503 and why."""
    assert (client.get("/healthz").status, client.get("/healthz").body) == (200, b"ok\n")
    assert client.get("/readyz").body == b"ready\n"
    assert client.get("/readyz?verbose").body == b"ready\nsynced\nkwok lives\nleading\n"
    memory.is_live, memory.is_ready = (False, "the worker hangs"), (False, ["not synced yet"])
    assert (client.get("/healthz").status, client.get("/healthz").body) == (503, b"the worker hangs\n")
    assert (client.get("/readyz").status, client.get("/readyz").body) == (503, b"not ready\nnot synced yet\n")


def test_parts_are_parts_of_the_status(client: HttpClient) -> None:
    """Each path shows one part of the whole."""
    whole = client.get("/api/v1/status").json
    assert whole["role"] == "leading"
    for name in ("fleets", "source", "kwok", "passes"):
        assert client.get(f"/api/v1/{name}").json == whole[name]
    assert client.get("/api/v1/fleets/lab").json == whole["fleets"][0]
    assert [each["name"] for each in client.get("/api/v1/fleets/lab/pools").json] == ["cpu", "gpu"]
    assert client.get("/api/v1/source").json["problems"][0]["line"] == 12
    assert client.get("/api/v1/plan").json == {"differs": False}


def test_the_index_names_every_route(client: HttpClient) -> None:
    """Nothing is hidden, and nothing is named that is not there."""
    lines = [line.split() for line in client.get("/").body.decode().splitlines()[2:]]
    named = {(method, path.replace("{name}", "lab")) for method, path, *_ in lines}
    assert len(named) == 24
    for method, path in named - {("GET", "/api/v1/events")}:
        answer = client.ask(method, path)
        assert answer.status != 405
        assert b"no such path" not in answer.body


@pytest.mark.parametrize("path", ["/", "/healthz", "/nowhere", *(f"/api/v1/{each}" for each in READING)])
def test_every_answer_carries_the_security_headers(client: HttpClient, path: str) -> None:
    """Also a refusal; and no other origin is let in."""
    headers = client.get(path, origin="http://evil.example").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control")]


# ----------------------------------------------------------------------------------------
# who may change something


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
def test_without_the_token_nothing_is_changed(client: HttpClient, memory: FakeDaemon, path: str, header: str) -> None:
    """401, with a challenge and a hint."""
    answer = client.ask("POST", f"/api/v1/{path}", {"digest": "w1"}, authorization=header)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in answer.json["hint"]
    assert not memory.calls


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize("header", ["", "Bearer ", f"Bearer {TOKEN}"])
def test_without_a_configured_token_changes_are_off(memory: FakeDaemon, path: str, header: str) -> None:
    """403, and how to turn them on; an empty token opens nothing."""
    with fake_daemon.serving(memory, http_server.HttpOptions()) as client:
        answer = client.ask("POST", f"/api/v1/{path}", authorization=header)
        assert answer.status == 403
        assert "--token-file" in answer.json["hint"]
    assert not memory.calls


def test_with_the_token_the_daemon_is_asked(client: HttpClient, memory: FakeDaemon) -> None:
    """Each route asks for one thing."""
    assert client.post("/api/v1/sync").status == 202
    assert client.post("/api/v1/suspend").json == {"fleet": "", "suspended": True}
    assert client.post("/api/v1/suspend", {"fleet": "lab"}).status == 200
    assert client.post("/api/v1/resume", {"fleet": "lab"}).json == {"fleet": "lab", "suspended": False}
    assert client.post("/api/v1/approve", {"digest": "w1"}).json == {"approved": "w1"}
    assert memory.calls == [
        ("ask", "http"),
        ("suspend", "", True),
        ("suspend", "lab", True),
        ("suspend", "lab", False),
        ("approve", "w1"),
    ]


def test_a_standby_sends_people_to_the_leader(client: HttpClient, memory: FakeDaemon) -> None:
    """It shows what it sees, and changes nothing."""
    memory.shown = replace(memory.shown, leading=False, leader="host_b")
    answer = client.post("/api/v1/sync")
    assert (answer.status, answer.json["hint"]) == (503, "send it to the leader: host_b")
    assert client.get("/api/v1/status").json["role"] == "standby"
    assert not memory.calls


def test_a_hook_needs_its_signature_and_no_token(client: HttpClient, memory: FakeDaemon) -> None:
    """The daemon checks it, over the very bytes."""
    body = b'{"ref":  "refs/heads/main"}'
    assert client.ask("POST", "/hooks/git", body).status == 401
    assert client.ask("POST", "/hooks/git", body, X_Hub_Signature_256="right").status == 202
    assert memory.calls == [("pushed", body)]


# ----------------------------------------------------------------------------------------
# what is wrong with a request


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status"),
    [
        ("POST", "/api/v1/suspend", b'{"fleet": ', "application/json", 400),
        ("POST", "/api/v1/suspend", b"[" * 5000, "application/json", 400),
        ("POST", "/api/v1/suspend", b'{"fleet": "\xff"}', "application/json", 400),
        ("POST", "/api/v1/suspend", b'["lab"]', "application/json", 422),
        ("POST", "/api/v1/suspend", b'{"fleet": 3}', "application/json", 422),
        ("POST", "/api/v1/suspend", b'{"pool": "gpu"}', "application/json", 422),
        ("POST", "/api/v1/sync", b'{"fleet": "lab"}', "application/json", 422),
        ("POST", "/api/v1/suspend", b'{"fleet": "lab"}', "text/plain", 415),
        ("POST", "/api/v1/suspend", b'{"fleet": "lab"}', "", 415),
        ("POST", "/api/v1/suspend", b'{"fleet": "nobody"}', "application/json", 404),
        ("POST", "/api/v1/approve", b"", "application/json", 422),
        ("POST", "/api/v1/approve", b'{"digest": "w9"}', "application/json; charset=utf-8", 404),
        ("GET", "/api/v1/fleets/nobody", b"", "", 404),
        ("GET", "/api/v1/fleets/nobody/pools", b"", "", 404),
        ("GET", "/api/v1/fleets/", b"", "", 404),
        ("GET", "/api/v2/status", b"", "", 404),
        ("GET", "/api/v1/events?after=x", b"", "", 400),
        ("GET", "/api/v1/sync", b"", "", 405),
        ("DELETE", "/api/v1/fleets/lab", b"", "", 405),
        ("OPTIONS", "/api/v1/status", b"", "", 405),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(  # noqa: PLR0913, PLR0917  # one row of the table
    client: HttpClient, memory: FakeDaemon, method: str, path: str, body: bytes, kind: str, status: int
) -> None:
    """By its code, a sentence and a hint."""
    answer = client.ask(method, path, body, authorization=f"Bearer {TOKEN}", content_type=kind)
    assert answer.status == status
    assert answer.json["error"]
    assert answer.json["hint"]
    assert [each for each in memory.calls if each[0] != "approve"] == []


def test_another_method_is_told_which_one(client: HttpClient) -> None:
    """As HTTP asks for it."""
    assert client.get("/api/v1/sync").headers["allow"] == "POST"


@pytest.mark.parametrize(("path", "limit"), [("/api/v1/suspend", 64 * 1024), ("/hooks/git", 1024 * 1024)])
def test_a_body_that_is_declared_too_long_is_not_read(
    client: HttpClient, memory: FakeDaemon, path: str, limit: int
) -> None:
    """413 before a byte of it has come; one byte less is read."""
    assert raw(client, head("POST", path, f"Content-Length: {limit + 1}")).startswith(b"HTTP/1.1 413 ")
    answer = client.post(path, b"x" * limit, X_Hub_Signature_256="right")
    assert answer.status in (202, 415)


@pytest.mark.parametrize(("path", "limit"), [("/api/v1/suspend", 64 * 1024), ("/hooks/git", 1024 * 1024)])
def test_a_body_in_pieces_is_cut_off_where_it_is_too_long(client: HttpClient, path: str, limit: int) -> None:
    """413 although its end has not come and its length was never told."""
    piece = b"400\r\n" + b"x" * 1024 + b"\r\n"
    said = raw(client, head("POST", path, "Transfer-Encoding: chunked") + piece * (limit // 1024 + 1))
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in said.lower()


def test_a_slow_body_is_cut_off(memory: FakeDaemon) -> None:
    """408, and the connection is closed."""
    options = http_server.HttpOptions(token=TOKEN, limits=routes.RequestLimits(body_s=0.05))
    with fake_daemon.serving(memory, options) as client:
        said = raw(client, head("POST", "/api/v1/suspend", "Content-Length: 20") + b"{")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert not memory.calls


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Drip: "])
def test_a_head_that_does_not_come_is_not_waited_for(memory: FakeDaemon, sent: bytes) -> None:
    """The connection is closed, without an answer."""
    with fake_daemon.serving(
        memory, http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(head_s=0.05))
    ) as client:
        assert raw(client, sent) == b""


def test_long_headers_are_refused(client: HttpClient) -> None:
    """431 for a head that is whole."""
    assert client.get("/healthz", x_long="x" * 17_000).status == 431


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\n\r\n", b"G@T\x00 / HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_what_is_not_http_is_refused(client: HttpClient, text: bytes) -> None:
    """And the server goes on."""
    assert raw(client, text + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:1", 200), ("[::1]:8080", 200), ("[::1]", 200)]
    + [
        (name, 403)
        for name in ("evil.example", "127.0.0.1.evil.example", "192.168.0.1", "localhost.evil.example:80", "")
    ],
)
def test_on_loopback_no_other_name_is_answered_to(client: HttpClient, host: str, status: int) -> None:
    """A page that made its own name point here (DNS rebinding) gets nothing."""
    assert client.get("/api/v1/status", host=host).status == status


def test_elsewhere_every_name_is_answered_to_and_openness_is_said(memory: FakeDaemon, log: io.StringIO) -> None:
    """Who binds to all addresses without a token is warned."""
    with fake_daemon.serving(memory, http_server.HttpOptions(host="0.0.0.0")) as made:  # noqa: S104  # that is the case
        assert HttpClient(("127.0.0.1", made.address[1])).get("/api/v1/status", host="fleet.example").status == 200
    assert "http_without_token" in log.getvalue()


# ----------------------------------------------------------------------------------------
# trouble inside


def test_known_trouble_is_answered_in_its_own_words(client: HttpClient, memory: FakeDaemon) -> None:
    """With the hint it has, and without the password that its address had."""
    memory.error = fake_daemon.CLUSTER_ERROR
    answer = client.get("/api/v1/plan")
    assert (answer.status, answer.json) == (503, {"error": "the cluster at https://c.example is away", "hint": "wait"})
    memory.error = errors.InputError("no such thing")
    assert client.get("/api/v1/plan").status == 422


def test_a_bug_is_answered_and_the_server_goes_on(client: HttpClient, memory: FakeDaemon, log: io.StringIO) -> None:
    """500 without the details; those are in the log."""
    memory.error = ZeroDivisionError("inside")
    answer = client.get("/api/v1/plan", authorization=f"Bearer {TOKEN}")
    assert (answer.status, answer.json["error"]) == (500, "a bug in kwokfleet")
    assert client.get("/healthz").status == 200
    (failed,) = [each for each in map(json.loads, log.getvalue().splitlines()) if each["event"] == "http_failed"]
    assert failed["error"] == "ZeroDivisionError"
    assert "in plan" in failed["trace"]


def test_a_daemon_that_hangs_is_told_by_the_server(memory: FakeDaemon) -> None:
    """503 after the deadline, while the probes answer."""
    memory.gate.clear()
    with fake_daemon.serving(memory, http_server.HttpOptions(limits=routes.RequestLimits(slow_s=0.05))) as client:
        assert [client.get("/api/v1/plan").status for _ in range(6)] == [503] * 6
        assert client.get("/healthz").status == 200
        memory.gate.set()


def test_too_many_at_once_are_sent_away(memory: FakeDaemon) -> None:
    """503 and when to come back; what is being answered is answered, and so are probes."""
    memory.gate.clear()
    got: list[int] = []
    with fake_daemon.serving(memory, http_server.HttpOptions(max_concurrent=1)) as client:
        waiter = threading.Thread(target=lambda: got.append(client.get("/api/v1/plan").status))
        waiter.start()
        assert memory.inside.wait(30)
        answer = client.get("/api/v1/status")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status == client.get("/readyz").status == 200
        memory.gate.set()
        waiter.join()
        assert client.get("/api/v1/status").status == 200
    assert got == [200]


def test_nothing_secret_is_logged_or_shown(client: HttpClient, memory: FakeDaemon, log: io.StringIO) -> None:
    """Not the token, right or wrong, nor a signature, nor the password of an address."""
    wrong = "another-t0ken"
    memory.is_live = (False, "cannot fetch https://me:hunter2@git.example/x")
    memory.error = RuntimeError(f"with {TOKEN}")
    shown = [client.get(f"/api/v1/{path}", authorization=f"Bearer {TOKEN}").body for path in READING]
    shown += [client.post(f"/api/v1/{path}", token=wrong).body for path in CHANGING]
    shown += [client.post(f"/api/v1/{path}?token={TOKEN}", b"{").body for path in CHANGING]
    shown += [client.ask("POST", "/hooks/git", b"{}", X_Hub_Signature_256="right").body, client.get("/healthz").body]
    shown += [client.get("/metrics").body, raw(client, f"GET /{TOKEN} HTTP/9\r\nA: {TOKEN}\r\n\r\n".encode())]
    everything = b"".join(shown).decode() + log.getvalue() + repr(http_server.HttpOptions(token=TOKEN))
    assert "http_failed" in everything
    assert "git.example" in everything
    for secret in (TOKEN, wrong, "hunter2", '"right"'):
        assert secret not in everything


def head(method: str, path: str, *headers: str) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode()


def raw(client: HttpClient, text: bytes) -> bytes:
    """Send bytes and return all that comes until the server closes the connection."""
    got = b""
    with socket.create_connection(client.address, timeout=30) as connection:
        try:
            connection.sendall(text)
            while part := connection.recv(65536):
                got += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return got


# ----------------------------------------------------------------------------------------
# results


def test_results_are_listed_by_fleet_and_wave(client: HttpClient) -> None:
    """So many as are asked for, within reason."""
    assert client.get("/api/v1/results").json == [{"fleet": "", "wave": "", "limit": 50}]
    asked = client.get("/api/v1/results?fleet=lab&wave=load&limit=3")
    assert asked.json == [{"fleet": "lab", "wave": "load", "limit": 3}]
    for limit in ("0", "-1", "many", "1e3", "1001", "\u0663"):
        refused = client.get(f"/api/v1/results?limit={quote(limit)}")
        assert (refused.status, "limit" in refused.json["error"]) == (400, True)


def test_a_result_and_its_pods_are_served_as_they_are_kept(
    client: HttpClient, memory: FakeDaemon, tmp_path: Path
) -> None:
    """JSON, and a line of JSON for each pod; what is not there is said."""
    for name, text in (("result.json", '{"run": "1"}'), ("pods.ndjson", '{"name": "a"}\n{"name": "b"}\n')):
        (tmp_path / name).write_text(text)
        memory.kept["lab", "load", "1", name] = str(tmp_path / name)
    whole = client.get("/api/v1/results/lab/load/1")
    assert (whole.headers["content-type"], whole.json) == ("application/json", {"run": "1"})
    pods = client.get("/api/v1/results/lab/load/1/pods")
    assert (pods.headers["content-type"], pods.body.count(b"\n")) == ("application/x-ndjson", 2)
    for path in ("lab/load/2", "lab/load/2/pods", "lab/../load/1", "%2e%2e/load/1", "lab/load/..%2f..%2fetc"):
        assert client.get(f"/api/v1/results/{path}").status == 404
