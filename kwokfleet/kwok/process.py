"""A kwok process: started in a folder of its own, tied to our life, listened to, and ended in good order."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self

import psutil

from kwokfleet import errors, settings
from kwokfleet.kwok import exits, flags, log_lines, parent_death

STOP_S = 5.0
LOOK_S = 0.1
LOCK_FILE = "keeper.lock"
LAST_LOG_LINES = 40
"""Lines that are kept to tell why it ended."""
MOST_LOG_BYTES = 4 * 1024 * 1024
_KEPT_ENVIRONMENT = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "TZ")
_ANYWHERE = flags.ServerAddress("127.0.0.1", 0)

LogListener = Callable[[log_lines.LogLine], None]


@dataclass(frozen=True, slots=True)
class ProcessFolder:
    """Where a process keeps its files."""

    root: Path

    @property
    def config(self) -> Path:
        """Its configuration."""
        return self.root / "kwok.yaml"

    @property
    def log(self) -> Path:
        """What it said."""
        return self.root / "kwok.log"

    @property
    def pid(self) -> Path:
        """Who it is."""
        return self.root / "kwok.pid"


class KwokProcess:
    """A running kwok."""

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        folder: ProcessFolder,
        address: flags.ServerAddress,
        listener: LogListener,
    ) -> None:
        self._popen, self.folder, self.address, self.port = popen, folder, address, address.port
        self.pid, self.pod = popen.pid, ""
        self.began, self.since = time.monotonic(), datetime.now(UTC)
        self._last: deque[str] = deque(maxlen=LAST_LOG_LINES)
        self._asked = False
        self._listener = listener
        self._reader = threading.Thread(target=self._listen, name=f"kwok-log-{popen.pid}", daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        """Read all that it says for as long as it lives: a pipe that nobody reads would stop it."""
        stream = self._popen.stderr
        if stream is None:
            return
        with stream, _Log(self.folder.log) as log:
            for raw in stream:
                log.write(raw)
                text = raw.decode(errors="replace").rstrip("\n")
                self._last.append(text)
                self._listener(log_lines.parse_log_line(text))

    @property
    def until(self) -> datetime:
        """Now: the next one begins when somebody starts it."""
        return datetime.now(UTC)

    @property
    def ran_s(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.began

    def ended(self) -> exits.ExitReason | None:
        """Return why it ended, None while it lives."""
        code = self._popen.poll()
        if code is None:
            return None
        self._reader.join(STOP_S)
        return exits.exit_reason(code, "\n".join(self._last), asked=self._asked)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """Return the last thing it said that sounds like an error, or the last at all."""
        return log_lines.last_error(self._last)

    def lacks(self) -> str:
        """Return nothing: a process is there at once."""
        return ""

    def place(self, nodes: AbstractSet[str]) -> None:
        """Do nothing: the files say where processes of this machine answer."""

    def is_healthy(self) -> bool:
        """Return whether its server answers: it says ok from its start on, whatever happens later."""
        try:
            with urllib.request.urlopen(f"http://{self.address.near.text}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004 - OK
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def memory(self) -> int:
        """Return the bytes it holds, 0 if it is gone."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def stop(self) -> None:
        """End it: by one signal, and if it does not listen, by force."""
        self._asked = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            if self.wait(STOP_S):
                break
        self._reader.join(STOP_S)
        self.folder.pid.unlink(missing_ok=True)


def start(  # noqa: PLR0913 - what a process is made of
    program: Path,
    arguments: Sequence[str],
    *,
    kubeconfig: Path | None,
    folder: ProcessFolder,
    config: str,
    listener: LogListener,
    address: flags.ServerAddress = _ANYWHERE,
) -> KwokProcess:
    """Start kwok in a folder of its own, with nothing of the user's mixed in."""
    folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.config.write_text(config)
    at = address if address.port else flags.ServerAddress(address.host, free_port())
    command = [str(program), *arguments, f"--config={folder.config}", f"--server-address={at.text}"]
    command += [f"--kubeconfig={kubeconfig.absolute()}"] if kubeconfig else []
    try:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command],
            env=_environment(folder, kubeconfig),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own: Ctrl-C is ours to handle
        )
    except OSError as error:
        raise errors.HostError(f"cannot run {program}: {error.strerror}", hint="kwokfleet cluster binaries") from error
    write_record(folder, popen.pid)
    return KwokProcess(popen, folder, at, listener)


def _environment(folder: ProcessFolder, kubeconfig: Path | None) -> dict[str, str]:
    """Return what kwok may know of the world: a kwok.yaml in the user's home would be merged in, unasked."""
    in_pod = kubeconfig is None
    inherited = settings.child_environment(
        lambda name: name.upper() in _KEPT_ENVIRONMENT or (in_pod and name.startswith("KUBERNETES_SERVICE_"))
    )
    return inherited | {"KWOK_WORKDIR": str(folder.root)}


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What is written down of a process, for a later life of ours."""

    pid: int
    began: float
    """When it began: tells it from a stranger of the same number."""
    identity: str = ""
    """The name under which it holds leases."""

    def is_alive(self) -> bool:
        """Return whether that very process still runs."""
        try:
            found = psutil.Process(self.pid)
            return abs(found.create_time() - self.began) < 1 and found.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def write_record(folder: ProcessFolder, pid: int, identity: str = "") -> None:
    """Write down who runs here."""
    with suppress(psutil.Error, OSError):
        began = psutil.Process(pid).create_time()
        part = folder.pid.with_suffix(".part")
        part.write_text(json.dumps({"pid": pid, "began": began, "identity": identity}))
        part.replace(folder.pid)


def read_record(folder: ProcessFolder) -> ProcessRecord | None:
    """Return what was written down last, None if nothing was."""
    try:
        found = json.loads(folder.pid.read_text())
        return ProcessRecord(int(found["pid"]), float(found["began"]), str(found.get("identity", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kill_orphan(folder: ProcessFolder) -> str:
    """End the process of a former life of ours, if it still runs; return the name under which it held leases."""
    left = read_record(folder)
    if left is None:
        return ""
    if left.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(left.pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_S
        while left.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    return left.identity


def lock_folder(root: Path) -> IO[str]:
    """Take a folder for ourselves until the file this returns is closed; raise if another kwokfleet has it."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (root / LOCK_FILE).open("a+")
    try:
        _lock(lock)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "?"
        lock.close()
        raise errors.NotOursError(
            f"another kwokfleet (pid {holder}) looks after kwok for this cluster on this machine",
            hint="kwokfleet kwok status shows it; end it first",
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _lock(file: IO[str]) -> None:
    """Lock a file; raise if somebody else has it. Whoever only looks has it for a moment."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(LOOK_S)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(root: Path) -> bool:
    """Tell whether somebody who lives has claimed a folder."""
    try:
        with (root / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def free_port() -> int:
    """Return a port of loopback that nobody uses now; kwok says so if somebody took it meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class _Log:
    """A file that begins anew when it has grown too large; the one before is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sink = path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._sink.close()

    def write(self, line: bytes) -> None:
        if self._sink.tell() > MOST_LOG_BYTES:
            self._sink.close()
            self._path.replace(self._path.with_suffix(".old.log"))
            self._sink = self._path.open("ab")
        self._sink.write(line)
        self._sink.flush()
