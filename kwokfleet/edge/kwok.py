"""A kwok process: started in a folder of its own, tied to our life, listened to, and ended in good order."""

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kwokfleet import errors
from kwokfleet.core import kwok

STOP_S = 5.0
LAST_WORDS = 40
"""Lines that are kept to tell why it ended."""
MOST_LOG_BYTES = 4 * 1024 * 1024
_TETHER = Path(__file__).with_name("tether.py")
_KEPT_ENVIRONMENT = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "TZ")
_ANYWHERE = kwok.Address("127.0.0.1", 0)

Listener = Callable[[kwok.Line], None]


@dataclass(frozen=True, slots=True)
class Folder:
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


class Process:
    """A running kwok."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", folder: Folder, address: kwok.Address, listener: Listener
    ) -> None:
        self._popen, self.folder, self.address, self.port = popen, folder, address, address.port
        self.pid = popen.pid
        self.began = time.monotonic()
        self._last: deque[str] = deque(maxlen=LAST_WORDS)
        self._asked = False
        self._listener = listener
        self._reader = threading.Thread(target=self._listen, name=f"kwok-log-{popen.pid}", daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        """Read all that it says for as long as it lives: a pipe that nobody reads would stop it."""
        stream = self._popen.stderr
        if stream is None:
            return
        with stream, self.folder.log.open("ab") as sink:
            for raw in stream:
                if sink.tell() < MOST_LOG_BYTES:
                    sink.write(raw)
                    sink.flush()
                else:
                    _turned(self.folder.log)
                    sink.close()
                    sink = self.folder.log.open("ab")  # noqa: PLW2901 - the next file of the same log
                text = raw.decode(errors="replace").rstrip("\n")
                self._last.append(text)
                self._listener(kwok.line(text))

    @property
    def ran_s(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.began

    def ended(self) -> kwok.Ending | None:
        """Return why it ended, None while it lives."""
        code = self._popen.poll()
        if code is None:
            return None
        self._reader.join(STOP_S)
        return kwok.ending(code, "\n".join(self._last), asked=self._asked)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """Return the last thing it said that sounds like an error, or the last at all."""
        lines = [kwok.line(text) for text in self._last]
        bad = [each for each in lines if each.level == "error"] or lines
        if not bad:
            return "it said nothing"
        error = bad[-1].keys.get("err") or bad[-1].keys.get("error")
        return f"{bad[-1].event}: {error}" if error else bad[-1].event

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
    folder: Folder,
    config: str,
    listener: Listener,
    address: kwok.Address = _ANYWHERE,
) -> Process:
    """Start kwok in a folder of its own, with nothing of the user's mixed in."""
    folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.config.write_text(config)
    at = address if address.port else kwok.Address(address.host, free_port())
    command = [str(program), *arguments, f"--config={folder.config}", f"--server-address={at.text}"]
    command += [f"--kubeconfig={kubeconfig.absolute()}"] if kubeconfig else []
    try:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command],
            env=_environment(folder, kubeconfig),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own: Ctrl-C is ours to handle
        )
    except OSError as error:
        raise errors.HostError(f"cannot run {program}: {error.strerror}", hint="kwokfleet cluster binaries") from error
    _note(folder, popen.pid)
    return Process(popen, folder, at, listener)


def _environment(folder: Folder, kubeconfig: Path | None) -> dict[str, str]:
    """Return what kwok may know of the world: a kwok.yaml in the user's home would be merged in, unasked."""
    kept = {name: value for name, value in os.environ.items() if name.upper() in _KEPT_ENVIRONMENT}
    if kubeconfig is None:
        kept |= {name: value for name, value in os.environ.items() if name.startswith("KUBERNETES_SERVICE_")}
    return kept | {"KWOK_WORKDIR": str(folder.root)}


def _note(folder: Folder, pid: int) -> None:
    """Write down who runs here, so that a later life of ours knows it from a stranger of the same number."""
    with suppress(psutil.Error):
        began = psutil.Process(pid).create_time()
        folder.pid.write_text(json.dumps({"pid": pid, "began": began, "keeper": os.getpid()}))


def running(folder: Folder) -> int | None:
    """Return the number of the kwok that runs in a folder, None if none does."""
    try:
        noted = json.loads(folder.pid.read_text())
        found = psutil.Process(noted["pid"])
        alive = found.is_running() and found.status() != psutil.STATUS_ZOMBIE
        return int(noted["pid"]) if alive and abs(found.create_time() - noted["began"]) < 1 else None
    except (OSError, ValueError, KeyError, psutil.Error):
        return None


def free_port() -> int:
    """Return a port of loopback that nobody uses now; kwok says so if somebody took it meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _turned(log: Path) -> None:
    """Begin a new log, and keep the last."""
    with suppress(OSError):
        log.replace(log.with_suffix(".old.log"))
