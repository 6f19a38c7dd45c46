"""Create, delete and diff nodes, compared with other tools."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from kwokfleet.kube import client, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.reconcile import reconciler, sync
from kwokfleet.source import loader as source
from tests.bench import benchmark_cluster, many_pods, table

SIZE = int(os.environ.get("BENCH_NODES", "1000"))
LARGE = 5 * SIZE
PODS = 20 * SIZE
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PASSES = 50


def run() -> list[table.Result]:
    """Measure everything on one cluster."""
    with benchmark_cluster.opened() as cluster:
        file = cluster.folder / "fleet.yaml"
        file.write_text(benchmark_cluster.fleet(SIZE))
        bodies = _bodies(cluster, file)
        results = [*_creation(cluster, file, bodies), _deletion(cluster, file), _differences(cluster, file, bodies)]
        file.write_text(benchmark_cluster.fleet(LARGE))
        return [*results, *_large(cluster, file, results[0])]


def _bodies(cluster: benchmark_cluster.BenchmarkCluster, file: Path) -> Path:
    """Write the nodes of a fleet file as JSON lines for creation."""
    command = [benchmark_cluster.kwokfleet(), "render", str(file), "--kind", "Node", "-o", "json"]
    bodies = cluster.folder / "nodes.json"
    with bodies.open("wb") as sink:
        subprocess.run(command, check=True, stdout=sink, env=cluster.environment)
    return bodies


def _creation(cluster: benchmark_cluster.BenchmarkCluster, file: Path, bodies: Path) -> list[table.Result]:
    kubectl, kwokctl = (str(cluster.plane.tools.path(name)) for name in ("kubectl", "kwokctl"))
    plain = cluster.folder / "plain.yaml"
    with plain.open("wb") as sink:
        subprocess.run([benchmark_cluster.kwokfleet(), "render", str(file), "--kind", "Node"], check=True, stdout=sink)
    contestants = {
        f"raw POST loop, 16 threads, {SIZE} nodes": (
            sys.executable, "-m", "tests.bench.raw_post", str(cluster.plane.kubeconfig), str(bodies),
        ),
        f"kwokfleet sync, {SIZE} nodes": (benchmark_cluster.kwokfleet(), "sync", str(file), "--yes"),
        f"kwokctl scale, {SIZE} nodes": (
            kwokctl, "--name", "bench", "scale", "node", "bench", "--replicas", str(SIZE),
        ),
        f"kubectl apply, {SIZE} nodes": (kubectl, "apply", "-f", str(plain)),
    }  # fmt: skip
    milestones: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contestants}
    for number in range(ROUNDS):
        for name, command in contestants.items():
            cluster.rest()
            milestones[name].append(cluster.milestones(SIZE, *command))
            seconds = ", ".join(f"{value:.2f}" for value in milestones[name][-1])
            table.print_progress(f"round {number + 1} of {ROUNDS}: {name}: {seconds}")
    cluster.rest()
    raw, _, scale, _ = contestants
    return [
        table.Result(
            f"{SIZE} nodes, from the program's start until all are Ready", "s",
            {name: [times[1] for times in values] for name, values in milestones.items()}, (raw, scale),
            "at most 1/6 of kwokctl scale's time and 1.25 times the raw POST loop's",
        ),
        table.Result(
            f"{SIZE} nodes, from the program's start until all are schedulable", "s",
            {name: [times[2] for times in values] for name, values in milestones.items()}, (scale,),
            "at most 1/3 of kwokctl scale's time",
        ),
    ]  # fmt: skip


def _deletion(cluster: benchmark_cluster.BenchmarkCluster, file: Path) -> table.Result:
    def filled() -> None:
        cluster.run(benchmark_cluster.kwokfleet(), "sync", str(file), "--yes", "--wait")

    def bare() -> float:
        filled()
        return cluster.delete_nodes()

    def ours() -> float:
        filled()
        return cluster.run(benchmark_cluster.kwokfleet(), "delete", "bench", "--yes")

    samples = table.measure_in_turn(ROUNDS, {"bare deletecollection": bare, "kwokfleet delete": ours})
    return table.Result(
        f"Deleting an idle pool of {SIZE} nodes", "s", samples, ("bare deletecollection",),
        "at most 1.5 times a bare deletecollection",
    )  # fmt: skip


def _differences(cluster: benchmark_cluster.BenchmarkCluster, file: Path, bodies: Path) -> table.Result:
    """Diff a cluster that is in sync."""
    kubectl = str(cluster.plane.tools.path("kubectl"))
    cluster.rest()
    cluster.run(benchmark_cluster.kwokfleet(), "sync", str(file), "--yes", "--wait")
    owned = cluster.folder / "owned.yaml"  # without fields that are set only at creation: kubectl would report a diff
    _without_creation_fields(bodies, owned)
    ours = [cluster.run(benchmark_cluster.kwokfleet(), "diff", str(file)) for _ in range(2 * ROUNDS + 1)]
    table.print_progress(f"kwokfleet diff: {statistics.median(ours):.2f}")
    theirs = [cluster.run(kubectl, "diff", "-f", str(owned), good=(0, 1))]
    table.print_progress(f"kubectl diff: {theirs[0]:.2f}")
    return table.Result(
        f"diff of an unchanged fleet of {SIZE} nodes, process start to exit", "s",
        {"kubectl diff": theirs, "kwokfleet diff": ours}, ("kubectl diff",), "at most 1/40 of kubectl diff",
    )  # fmt: skip


def _without_creation_fields(bodies: Path, target: Path) -> None:
    nodes = [json.loads(line) for line in bodies.read_text().splitlines()]
    for node in nodes:
        node["metadata"]["annotations"].pop("node.alpha.kubernetes.io/ttl", None)
        del node["status"]
    target.write_text("".join(f"---\n{json.dumps(node)}\n" for node in nodes))


def _large(cluster: benchmark_cluster.BenchmarkCluster, file: Path, small: table.Result) -> list[table.Result]:
    name = f"kwokfleet sync, {SIZE} nodes"
    command = (benchmark_cluster.kwokfleet(), "sync", str(file), "--yes")
    durations = []
    for _ in range(max(1, ROUNDS - 1)):
        cluster.rest()
        durations.append(cluster.milestones(LARGE, *command)[1])
        table.print_progress(f"kwokfleet sync, {LARGE} nodes: {durations[-1]:.2f}")
    per_node = {
        name: [value / SIZE * 1000 for value in small.samples[name]],
        f"kwokfleet sync, {LARGE} nodes": [value / LARGE * 1000 for value in durations],
    }
    cluster.wait(LARGE)
    diffs = [cluster.run(benchmark_cluster.kwokfleet(), "diff", str(file)) for _ in range(2 * ROUNDS + 1)]
    costs, sent = _passes(cluster, file)
    memory = _memory(cluster)
    return [
        table.Result("Time to Ready per node", "ms", per_node, (name,), f"at {LARGE} at most 1.3 times that at {SIZE}"),
        table.Result(f"diff of an unchanged fleet of {LARGE} nodes", "s", {"kwokfleet diff": diffs}, (), "under 4 s"),
        table.Result(
            f"An unchanged pass inside a running process, {LARGE} nodes: CPU", "ms", {"kwokfleet": costs}, (),
            f"at most 20 ms and no request; requests sent in {PASSES} passes: {sent}",
        ),
        table.Result(
            f"Memory with {LARGE} nodes and {PODS} pods mirrored", "MB", memory, ("import kubernetes",),
            "at most 120 MB above an idle `import kubernetes`",
        ),
    ]  # fmt: skip


class _CountingClient(client.KubeClient):
    """Client that counts its requests."""

    sent = 0

    def send(
        self,
        request: requests.Request,
        timeout_s: float = client.RESPONSE_TIMEOUT_S,
        before_send: Callable[[], None] | None = None,
    ) -> requests.Response:
        """Count and send."""
        type(self).sent += 1
        return super().send(request, timeout_s, before_send)


def _passes(cluster: benchmark_cluster.BenchmarkCluster, file: Path) -> tuple[list[float], int]:
    """Return the CPU milliseconds and the requests of passes over a fleet in sync."""
    api = client.connect(kubeconfig=cluster.plane.kubeconfig)
    api.__class__ = _CountingClient
    with informer.Informer(api) as follower:
        follower.wait_until_synced(60)
        loader = source.Loader()
        session = sync.Sync(api, follower, reconciler.ReconcileOptions(), throttled_client.ClientLimits())
        assert session.plan(loader.load(file)).empty
        _CountingClient.sent = 0
        costs = []
        for _ in range(PASSES):
            began = time.thread_time()
            assert session.plan(loader.load(file)).empty
            costs.append((time.thread_time() - began) * 1000)
    return costs, _CountingClient.sent


def _memory(cluster: benchmark_cluster.BenchmarkCluster) -> dict[str, list[float]]:
    many_pods.create_pods(cluster, PODS)
    code = "import sys, time; from tests.bench import pods; pods.hold(sys.argv[1])"
    return {
        "import kubernetes": [
            _resident(cluster, "import kubernetes, time; print('ready', flush=True); time.sleep(600)")
        ],
        "kwokfleet": [_resident(cluster, code)],
    }


def _resident(cluster: benchmark_cluster.BenchmarkCluster, code: str) -> float:
    """Return the memory of a process that runs *code*, when it reports to be ready."""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cluster.plane.kubeconfig)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready" in line, line
            time.sleep(3)
            return float(psutil.Process(process.pid).memory_info().rss / 2**20)
        finally:
            process.kill()
