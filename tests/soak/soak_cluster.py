"""Cluster, fleet file and `kwokfleet kwok run` of the soak test, and its actions."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kwokfleet import app
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client
from kwokfleet.kwok import external, lease_health, shard, supervisor
from tests.harness import cli, control_plane, kwok, waiting
from tests.soak.samples import Sample

FLEET = "soak"
PODS = 20
SETTLE_S = 120
READINGS, READING_INTERVAL_S = 5, 0.1
"""A sample is the minimum of several readings: peaks are short, leaks stay."""
FILE = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: soak}}
spec:
  nodePools: [{{name: pool, replicas: {nodes}, taint: false}}]
  lifecycles: [{{name: work, pod: {{ready: {ready_ms}ms}}}}]
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{shards: {shards}, leaseDuration: {lease_s}s}}
"""


@dataclass
class FleetSettings:
    """Values of the fleet file."""

    nodes: int = 30
    shards: int = 1
    lease_s: int = 40
    ready_ms: int = 10


@dataclass
class SoakCluster:
    """The cluster, the program and the fleet file."""

    plane: control_plane.ControlPlane
    program: cli.Cli
    api: client.KubeClient
    folder: Path
    desired: FleetSettings = field(default_factory=FleetSettings)
    seeded_random: random.Random = field(default_factory=lambda: random.Random(6))  # noqa: S311 - the same at every run

    @property
    def file(self) -> Path:
        """The fleet file."""
        return self.folder / "fleet.yaml"

    @property
    def status_folder(self) -> Path:
        """Status folder of the kwok supervisor."""
        return app.kwok_folder(self.program.data_dir, self.api.host)

    def sync(self) -> None:
        """Write the file and sync."""
        self.file.write_text(FILE.format(**vars(self.desired)))
        self.program.ok("sync", str(self.file), "--yes")

    # actions

    def edit_stage(self) -> str:
        """Change the delay until pods are ready."""
        self.desired.ready_ms = self.seeded_random.randint(0, 500)
        self.sync()
        return f"Stage edited: ready after {self.desired.ready_ms} ms"

    def resize(self) -> str:
        """Change the size of the pool."""
        self.desired.nodes = self.seeded_random.randint(20, 60)
        self.sync()
        return f"pool of {self.desired.nodes}"

    def reshard(self) -> str:
        """Change the number of shards; one shard is as likely as all others."""
        others = [count for count in (1, 1, 2, 3) if count != self.desired.shards]
        self.desired.shards = self.seeded_random.choice(others)
        self.sync()
        return f"{self.desired.shards} shards"

    def change_lease(self) -> str:
        """Change the lease duration, which restarts kwok."""
        self.desired.lease_s = 60 if self.desired.lease_s == 40 else 40
        before = {status.pid for status in self.statuses()}
        self.sync()
        waiting.until(lambda: before.isdisjoint(status.pid for status in self.statuses()), deadline_s=SETTLE_S)
        return f"leases of {self.desired.lease_s} s"

    def restart(self) -> str:
        """Restart kwok."""
        self.program.ok("kwok", "restart")
        return "restart"

    def kill(self) -> str:
        """Kill a kwok process; restart it if its backoff is long."""
        victim = self.seeded_random.choice([status for status in self.statuses() if status.pid])
        os.kill(victim.pid, signal.SIGKILL)
        waiting.until(lambda: self.statuses()[victim.shard].restarts > victim.restarts, deadline_s=SETTLE_S)
        if any(status.pause_s > 1 for status in self.statuses()):
            self.program.ok("kwok", "restart")
        return f"kill -9 of shard {victim.shard}"

    # observations

    def statuses(self) -> list[shard.ShardStatus]:
        """Return the status of the shards."""
        return supervisor.read_status(self.status_folder) or []

    def driving(self) -> lease_health.DriverHealth:
        """Return who drives the nodes."""
        return external.driver_health(self.api, KwokControllerSpec())

    def settle(self) -> None:
        """Wait until the desired shards hold the leases of all nodes."""
        waiting.until(self._is_settled, deadline_s=SETTLE_S)

    def _is_settled(self) -> bool:
        statuses = self.statuses()
        if len(statuses) != self.desired.shards or any(
            status.state is not shard.ShardState.READY for status in statuses
        ):
            return False
        now = self.driving()
        alive = {status.identity for status in statuses}
        return (
            now.nodes == self.desired.nodes == self.leases()
            and now.is_complete
            and {driver.holder for driver in now.drivers} == alive
        )

    def leases(self) -> int:
        """Return the number of node leases."""
        return len(self.plane.kubectl("get", "leases", "-n", "kube-node-lease", "-o", "name").splitlines())

    def sample(self, process: psutil.Process, at_s: float) -> Sample:
        """Take a sample of kwokfleet's process."""
        children = process.children(recursive=True)
        counts = []
        for _ in range(READINGS):
            connections = len(process.net_connections("all"))
            counts.append((process.num_fds() - connections, connections, process.num_threads()))
            time.sleep(READING_INTERVAL_S)
        fds, connections, threads = map(min, zip(*counts, strict=True))
        sizes = [child.memory_info().rss / 2**20 for child in children]
        return Sample(
            at_s,
            self.desired.shards,
            self.desired.nodes,
            fds,
            connections,
            threads,
            len(children),
            process.memory_info().rss / 2**20,
            max(sizes, default=0.0),
            self.leases(),
        )

    def problems(self) -> list[str]:
        """Return the differences between cluster and file."""
        problems = []
        done = self.program.run("diff", str(self.file))
        if done.returncode:
            problems.append(f"the cluster is not as the file says: {done.stdout}{done.stderr}")
        nodes = self.plane.get("nodes")["items"]
        ready = [
            node
            for node in nodes
            if {"type": "Ready", "status": "True"}.items()
            <= next(condition for condition in node["status"]["conditions"] if condition["type"] == "Ready").items()
        ]
        if len(ready) != self.desired.nodes or len(nodes) != self.desired.nodes:
            problems.append(f"{len(ready)} of {len(nodes)} nodes are Ready, not {self.desired.nodes}")
        living = {status.identity for status in self.statuses() if psutil.pid_exists(status.pid)}
        holders = {driver.holder for driver in self.driving().drivers}
        if holders != living:
            problems.append(f"leases are held by {sorted(holders)}, alive are {sorted(living)}")
        return problems

    def running_pods(self) -> int:
        """Return the number of running pods."""
        chosen = ("-n", FLEET, "--field-selector", "status.phase=Running", "-o", "name")
        return len(self.plane.kubectl("get", "pods", *chosen).splitlines())


