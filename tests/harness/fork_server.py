"""Fork server for the `kwokfleet` program: saves half a second of imports per command.

A preloaded process forks for each command. Each fork has its own arguments, environment, working directory,
standard streams and exit code. Tests of import behaviour must start Python themselves.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
START_S = 60
TIMEOUT_S = 120
_NUMBER = struct.Struct("!q")

Done = subprocess.CompletedProcess[str]


def run(arguments: list[str], environment: dict[str, str], *, folder: Path | None = None, stdin: str = "") -> Done:
    """Run a command to its end, or for *TIMEOUT_S*."""
    global _server  # noqa: PLW0603  # one per session
    if _server is None or _server.process.poll() is not None:
        _server = _Server.started()
    request = {"arguments": arguments, "environment": environment, "folder": str(folder or Path.cwd())}
    with tempfile.TemporaryFile() as input_file, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        input_file.write(stdin.encode())
        input_file.seek(0)
        try:
            code = _server.run_command(request, (input_file, out, err))
        except BaseException:  # the state of the channel is unknown
            _server.close()
            raise
        return Done(["kwokfleet", *arguments], code, _text(out), _text(err))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


@dataclass(frozen=True)
class _Server:
    """The forking process and its channel."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def started(cls) -> "_Server":
        parent_end, child_end = socket.socketpair()
        with child_end:
            command = [sys.executable, "-m", "tests.harness.fork_server", str(child_end.fileno())]
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[child_end.fileno()], stdin=null, stdout=null, start_new_session=True
            )
        server = cls(process, parent_end)
        atexit.register(server.close)
        return server

    def run_command(self, request: dict[str, Any], streams: tuple[IO[bytes], ...]) -> int:
        """Run a command; return its exit code."""
        body = json.dumps(request).encode()
        socket.send_fds(self.channel, [_NUMBER.pack(len(body))], [stream.fileno() for stream in streams])
        self.channel.sendall(body)
        self.channel.settimeout(START_S)
        pid = _number(self.channel)
        self.channel.settimeout(TIMEOUT_S)
        try:
            return _number(self.channel)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            return _number(self.channel)

    def close(self) -> None:
        """End it."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


_server: _Server | None = None


def _number(channel: socket.socket) -> int:
    return int(_NUMBER.unpack(_bytes(channel, _NUMBER.size))[0])


def _bytes(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise EOFError("connection closed")
        data += part
    return data


# ----------------------------------------------------------------------------------------
# server process


def _prepare() -> None:
    """Import all modules and build the validation models once."""
    import kwokfleet  # noqa: PLC0415  # not needed by the client
    from kwokfleet.source import loader  # noqa: PLC0415

    for module in pkgutil.walk_packages(kwokfleet.__path__, "kwokfleet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert loader.Loader().load(ROOT / "fleets" / "quickstart.yaml").usable
    gc.collect()
    gc.freeze()


def _serve(channel: socket.socket) -> None:
    """Run commands one after the other; returns in each forked process."""
    while True:
        first, streams, *_ = socket.recv_fds(channel, _NUMBER.size, 3)
        if not first:
            os._exit(0)
        request = json.loads(_bytes(channel, _NUMBER.unpack(first)[0]))
        pid = os.fork()
        if not pid:
            channel.close()
            _become(request, streams)
            return
        for stream in streams:
            os.close(stream)
        channel.sendall(_NUMBER.pack(pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        channel.sendall(_NUMBER.pack(code))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Set streams, environment, working directory and arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = [str(ROOT / "kwokfleet" / "__main__.py"), *request["arguments"]]


if __name__ == "__main__":
    _prepare()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("kwokfleet", run_name="__main__", alter_sys=True)
