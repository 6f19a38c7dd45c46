"""Recovery from a killed kwok and from an edited Stage, compared with manual operation."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from pathlib import Path

import psutil

from kwokfleet import app
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kwok import lease_client, supervisor
from tests.bench import table
from tests.harness import cli, control_plane, kwok, waiting

SIZE = int(os.environ.get("BENCH_KWOK_NODES", "500"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
LEASE_S = 40
PEER, OURS = "kwok in a shell loop", "kwokfleet kwok run"
POLL_S = 0.02
PATIENCE_S = 180
NEVER_S = 30.0
"""How long is waited for what never happens."""
FILE = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: bench}}
spec:
  nodePools: [{{name: pool, replicas: {size}, taint: false}}]
  lifecycles: [{{name: work, pod: {{ready: 0s, complete: {{after: {after}, when: always}}}}}}]
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{leaseDuration: {lease}s}}
"""


@dataclass
class KwokBenchmark:
    """A cluster with a fleet, without kwok."""

    plane: control_plane.ControlPlane
    program: cli.Cli
    api: client.KubeClient
    folder: Path
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def file(self) -> Path:
        """The fleet file."""
        return self.folder / "fleet.yaml"

    def write(self, after: str) -> None:
        """Write the fleet file with the time until pods complete."""
        self.file.write_text(FILE.format(size=SIZE, after=after, lease=LEASE_S))

    def sync(self) -> None:
        """Sync the fleet file."""
        # A new process, as for a user: the harness would use a preloaded one.
        command = [sys.executable, "-m", "kwokfleet", "sync", str(self.file), "--yes"]
        subprocess.run(command, env=self.program.environment, check=True, capture_output=True)

    def new_pod(self) -> str:
        """Create a pod on one of the nodes."""
        number = next(self.numbers)
        metadata = {"name": f"pod-{number}", "labels": {"kwokfleet.dev/lifecycle": "bench.work"}}
        spec = {
            "nodeName": f"bench-pool-{number * 7 % SIZE}",
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        path = requests.collection(requests.POD, "default")
        response = self.api.send(requests.Request("POST", path, json.dumps(body).encode()))
        assert response.status == HTTPStatus.CREATED, response.message
        return f"pod-{number}"

    def phase(self, pod: str) -> str:
        """Return a pod's phase."""
        manifest = self.api.send(requests.get(ObjectKey("v1", "Pod", "default", pod))).json()
        return str((manifest.get("status") or {}).get("phase"))

    def until(self, pod: str, phase: str, began: float, at_most_s: float = PATIENCE_S) -> float:
        """Return the seconds from *began* until a pod is in a phase; at most *at_most_s*."""
        while self.phase(pod) != phase:
            if time.monotonic() - began > at_most_s:
                return at_most_s
            time.sleep(POLL_S)
        return time.monotonic() - began

    def holders(self) -> set[str]:
        """Return the holders of the node leases; empty unless every node has one."""
        held = lease_client.held_leases(self.api)
        return {lease.holder for lease in held} if len(held) == SIZE else set()


def run() -> list[table.Result]:
    """Measure both on one cluster."""
    with _opened() as lab:
        with _supervised(lab) as pid:
            kills = [_kill_recovery(lab, pid, OURS) for _ in range(ROUNDS)]
            edits = [_edit_latency(lab, _by_sync, PATIENCE_S) for _ in range(ROUNDS)]
            table.print_progress(f"file saved and synced: {', '.join(f'{seconds:.2f}' for seconds in edits)}")
            by_hand = [_edit_latency(lab, _by_kubectl, NEVER_S)]
            table.print_progress(f"kubectl apply: {by_hand[0]:.2f}")
        waiting.until(lambda: not lease_client.held_leases(lab.api))
        with _shell_loop(lab) as pid:
            peers = [_kill_recovery(lab, pid, PEER) for _ in range(max(1, ROUNDS - 1))]
    never = f"kubectl apply of the Stage (not within {NEVER_S:g} s: never)"
    return [
        *(
            table.Result(
                f"kill -9 of kwok under {SIZE} nodes with leases of {LEASE_S} s, until {what}", "s",
                {PEER: [sample[index] for sample in peers], OURS: [sample[index] for sample in kills]}, (PEER,), goal,
            )
            for index, (what, goal) in enumerate((
                ("a new pod runs", "at most 5 s; about every second kwok does not ask who holds a pod's node"),
                ("all nodes are driven", "at most 5 s; by itself kwok waits until the dead one's leases expire"),
            ))
        ),
        table.Result(
            f"A Stage is edited, until a pod that runs follows, {SIZE} nodes", "s",
            {never: by_hand, "file saved, kwokfleet sync": edits}, (never,),
            "at most 2 s, without a restart of kwok; by itself kwok does not look again at objects that are there",
        ),
    ]  # fmt: skip


@contextmanager
def _opened() -> Iterator[KwokBenchmark]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for plane in control_plane.running("bench-kwok"):
            for program in cli.isolated(folder):
                kwok.install_crds(plane)
                named = cli.Cli(program.data_dir, program.environment | {"KUBECONFIG": str(plane.kubeconfig)})
                with closing(client.connect(kubeconfig=plane.kubeconfig)) as api:
                    lab = KwokBenchmark(plane, named, api, folder)
                    lab.write("10h")
                    lab.sync()
                    yield lab


Pid = Callable[[], int]
"""Returns the kwok process that runs now, 0 if none does."""


@contextmanager
def _supervised(lab: KwokBenchmark) -> Iterator[Pid]:
    """Run kwok with kwokfleet."""
    status_folder = app.kwok_folder(lab.program.data_dir, lab.api.host)
    command = [sys.executable, "-m", "kwokfleet", "kwok", "run", str(lab.file)]
    with subprocess.Popen(command, env=lab.program.environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield lambda: next((status.pid for status in supervisor.read_status(status_folder) or ()), 0)
        finally:
            process.terminate()


@contextmanager
def _shell_loop(lab: KwokBenchmark) -> Iterator[Pid]:
    """Run kwok in a shell loop."""
    words = [
        str(lab.plane.tools.path("kwok")), f"--kubeconfig={lab.plane.kubeconfig}", "--enable-crds=Stage",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", f"--node-lease-duration-seconds={LEASE_S}",
    ]  # fmt: skip
    loop = f"while :; do {' '.join(words)} >/dev/null 2>&1; done"
    environment = lab.program.environment | {"KWOK_WORKDIR": str(lab.folder / "kwok")}
    with subprocess.Popen(["/bin/sh", "-c", loop], env=environment, start_new_session=True) as process:
        shell = psutil.Process(process.pid)
        try:
            yield lambda: next((child.pid for child in shell.children()), 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _kill_recovery(lab: KwokBenchmark, pid: Pid, name: str) -> tuple[float, float]:
    """Kill kwok; return when a new pod runs and when all leases are renewed."""
    waiting.until(lambda: pid() and len(lab.holders()) == 1, deadline_s=PATIENCE_S)
    lab.until(lab.new_pod(), "Running", time.monotonic())
    before = lab.holders()
    began = time.monotonic()
    os.kill(pid(), signal.SIGKILL)
    runs = lab.until(lab.new_pod(), "Running", began)
    waiting.until(lambda: (now := lab.holders()) and not now & before, deadline_s=PATIENCE_S)
    driven = time.monotonic() - began
    table.print_progress(f"{name}: a new pod runs after {runs:.2f} s, all nodes are driven after {driven:.2f} s")
    return runs, driven


def _edit_latency(lab: KwokBenchmark, edit: Callable[[KwokBenchmark], None], at_most_s: float) -> float:
    """Edit a Stage of a running pod; return when the pod has changed."""
    lab.write("10h")
    lab.sync()
    pod = lab.new_pod()
    lab.until(pod, "Running", time.monotonic())
    began = time.monotonic()
    lab.write("0s")
    edit(lab)
    return lab.until(pod, "Succeeded", began, at_most_s)


def _by_sync(lab: KwokBenchmark) -> None:
    lab.sync()


def _by_kubectl(lab: KwokBenchmark) -> None:
    lab.plane.kubectl("apply", "-f", "-", stdin=lab.program.ok("render", str(lab.file), "--kind", "Stage"))
