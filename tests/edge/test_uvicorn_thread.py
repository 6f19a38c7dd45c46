"""Start and stop of the HTTP server."""

import socket
import threading

import pytest

from kwokfleet import errors
from kwokfleet.server import http_server, uvicorn_thread
from tests.harness import fake_daemon
from tests.harness.fake_daemon import FakeDaemon


def test_a_stop_ends_all_threads_and_frees_the_port() -> None:
    """Another server can bind the port at once."""
    before = set(threading.enumerate())
    with fake_daemon.serving(FakeDaemon()) as client:
        client.get("/api/v1/plan")
        client.get("/api/v1/status")
        assert len(set(threading.enumerate()) - before) >= 3
        port = client.address[1]
    assert set(threading.enumerate()) <= before
    with fake_daemon.serving(FakeDaemon(), http_server.HttpOptions(port=port)) as client:
        assert client.address == ("127.0.0.1", port)


@pytest.mark.parametrize("sent", [b"", b"POST /hooks/git HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"])
def test_an_open_connection_does_not_delay_the_stop(sent: bytes) -> None:
    """Idle, or with an incomplete request."""
    before = set(threading.enumerate())
    options = http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(stop_s=1))
    with fake_daemon.serving(FakeDaemon(), options) as client:
        connection = socket.create_connection(client.address)
        connection.sendall(sent)
        assert client.get("/healthz").status == 200
    assert set(threading.enumerate()) <= before
    connection.close()


def test_an_unread_response_does_not_delay_the_stop() -> None:
    """The connection is aborted."""
    daemon = FakeDaemon(plan_json=" " * 30_000_000)
    with fake_daemon.serving(
        daemon, http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(stop_s=1))
    ) as client:
        connection = socket.create_connection(client.address, timeout=30)
        connection.sendall(b"GET /api/v1/plan HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1) == b"H"
    with connection, connection.makefile("rb") as response:
        assert len(response.read()) < len(daemon.plan_json)


def test_a_used_port_is_an_error() -> None:
    """With a hint, before the server starts."""
    with fake_daemon.serving(FakeDaemon()) as client, pytest.raises(errors.HostError) as raised:
        http_server.HttpServer(
            FakeDaemon(), lambda _: (b"", ""), lambda *_: None, http_server.HttpOptions(port=client.address[1])
        )
    assert "port 0" in raised.value.hint


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_a_foreign_address_is_an_error(host: str) -> None:
    """An invalid name, or an address of another machine."""
    with pytest.raises(errors.HostError, match="cannot listen"):
        http_server.HttpServer(FakeDaemon(), lambda _: (b"", ""), lambda *_: None, http_server.HttpOptions(host=host))
