"""Cluster for benchmarks: a control plane, kwok, an informer, and a clean-up between rounds."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kwokfleet import settings
from kwokfleet.embedded import binaries, cluster, progress, state
from kwokfleet.kube import client, requests
from kwokfleet.kube.informer import informer
from tests.harness import control_plane, kwok, request_counts

POLL_S = 0.02
DEADLINE_S = 900
SELECTOR = "type=kwok"
"""Label of all nodes."""


@dataclass(frozen=True)
class BenchmarkCluster:
    """A control plane with an informer of its nodes."""

    plane: control_plane.ControlPlane
    api: client.KubeClient
    nodes: informer.Informer
    folder: Path
    data_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for programs that use this cluster."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KWOK")}
        return inherited | {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "KWOK_WORKDIR": str(self.data_dir.resolve()),
            "KWOKFLEET_DATA_DIR": str(self.data_dir),
        }

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Start a program on this cluster."""
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def run(self, *command: str, good: tuple[int, ...] = (0,)) -> float:
        """Run a program; return its duration."""
        began = time.monotonic()
        with self.start(*command) as process:
            _, stderr = process.communicate(timeout=DEADLINE_S)
        assert process.returncode in good, f"{command}: {process.returncode}: {stderr.decode()[-2000:]}"
        return time.monotonic() - began

    def milestones(self, count: int, *command: str) -> tuple[float, float, float]:
        """Run a program that creates nodes; return when it exited, and when all were Ready and schedulable."""
        began = time.monotonic()
        ended = ready = schedulable = 0.0
        with self.start(*command) as process:
            while not (ended and ready and schedulable):
                now = time.monotonic() - began
                assert now < DEADLINE_S, f"{command} did not get there"
                ended = ended or (now if process.poll() is not None else 0.0)
                nodes = self.nodes.view().objects.values()
                ready = ready or (now if sum(node.ready for node in nodes) >= count else 0.0)
                schedulable = schedulable or (now if sum(node.schedulable for node in nodes) >= count else 0.0)
                time.sleep(POLL_S)
            stderr = process.stderr.read().decode()[-2000:] if process.stderr else ""
            assert process.returncode == 0, f"{command}: {process.returncode}: {stderr}"
        return ended, ready, schedulable

    def wait(self, count: int) -> None:
        """Wait until *count* nodes are schedulable."""
        self.nodes.wait(lambda view: sum(node.schedulable for node in view.objects.values()) == count, DEADLINE_S)

    def delete_nodes(self, selector: str = SELECTOR) -> float:
        """Delete all nodes with one request; return the duration."""
        began = time.monotonic()
        while True:
            response = self.api.send(requests.Request("DELETE", f"/api/v1/nodes?labelSelector={quote(selector)}"), 120)
            if response.status == 200:
                break
            assert response.status == 504, response.message  # the API server ends requests after a minute
        self.nodes.wait(lambda view: not view.objects, DEADLINE_S)
        return time.monotonic() - began

    def rest(self) -> None:
        """Delete all nodes and wait until the control plane is idle."""
        self.delete_nodes()
        previous = -1
        for _ in range(60):
            time.sleep(1)
            now = sum(self.requests().values())
            if now - previous < 40:
                return
            previous = now

    def requests(self) -> Mapping[tuple[str, str], int]:
        """Return the request counts of the API server."""
        return request_counts.parse(self.plane.kubectl("get", "--raw", "/metrics"))


def kwokfleet() -> str:
    """Return the program under test."""
    return str(Path(sys.executable).with_name("kwokfleet"))


@contextmanager
def opened(*, driven: bool = True) -> Iterator[BenchmarkCluster]:
    """Run a cluster until the block ends, by default with kwok."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data_dir = folder / "data"
        config = settings.from_environment(os.environ | {"KWOKFLEET_DATA_DIR": str(data_dir)})
        tools = binaries.ensure(config, progress.discard)
        cluster.up(config, "bench", state.Spec(), progress.discard)
        plane = control_plane.ControlPlane(state.cluster_folder(data_dir, "bench"), tools)
        try:
            kwok.install_crds(plane)
            api = client.connect(kubeconfig=plane.kubeconfig)
            with _stages(plane), informer.Informer(api, (requests.NODE,), SELECTOR) as nodes:
                nodes.wait_until_synced(60)
                benchmark_cluster = BenchmarkCluster(plane, api, nodes, folder, data_dir)
                with separate_kwok(benchmark_cluster) if driven else nullcontext():
                    yield benchmark_cluster
        finally:
            cluster.down(config, "bench", progress.discard)


@contextmanager
def separate_kwok(cluster: BenchmarkCluster) -> Iterator[None]:
    """Run an unsupervised kwok until the block ends."""
    with kwok.running(cluster.plane, cluster.folder / "kwok", selector=SELECTOR, lease_s=40):
        yield


@contextmanager
def _stages(plane: control_plane.ControlPlane) -> Iterator[None]:
    """Create the default Stages, so that kwok does the same work for every contestant."""
    empty = "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: none}\nspec: {nodePools: []}\n"
    command = [kwokfleet(), "sync", "-", "--yes", "--kubeconfig", str(plane.kubeconfig)]
    subprocess.run(command, input=empty.encode(), check=True, capture_output=True)
    yield


def fleet(count: int) -> str:
    """Return a fleet file with *count* nodes."""
    return (
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: bench}\nspec:\n  nodePools:\n"
        f"    - name: general\n      replicas: {count}\n      resources: {{cpu: 32, memory: 256Gi, pods: 110}}\n"
        "      spread: {topology.kubernetes.io/zone: [a, b, c]}\n"
    )
