"""The thread of one shard: stop requests and memory reads while kwok exits."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kwok import backend, flags, pod_backend, shard, sharding
from tests.harness import waiting

JOIN_S = 10


class _StoppedBeforeStart(shard.ShardRunner):
    """A runner that is stopped right after its decision to start kwok."""

    def _may_start(self) -> bool:
        may_start = super()._may_start()
        self.stop()
        return may_start


class _Backend:
    """Records starts; nothing runs."""

    restarts_itself = True

    def stop_orphan(self) -> str:
        return ""

    def start(self, *_args: object) -> Any:  # noqa: ANN401  # a kwok that does not exit
        kwok = Mock(spec=pod_backend.PodKwok, pod="kwok-0", port=0, pid=0, ran_s=0.0)
        kwok.exit_reason.return_value = None
        return kwok

    def record_identity(self, pid: int, identity: str) -> None:
        del pid, identity

    def owns_holder(self, holder: str) -> bool:
        del holder
        return False


def test_a_stop_right_before_the_start_of_kwok_ends_the_thread() -> None:
    """The stop must not be taken for an earlier restart request: the supervisor would wait forever."""
    spec = KwokControllerSpec.model_validate({})
    api = Mock()
    api.send.side_effect = errors.UnreachableError("no response")
    runner = _StoppedBeforeStart(
        api, backend.DesiredKwok(Path("kwok"), spec, None), sharding.shard_spec(spec, 0), _Backend(), list, Mock()
    )
    runner.start()
    runner.join(JOIN_S)
    assert not runner.is_alive()


def test_an_unexpected_error_does_not_end_the_thread() -> None:
    """It is shown in the status, and kwok is started again after a pause."""
    spec = KwokControllerSpec.model_validate({})
    failing = Mock(spec=_Backend)
    failing.stop_orphan.return_value = ""
    failing.start.side_effect = KeyError("pod")
    runner = shard.ShardRunner(
        Mock(), backend.DesiredKwok(Path("kwok"), spec, None), sharding.shard_spec(spec, 0), failing, list, Mock()
    )
    runner.start()
    waiting.until(lambda: runner.status.state is shard.ShardState.REFUSED)
    assert runner.is_alive()
    assert "pod" in runner.status.why
    runner.stop()
    runner.join(JOIN_S)
    assert not runner.is_alive()


@pytest.fixture
def response(request: pytest.FixtureRequest) -> Iterator[flags.ServerAddress]:
    """Serve one response, byte by byte as the parameter says, then close the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(request.param)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield flags.ServerAddress("127.0.0.1", listener.getsockname()[1])
        thread.join(JOIN_S)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n# HELP",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n# HELP",
        b"HTTP/1.1 2",
        b"",
    ],
    indirect=True,
)
def test_memory_is_unknown_if_kwok_exits_during_its_response(response: flags.ServerAddress) -> None:
    """An incomplete response must not end the thread that supervises kwok."""
    assert pod_backend.read_memory_bytes(response) is None


@pytest.mark.parametrize(
    "response",
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na 1\nprocess_resident_memory_bytes 1.048576e+06\n"],
    indirect=True,
)
def test_memory_is_read_from_the_metrics_of_kwok(response: flags.ServerAddress) -> None:
    """The value is in Go's number format."""
    assert pod_backend.read_memory_bytes(response) == 1 << 20
