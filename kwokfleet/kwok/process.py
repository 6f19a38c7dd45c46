"""A kwok process: starts in its own folder, ends with its parent, and its log is read."""

import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import psutil

from kwokfleet import errors, settings
from kwokfleet.kwok import exits, flags, log_lines, parent_death

STOP_TIMEOUT_S = 5.0
LOCK_RETRY_S = 0.1
LOCK_FILE, CONFIG_FILE, LOG_FILE, RECORD_FILE = "keeper.lock", "kwok.yaml", "kwok.log", "kwok.pid"
LAST_LOG_LINES = 40
"""Log lines that are kept for the exit reason."""
MAX_LOG_BYTES = 4 * 1024 * 1024
_PASSED_ENVIRONMENT = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "TZ")

LogListener = Callable[[log_lines.LogLine], None]


class KwokProcess:
    """A local kwok process."""

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        folder: Path,
        address: flags.ServerAddress,
        listener: LogListener,
    ) -> None:
        self._popen, self.folder, self.address, self.port = popen, folder, address, address.port
        self.pid, self.pod = popen.pid, ""
        self._began, self.started_at = time.monotonic(), datetime.now(UTC)
        self._last_lines: deque[str] = deque(maxlen=LAST_LOG_LINES)
        self._stop_requested = False
        self._listener = listener
        self._reader = threading.Thread(target=self._read_log, name=f"kwok-log-{popen.pid}", daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        """Read the log until the process exits: a full pipe would block it."""
        stream = self._popen.stderr
        if stream is None:
            return
        with stream, closing(_Log(self.folder / LOG_FILE)) as log:
            for raw in stream:
                log.write(raw)
                text = raw.decode(errors="replace").rstrip("\n")
                self._last_lines.append(text)
                self._listener(log_lines.parse_log_line(text))

    @property
    def replaced_at(self) -> datetime:
        """Now: the next process has not started."""
        return datetime.now(UTC)

    @property
    def ran_s(self) -> float:
        """The run time."""
        return time.monotonic() - self._began

    def exit_reason(self) -> exits.ExitReason | None:
        """Return why it exited; None while it runs."""
        code = self._popen.poll()
        if code is None:
            return None
        self._reader.join(STOP_TIMEOUT_S)
        return exits.exit_reason(code, "\n".join(self._last_lines), asked=self._stop_requested)

    def last_error(self) -> str:
        """Return the last error of its log."""
        return log_lines.last_error(self._last_lines)

    def not_running_reason(self) -> str:
        """Return "": a process runs at once."""
        return ""

    def publish_address(self, nodes: AbstractSet[str]) -> None:
        """Do nothing: the files fix the address of local processes."""

    def is_healthy(self) -> bool:
        """Return whether its server responds; it always reports ok after the start."""
        try:
            with urllib.request.urlopen(f"http://{self.address.local.text}/healthz", timeout=2) as response:
                return bool(response.status == 200)  # noqa: PLR2004 - OK
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def memory_bytes(self) -> int:
        """Return its resident memory; 0 after its exit."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def stop(self) -> None:
        """Stop it with SIGTERM, and after a timeout with SIGKILL."""
        self._stop_requested = True
        for stop_signal in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(STOP_TIMEOUT_S)
                break
        self._reader.join(STOP_TIMEOUT_S)
        (self.folder / RECORD_FILE).unlink(missing_ok=True)


def start(  # noqa: PLR0913  # program, files, address
    program: Path,
    arguments: Sequence[str],
    *,
    kubeconfig: Path | None,
    folder: Path,
    config: str,
    listener: LogListener,
    address: flags.ServerAddress,
) -> KwokProcess:
    """Start kwok in its folder, without the user's own kwok configuration."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    config_file = folder / CONFIG_FILE
    config_file.write_text(config)
    bound = address if address.port else flags.ServerAddress(address.host, free_port())
    command = [str(program), *arguments, f"--config={config_file}", f"--server-address={bound.text}"]
    command += [f"--kubeconfig={kubeconfig.absolute()}"] if kubeconfig else []
    try:
        popen = subprocess.Popen(
            parent_death.command(command),
            env=_environment(folder, kubeconfig),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its own process group: kwokfleet handles Ctrl-C
        )
    except OSError as error:
        raise errors.HostError(
            f"cannot run {program}: {error.strerror}", hint="install it: kwokfleet cluster binaries"
        ) from error
    write_record(folder, popen.pid)
    return KwokProcess(popen, folder, bound, listener)


def _environment(folder: Path, kubeconfig: Path | None) -> dict[str, str]:
    """Return the environment of kwok; KWOK_WORKDIR, because kwok would merge a kwok.yaml of the user's home."""
    in_pod = kubeconfig is None
    inherited = settings.child_environment(
        lambda name: name.upper() in _PASSED_ENVIRONMENT or (in_pod and name.startswith("KUBERNETES_SERVICE_"))
    )
    return inherited | {"KWOK_WORKDIR": str(folder)}


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Record of a process for a later kwokfleet process."""

    pid: int
    began: float
    """Its creation time: a PID may be used again."""
    identity: str = ""
    """Its lease holder identity."""

    def is_alive(self) -> bool:
        """Return whether this process still runs."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.began) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def write_record(folder: Path, pid: int, identity: str = "") -> None:
    """Write the record of a process."""
    with suppress(psutil.Error, OSError):
        began = psutil.Process(pid).create_time()
        part = (folder / RECORD_FILE).with_suffix(".part")
        part.write_text(json.dumps({"pid": pid, "began": began, "identity": identity}))
        part.replace(folder / RECORD_FILE)


def read_record(folder: Path) -> ProcessRecord | None:
    """Return the last record; None without one."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text())
        return ProcessRecord(int(record["pid"]), float(record["began"]), str(record.get("identity", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kill_orphan(folder: Path) -> str:
    """Kill the process of an earlier kwokfleet process, if it still runs; return its lease holder identity."""
    record = read_record(folder)
    if record is None:
        return ""
    if record.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(record.pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while record.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    return record.identity


def lock_folder(root: Path) -> IO[str]:
    """Lock a folder until the returned file is closed; raise if another kwokfleet has locked it."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (root / LOCK_FILE).open("a+")
    try:
        _lock(lock)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "?"
        lock.close()
        raise errors.NotOursError(
            f"another kwokfleet (pid {holder}) runs kwok for this cluster on this machine",
            hint="stop it first; `kwokfleet kwok status` shows it",
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _lock(file: IO[str]) -> None:
    """Lock a file; raise if it is locked. `is_locked` holds the lock for a moment, so try twice."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(LOCK_RETRY_S)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(root: Path) -> bool:
    """Return whether a running kwokfleet has locked a folder."""
    try:
        with (root / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def free_port() -> int:
    """Return a free loopback port; if another program takes it first, kwok exits with that reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class _Log:
    """Log file with one rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sink = path.open("ab")

    def close(self) -> None:
        self._sink.close()

    def write(self, line: bytes) -> None:
        if self._sink.tell() > MAX_LOG_BYTES:
            self._sink.close()
            self._path.replace(self._path.with_suffix(".old.log"))
            self._sink = self._path.open("ab")
        self._sink.write(line)
        self._sink.flush()
