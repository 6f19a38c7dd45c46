"""The HTTP server's life: it starts at once or says why not, and leaves nothing behind."""

import socket
import threading

import pytest

from kwokfleet import errors
from kwokfleet.server import http_server, uvicorn_thread
from tests.harness import fake_daemon
from tests.harness.fake_daemon import FakeDaemon


def test_nothing_is_left_behind() -> None:
    """No thread, and the port is free again, at once."""
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
def test_a_client_that_does_not_go_does_not_hold_up_the_stop(sent: bytes) -> None:
    """Whether it has said nothing or only half."""
    before = set(threading.enumerate())
    options = http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(stop_s=1))
    with fake_daemon.serving(FakeDaemon(), options) as client:
        connection = socket.create_connection(client.address)
        connection.sendall(sent)
        assert client.get("/healthz").status == 200
    assert set(threading.enumerate()) <= before
    connection.close()


def test_a_client_that_does_not_take_its_answer_does_not_hold_up_the_stop() -> None:
    """Its connection is broken off."""
    memory = FakeDaemon(answer=" " * 30_000_000)
    with fake_daemon.serving(
        memory, http_server.HttpOptions(deadlines=uvicorn_thread.ConnectionDeadlines(stop_s=1))
    ) as client:
        connection = socket.create_connection(client.address, timeout=30)
        connection.sendall(b"GET /api/v1/plan HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1) == b"H"
    with connection, connection.makefile("rb") as said:
        assert len(said.read()) < len(memory.answer)


def test_a_port_that_is_taken_is_said_at_once() -> None:
    """By an error of ours, with a hint, before anything has started."""
    with fake_daemon.serving(FakeDaemon()) as client, pytest.raises(errors.HostError) as raised:
        http_server.HttpServer(
            FakeDaemon(), lambda _: (b"", ""), lambda *_: None, http_server.HttpOptions(port=client.address[1])
        )
    assert "port 0" in raised.value.hint


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_said_at_once(host: str) -> None:
    """A name that means nothing, an address of somebody else."""
    with pytest.raises(errors.HostError, match="cannot listen"):
        http_server.HttpServer(FakeDaemon(), lambda _: (b"", ""), lambda *_: None, http_server.HttpOptions(host=host))
