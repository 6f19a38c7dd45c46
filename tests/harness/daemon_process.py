"""`kwokfleet run` in another process: its log, its HTTP API, its exit."""

import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.harness import cli, waiting

STOP_S = 60
START_S = 60
TOKEN = "a-token-for-tests"  # noqa: S105  # not secret


class DaemonProcess:
    """A running daemon."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log_entries(self) -> list[dict[str, Any]]:
        """Its log entries."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the log entries of one event name."""
        return [entry for entry in self.log_entries if entry["event"] == kind]

    @property
    def url(self) -> str:
        """The URL of its HTTP server."""
        return str(waiting.until(lambda: self.events("http_listening"), deadline_s=START_S)[0]["url"])

    def get(self, path: str) -> Any:  # noqa: ANN401  # JSON
        """Return the JSON response of a path."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """Return the response text of a path."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:  # noqa: S310  # loopback
            return str(response.read().decode())

    def post(self, path: str, body: object | None = None, token: str = TOKEN) -> int:
        """Send a POST request with the token; return the status."""
        data = json.dumps(body).encode() if body is not None else b""
        return self.send(path, data, {"Authorization": f"Bearer {token}"} if token else {})

    def send(self, path: str, data: bytes, headers: dict[str, str]) -> int:
        """Send a POST request; return the status."""
        headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method="POST")  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  # loopback
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    @property
    def is_leader(self) -> bool:
        """Whether it is the leader."""
        return bool(self.get("/api/v1/status")["role"] == "leading")

    @property
    def is_synced(self) -> bool:
        """Whether the cluster is in sync with the files."""
        return bool(self.get("/api/v1/status")["synced"])

    def wait_synced(self) -> None:
        """Wait until it is synced; fail if it exits."""
        waiting.until(lambda: self.process.poll() is not None or self.is_synced, deadline_s=START_S)
        assert self.process.poll() is None, self.lines

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        with self.process:  # waits, and closes its pipes
            self._reader.join(STOP_S)

    def stop(self) -> int:
        """Stop it with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(STOP_S)
        return code


def start(
    program: cli.Cli, *arguments: str, kwok: bool = False, variables: Mapping[str, str] | None = None
) -> DaemonProcess:
    """Start a daemon."""
    flags = [*arguments, "--listen", "127.0.0.1:0", *([] if kwok else ["--no-kwok"])]
    return DaemonProcess(program.start("run", *flags, **{"KWOKFLEET_TOKEN": TOKEN, **(variables or {})}))


@contextmanager
def running(
    program: cli.Cli, *arguments: str, kwok: bool = False, variables: Mapping[str, str] | None = None
) -> Iterator[DaemonProcess]:
    """Run a daemon until the block ends."""
    daemon = start(program, *arguments, kwok=kwok, variables=variables)
    with daemon.process:
        try:
            yield daemon
        except BaseException as exc:
            exc.add_note("log of the daemon:\n" + "\n".join(daemon.lines[-40:]))
            raise
        finally:
            daemon.stop()
