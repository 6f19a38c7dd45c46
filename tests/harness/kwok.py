"""The real kwok, run against the session's control plane.

Each process manages the nodes of one label selector, so several can run at the same time. Stages come from files,
or without files from the cluster's custom resources.
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
        """Kill the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process with SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        for attempt in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, attempt)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
                return

    def log_tail(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def install_crds(cluster: control_plane.ControlPlane) -> None:
    """Install kwok's CRDs, unless present; return when they are established."""
    files = crds.files(settings.from_environment(os.environ), progress.discard)
    if _established(cluster) < len(files):
        named = [argument for path in files for argument in ("--filename", str(path))]
        cluster.kubectl("apply", "--server-side", "--force-conflicts", *named)
        waiting.until(lambda: _established(cluster) == len(files), deadline_s=START_S)


def _established(cluster: control_plane.ControlPlane) -> int:
    """Return the number of established kwok CRDs."""
    crd_manifests = [crd for crd in cluster.get("customresourcedefinitions")["items"] if crd["spec"]["group"] == GROUP]
    conditions = [condition for crd in crd_manifests for condition in crd["status"].get("conditions") or ()]
    return sum((condition["type"], condition["status"]) == ("Established", "True") for condition in conditions)


@contextmanager
def running(
    cluster: control_plane.ControlPlane,
    folder: Path,
    *,
    selector: str,
    stages: Sequence[Path] = (),
    lease_s: int = 0,
) -> Iterator[KwokProcess]:
    """Run kwok for the nodes of *selector*, with Stages from *stages* or else from the cluster.

    *lease_s* is the duration of a node lease; 0 disables leases.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    kwok = _start(cluster, folder, port, _arguments(selector, stages, lease_s))
    try:
        waiting.until(lambda: kwok.process.poll() is not None or _is_healthy(port), deadline_s=START_S)
        assert kwok.process.poll() is None, f"kwok exited with {kwok.process.returncode}"
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
            env=os.environ | {"KWOK_WORKDIR": str(folder)},  # not the user's configuration
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