@contextmanager
def opened(folder: Path) -> Iterator[SoakCluster]:
    """Start a cluster with a fleet and pods."""
    for plane in control_plane.running("soak"):
        for program in cli.isolated(folder):
            kwok.install_crds(plane)
            named = cli.Cli(program.data_dir, program.environment | {"KUBECONFIG": str(plane.kubeconfig)})
            with closing(client.connect(kubeconfig=plane.kubeconfig)) as api:
                cluster = SoakCluster(plane, named, api, folder)
                cluster.sync()
                _deploy(plane)
                yield cluster


def _deploy(plane: control_plane.ControlPlane) -> None:
    """Create a Deployment whose pods use the edited Stage."""
    labels = {"app": FLEET, "kwokfleet.dev/lifecycle": f"{FLEET}.work"}
    pod = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"kwokfleet.dev/fleet": FLEET}}
    spec = {
        "replicas": PODS,
        "selector": {"matchLabels": {"app": FLEET}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    metadata = {"name": FLEET, "namespace": FLEET}
    plane.kubectl("create", "namespace", FLEET)
    plane.kubectl(
        "create",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}),
    )


@contextmanager
def running_supervisor(cluster: SoakCluster) -> Iterator[psutil.Process]:
    """Run `kwokfleet kwok run` until the block ends."""
    with (cluster.folder / "run.log").open("wb") as sink:
        started = subprocess.Popen(
            [sys.executable, "-m", "kwokfleet", "kwok", "run", str(cluster.file)],
            env=cluster.program.environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    try:
        waiting.until(lambda: started.poll() is not None or bool(cluster.statuses()), deadline_s=SETTLE_S)
        assert started.poll() is None, (cluster.folder / "run.log").read_text()[-2000:]
        yield psutil.Process(started.pid)
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


def remaining_processes(folder: Path) -> list[str]:
    """Return the processes with a folder in their command line."""
    remaining = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or ()
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            remaining.append(f"{process.pid} {' '.join(words)[:200]}")
    return remaining
