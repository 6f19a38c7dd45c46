"""The real kwok, run against the session's control plane for the time of a test.

Each one manages the nodes that a label selector finds, so that several run side by side: those of
different tests, and those with different Stages. Stages come from files, read at the start and known
to this kwok alone; or, if none are named, from the cluster's custom resources, which all see.
"""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import settings
from kwokfleet.embedded import crds, progress
from tests.harness import control_plane, waiting

START_S = 30
STOP_S = 10
TAIL_LINES = 40
GROUP = "kwok.x-k8s.io"


@dataclass(frozen=True)
class KwokProcess:
    """A running kwok."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End it as a crash would: nothing is finished, nothing is handed over."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        for attempt in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, attempt)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
                return

    def log_tail(self) -> str:
        """Return the end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def install_crds(cluster: control_plane.ControlPlane) -> None:
    """Give the cluster kwok's kinds, unless it has them, and return once it knows them."""
    files = crds.files(settings.from_environment(os.environ), progress.discard)
    if _established(cluster) < len(files):
        named = [argument for path in files for argument in ("--filename", str(path))]
        cluster.kubectl("apply", "--server-side", "--force-conflicts", *named)
        waiting.until(lambda: _established(cluster) == len(files), deadline_s=START_S)


def _established(cluster: control_plane.ControlPlane) -> int:
    """Count kwok's kinds that the cluster serves."""
    kinds = [each for each in cluster.get("customresourcedefinitions")["items"] if each["spec"]["group"] == GROUP]
    conditions = [each for kind in kinds for each in kind["status"].get("conditions") or ()]
    return sum((each["type"], each["status"]) == ("Established", "True") for each in conditions)


@contextmanager
def running(
    cluster: control_plane.ControlPlane,
    folder: Path,
    *,
    selector: str,
    stages: Sequence[Path] = (),
    lease_s: int = 0,
) -> Iterator[KwokProcess]:
    """Run kwok for the nodes that *selector* finds, by the Stages of *stages* or else of the cluster.

    *lease_s* is how long a node's Lease lasts; 0 is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    kwok = _start(cluster, folder, port, _arguments(selector, stages, lease_s))
    try:
        waiting.until(lambda: kwok.process.poll() is not None or _is_healthy(port), deadline_s=START_S)
        assert kwok.process.poll() is None, f"kwok ended at once, with {kwok.process.returncode}"
        yield kwok
    except BaseException as exc:
        exc.add_note(f"log of kwok ({selector}):\n{kwok.log_tail()}")
        raise
    finally:
        kwok.stop()


def _arguments(selector: str, stages: Sequence[Path], lease_s: int) -> list[str]:
    source = [f"--config={path}" for path in stages] or ["--enable-crds=Stage"]
    return [*source, f"--manage-nodes-with-label-selector={selector}", f"--node-lease-duration-seconds={lease_s}"]


def _start(cluster: control_plane.ControlPlane, folder: Path, port: int, arguments: list[str]) -> KwokProcess:
    log = folder / "kwok.log"
    command = [str(cluster.tools.path("kwok")), f"--kubeconfig={cluster.kubeconfig}"]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, f"--server-address=127.0.0.1:{port}", *arguments],
            env=os.environ | {"KWOK_WORKDIR": str(folder)},  # else it would read the user's own configuration
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    return KwokProcess(process, log)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
