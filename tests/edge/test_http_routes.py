"""The HTTP API: the real server on loopback, with a fake daemon."""

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

READ_PATHS = (
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
WRITE_PATHS = ("sync", "suspend", "resume", "approve")


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[FakeDaemon, HttpClient]]:
    """Serve one fake daemon to all tests: a stop takes a moment."""
    daemon = FakeDaemon()
    with fake_daemon.serving(daemon) as client:
        yield daemon, client


@pytest.fixture
def daemon(shared: tuple[FakeDaemon, HttpClient]) -> FakeDaemon:
    """Return the fake daemon in its initial state."""
    shared[0].reset()
    return shared[0]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Capture the log at debug level."""
    stream = io.StringIO()
    logging.configure(settings.LogLevel.DEBUG, settings.LogFormat.JSON, stream=stream)
    yield stream
    logging.configure(settings.LogLevel.INFO, settings.LogFormat.JSON)


@pytest.fixture
def client(shared: tuple[FakeDaemon, HttpClient], daemon: FakeDaemon, log: io.StringIO) -> HttpClient:
    """Return a client of the shared server, which has a token."""
    return shared[1]


# ----------------------------------------------------------------------------------------
# probes and reads


def test_the_probes_report_liveness_and_readiness(client: HttpClient, daemon: FakeDaemon) -> None:
    """200 and `ok`, or 503 and the reason."""
    assert (client.get("/healthz").status, client.get("/healthz").body) == (200, b"ok\n")
    assert client.get("/readyz").body == b"ready\n"
    assert client.get("/readyz?verbose").body == b"ready\nsynced\nkwok lives\nleading\n"
    daemon.is_live, daemon.is_ready = (False, "the worker hangs"), (False, ["not synced yet"])
    assert (client.get("/healthz").status, client.get("/healthz").body) == (503, b"the worker hangs\n")
    assert (client.get("/readyz").status, client.get("/readyz").body) == (503, b"not ready\nnot synced yet\n")


def test_each_path_returns_a_part_of_the_status(client: HttpClient) -> None:
    """The parts are equal to those of the whole status."""
    whole = client.get("/api/v1/status").json
    assert whole["role"] == "leading"
    for name in ("fleets", "source", "kwok", "passes"):
        assert client.get(f"/api/v1/{name}").json == whole[name]
    assert client.get("/api/v1/fleets/lab").json == whole["fleets"][0]
    assert [pool["name"] for pool in client.get("/api/v1/fleets/lab/pools").json] == ["cpu", "gpu"]
    assert client.get("/api/v1/source").json["problems"][0]["line"] == 12
    assert client.get("/api/v1/plan").json == {"differs": False}


def test_the_index_lists_every_route(client: HttpClient) -> None:
    """Every listed route exists."""
    lines = [line.split() for line in client.get("/").body.decode().splitlines()[2:]]
    named = {(method, path.replace("{name}", "lab")) for method, path, *_ in lines}
    assert len(named) == 24
    for method, path in named - {("GET", "/api/v1/events")}:
        response = client.request(method, path)
        assert response.status != 405
        assert b"path not found" not in response.body


@pytest.mark.parametrize("path", ["/", "/healthz", "/nowhere", *(f"/api/v1/{path}" for path in READ_PATHS)])
def test_every_response_has_the_security_headers(client: HttpClient, path: str) -> None:
    """Also an error; and no other origin is allowed."""
    headers = client.get(path, origin="http://evil.example").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control")]


# ----------------------------------------------------------------------------------------
# authorization of writes


@pytest.mark.parametrize("path", WRITE_PATHS)
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
def test_a_write_without_the_token_is_rejected(client: HttpClient, daemon: FakeDaemon, path: str, header: str) -> None:
    """401, with a challenge and a hint."""
    response = client.request("POST", f"/api/v1/{path}", {"digest": "w1"}, authorization=header)
    assert response.status == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in response.json["hint"]
    assert not daemon.calls


@pytest.mark.parametrize("path", WRITE_PATHS)
@pytest.mark.parametrize("header", ["", "Bearer ", f"Bearer {TOKEN}"])
def test_writes_are_disabled_without_a_configured_token(daemon: FakeDaemon, path: str, header: str) -> None:
    """403, and how to enable them; an empty token is not accepted."""
    with fake_daemon.serving(daemon, http_server.HttpOptions()) as client:
        response = client.request("POST", f"/api/v1/{path}", authorization=header)
        assert response.status == 403
        assert "--token-file" in response.json["hint"]
    assert not daemon.calls


def test_a_write_with_the_token_reaches_the_daemon(client: HttpClient, daemon: FakeDaemon) -> None:
    """One call per route."""
    assert client.post("/api/v1/sync").status == 202
    assert client.post("/api/v1/suspend").json == {"fleet": "", "suspended": True}
    assert client.post("/api/v1/suspend", {"fleet": "lab"}).status == 200
    assert client.post("/api/v1/resume", {"fleet": "lab"}).json == {"fleet": "lab", "suspended": False}
    assert client.post("/api/v1/approve", {"digest": "w1"}).json == {"approved": "w1"}
    assert daemon.calls == [
        ("ask", "http"),
        ("suspend", "", True),
        ("suspend", "lab", True),
        ("suspend", "lab", False),
        ("approve", "w1"),
    ]


def test_a_standby_rejects_writes_and_names_the_leader(client: HttpClient, daemon: FakeDaemon) -> None:
    """Reads are served."""
    daemon.current = replace(daemon.current, leading=False, leader="host_b")
    response = client.post("/api/v1/sync")
    assert (response.status, response.json["hint"]) == (503, "send it to the leader: host_b")
    assert client.get("/api/v1/status").json["role"] == "standby"
    assert not daemon.calls


def test_a_webhook_needs_a_signature_and_no_token(client: HttpClient, daemon: FakeDaemon) -> None:
    """The daemon checks the signature of the unchanged body."""
    body = b'{"ref":  "refs/heads/main"}'
    assert client.request("POST", "/hooks/git", body).status == 401
    assert client.request("POST", "/hooks/git", body, X_Hub_Signature_256="right").status == 202
    assert daemon.calls == [("pushed", body)]


# ----------------------------------------------------------------------------------------
# invalid requests


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
        ("POST", "/api/v1/suspend", b'{"fleet": "unknown"}', "application/json", 404),
        ("POST", "/api/v1/approve", b"", "application/json", 422),
        ("POST", "/api/v1/approve", b'{"digest": "w9"}', "application/json; charset=utf-8", 404),
        ("GET", "/api/v1/fleets/unknown", b"", "", 404),
        ("GET", "/api/v1/fleets/unknown/pools", b"", "", 404),
        ("GET", "/api/v1/fleets/", b"", "", 404),
        ("GET", "/api/v2/status", b"", "", 404),
        ("GET", "/api/v1/events?after=x", b"", "", 400),
        ("GET", "/api/v1/sync", b"", "", 405),
        ("DELETE", "/api/v1/fleets/lab", b"", "", 405),
        ("OPTIONS", "/api/v1/status", b"", "", 405),
    ],
)
def test_an_invalid_request_gets_an_error_with_a_hint(  # noqa: PLR0913, PLR0917  # one row of the table
    client: HttpClient, daemon: FakeDaemon, method: str, path: str, body: bytes, kind: str, status: int
) -> None:
    """The response has a status code, an error and a hint."""
    response = client.request(method, path, body, authorization=f"Bearer {TOKEN}", content_type=kind)
    assert response.status == status
    assert response.json["error"]
    assert response.json["hint"]
    assert [call for call in daemon.calls if call[0] != "approve"] == []


def test_a_wrong_method_gets_the_allowed_one(client: HttpClient) -> None:
    """In the Allow header."""
    assert client.get("/api/v1/sync").headers["allow"] == "POST"


@pytest.mark.parametrize(("path", "limit"), [("/api/v1/suspend", 64 * 1024), ("/hooks/git", 1024 * 1024)])
def test_a_body_with_a_too_large_content_length_is_not_read(
    client: HttpClient, daemon: FakeDaemon, path: str, limit: int
) -> None:
    """413 before the first byte of it; a body at the limit is read."""
    assert raw(client, head("POST", path, f"Content-Length: {limit + 1}")).startswith(b"HTTP/1.1 413 ")
    response = client.post(path, b"x" * limit, X_Hub_Signature_256="right")
    assert response.status in (202, 415)


@pytest.mark.parametrize(("path", "limit"), [("/api/v1/suspend", 64 * 1024), ("/hooks/git", 1024 * 1024)])
def test_a_chunked_body_is_rejected_at_the_limit(client: HttpClient, path: str, limit: int) -> None:
    """413 before its end."""
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    response = raw(client, head("POST", path, "Transfer-Encoding: chunked") + chunk * (limit // 1024 + 1))
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in response.lower()


def test_a_slow_body_times_out(daemon: FakeDaemon) -> None:
    """408, and the connection is closed."""
    options = http_server.HttpOptions(token=TOKEN, limits=routes.RequestLimits(body_s=0.05))
    with fake_daemon.serving(daemon, options) as client:
        response = raw(client, head("POST", "/api/v1/suspend", "Content-Length: 20") + b"{")
    assert response.startswith(b"HTTP/1.1 408 ")
    assert not daemon.calls


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Drip: "])
def test_an_incomplete_head_times_out(daemon: FakeDaemon, sent: bytes) -> None:
    """The connection is closed without a response."""
    with fake_daemon.serving(
        daemon, http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(head_s=0.05))
    ) as client:
        assert raw(client, sent) == b""


def test_long_headers_are_rejected(client: HttpClient) -> None:
    """431 for a complete head."""
    assert client.get("/healthz", x_long="x" * 17_000).status == 431


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\n\r\n", b"G@T\x00 / HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_invalid_http_is_rejected(client: HttpClient, text: bytes) -> None:
    """The server continues."""
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
def test_on_loopback_only_loopback_names_are_accepted(client: HttpClient, host: str, status: int) -> None:
    """A page whose name resolves to this machine (DNS rebinding) gets an error."""
    assert client.get("/api/v1/status", host=host).status == status


def test_on_other_addresses_every_name_is_accepted_with_a_warning(daemon: FakeDaemon, log: io.StringIO) -> None:
    """The log warns about an open address without a token."""
    with fake_daemon.serving(daemon, http_server.HttpOptions(host="0.0.0.0")) as open_client:  # noqa: S104  # the case
        loopback_client = HttpClient(("127.0.0.1", open_client.address[1]))
        assert loopback_client.get("/api/v1/status", host="fleet.example").status == 200
    assert "http_without_token" in log.getvalue()


# ----------------------------------------------------------------------------------------
# errors in the daemon


def test_a_deliberate_error_is_returned_with_its_hint(client: HttpClient, daemon: FakeDaemon) -> None:
    """The password of a URL is removed."""
    daemon.error = fake_daemon.CLUSTER_ERROR
    response = client.get("/api/v1/plan")
    assert response.status == 503
    assert response.json == {"error": "the cluster at https://c.example is away", "hint": "wait"}
    daemon.error = errors.InputError("no such thing")
    assert client.get("/api/v1/plan").status == 422


def test_an_unexpected_exception_is_a_500(client: HttpClient, daemon: FakeDaemon, log: io.StringIO) -> None:
    """The details are only in the log, and the server continues."""
    daemon.error = ZeroDivisionError("inside")
    response = client.get("/api/v1/plan", authorization=f"Bearer {TOKEN}")
    assert (response.status, response.json["error"]) == (500, "a bug in kwokfleet")
    assert client.get("/healthz").status == 200
    (failed,) = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "http_failed"]
    assert failed["error"] == "ZeroDivisionError"
    assert "in plan" in failed["trace"]


def test_an_unresponsive_daemon_is_a_503(daemon: FakeDaemon) -> None:
    """After a deadline; the probes are served."""
    daemon.plan_allowed.clear()
    with fake_daemon.serving(daemon, http_server.HttpOptions(limits=routes.RequestLimits(slow_s=0.05))) as client:
        assert [client.get("/api/v1/plan").status for _ in range(6)] == [503] * 6
        assert client.get("/healthz").status == 200
        daemon.plan_allowed.set()


def test_too_many_concurrent_requests_are_rejected(daemon: FakeDaemon) -> None:
    """503 with Retry-After; active requests and probes are served."""
    daemon.plan_allowed.clear()
    statuses: list[int] = []
    with fake_daemon.serving(daemon, http_server.HttpOptions(max_concurrent=1)) as client:
        waiter = threading.Thread(target=lambda: statuses.append(client.get("/api/v1/plan").status))
        waiter.start()
        assert daemon.plan_called.wait(30)
        response = client.get("/api/v1/status")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status == client.get("/readyz").status == 200
        daemon.plan_allowed.set()
        waiter.join()
        assert client.get("/api/v1/status").status == 200
    assert statuses == [200]


def test_no_secret_is_logged_or_returned(client: HttpClient, daemon: FakeDaemon, log: io.StringIO) -> None:
    """No token, right or wrong, no signature, no password of a URL."""
    wrong = "another-t0ken"
    daemon.is_live = (False, "cannot fetch https://me:hunter2@git.example/x")
    daemon.error = RuntimeError(f"with {TOKEN}")
    bodies = [client.get(f"/api/v1/{path}", authorization=f"Bearer {TOKEN}").body for path in READ_PATHS]
    bodies += [client.post(f"/api/v1/{path}", token=wrong).body for path in WRITE_PATHS]
    bodies += [client.post(f"/api/v1/{path}?token={TOKEN}", b"{").body for path in WRITE_PATHS]
    bodies += [
        client.request("POST", "/hooks/git", b"{}", X_Hub_Signature_256="right").body,
        client.get("/healthz").body,
    ]
    bodies += [client.get("/metrics").body, raw(client, f"GET /{TOKEN} HTTP/9\r\nA: {TOKEN}\r\n\r\n".encode())]
    everything = b"".join(bodies).decode() + log.getvalue() + repr(http_server.HttpOptions(token=TOKEN))
    assert "http_failed" in everything
    assert "git.example" in everything
    for secret in (TOKEN, wrong, "hunter2", '"right"'):
        assert secret not in everything


def head(method: str, path: str, *headers: str) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode()


def raw(client: HttpClient, text: bytes) -> bytes:
    """Send bytes; return everything until the server closes the connection."""
    received = b""
    with socket.create_connection(client.address, timeout=30) as connection:
        try:
            connection.sendall(text)
            while part := connection.recv(65536):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


# ----------------------------------------------------------------------------------------
# results


def test_results_are_listed_by_fleet_and_wave(client: HttpClient) -> None:
    """The limit must be from 1 to 1000."""
    assert client.get("/api/v1/results").json == [{"fleet": "", "wave": "", "limit": 50}]
    filtered = client.get("/api/v1/results?fleet=lab&wave=load&limit=3")
    assert filtered.json == [{"fleet": "lab", "wave": "load", "limit": 3}]
    for limit in ("0", "-1", "many", "1e3", "1001", "\u0663"):
        rejected = client.get(f"/api/v1/results?limit={quote(limit)}")
        assert (rejected.status, "limit" in rejected.json["error"]) == (400, True)


def test_a_result_and_its_pods_are_served_as_stored(client: HttpClient, daemon: FakeDaemon, tmp_path: Path) -> None:
    """JSON, and one line of JSON per pod; a missing file is a 404."""
    for name, text in (("result.json", '{"run": "1"}'), ("pods.ndjson", '{"name": "a"}\n{"name": "b"}\n')):
        (tmp_path / name).write_text(text)
        daemon.result_files["lab", "load", "1", name] = str(tmp_path / name)
    whole = client.get("/api/v1/results/lab/load/1")
    assert (whole.headers["content-type"], whole.json) == ("application/json", {"run": "1"})
    pods = client.get("/api/v1/results/lab/load/1/pods")
    assert (pods.headers["content-type"], pods.body.count(b"\n")) == ("application/x-ndjson", 2)
    for path in ("lab/load/2", "lab/load/2/pods", "lab/../load/1", "%2e%2e/load/1", "lab/load/..%2f..%2fetc"):
        assert client.get(f"/api/v1/results/{path}").status == 404
