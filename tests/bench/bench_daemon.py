"""Daemon: latency from file to cluster, latency of repairs, and idle cost."""

import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from kwokfleet.kube import objects, requests
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.source import debounce
from tests.bench import benchmark_cluster, table
from tests.harness import cli, daemon_process, faulty_proxy, waiting

SIZE = int(os.environ.get("BENCH_NODES", "1000"))
LARGE = 5 * SIZE
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
TIMES = int(os.environ.get("BENCH_TIMES", "100"))
"""Number of saves, and of drifts of each kind."""
IDLE_S = float(os.environ.get("BENCH_IDLE_S", "300"))
STORM, STORM_S = 200, 10.0
DRIFTING = 50
"""Nodes with drift; enough that the daemon does not report a conflict with another controller."""
PAUSE_S = 0.3
"""Pause between saves and between drifts, so that they do not overlap."""
LEASE = "/leases/kwokfleet"


def run() -> list[table.Result]:
    """Measure everything on one cluster."""
    with benchmark_cluster.opened(driven=False) as cluster:
        files = cluster.folder / "files"
        files.mkdir()
        with benchmark_cluster.separate_kwok(cluster):
            results = [_time_to_ready(cluster, files)]
            _save(files / "bench.yaml", _fleet(LARGE))
            _save(files / "small.yaml", _one_node_fleet(0))
            with faulty_proxy.proxy_to(cluster.plane) as proxy, _daemon(cluster, files, proxy) as daemon:
                cluster.wait(LARGE + 1)
                results += [
                    _file_latency(files, proxy),
                    _repair_latency(cluster),
                    _frequent_saves(files, proxy, daemon),
                    _idle_requests(proxy, daemon),
                ]
        with _daemon(cluster, files, kwok=True) as daemon:
            waiting.until(lambda: [shard["state"] for shard in daemon.get("/api/v1/kwok")] == ["ready"], deadline_s=120)
            return [*results, *_idle_cost(daemon)]


def _fleet(count: int) -> str:
    drifting = f"    - {{name: drifting, replicas: {DRIFTING}, labels: {{drifting: 'yes', tier: gold}}}}\n"
    return benchmark_cluster.fleet(count - DRIFTING) + drifting


def _one_node_fleet(number: int) -> str:
    """Return a fleet of one node with the number of the save as a label."""
    return (
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: small}\nspec:\n  nodePools:\n"
        f"    - {{name: pool, replicas: 1, labels: {{save: s{number}}}}}\n"
    )


def _save(path: Path, text: str) -> float:
    """Write a file as editors do; return the time."""
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    now = time.monotonic()
    part.replace(path)
    return now


@contextmanager
def _daemon(
    cluster: benchmark_cluster.BenchmarkCluster,
    files: Path,
    proxy: faulty_proxy.FaultyProxy | None = None,
    *,
    kwok: bool = False,
) -> Iterator[daemon_process.DaemonProcess]:
    through = {"KUBECONFIG": proxy.kubeconfig(cluster.folder / "through.json")} if proxy else {}
    program = cli.Cli(cluster.data_dir, cluster.environment)
    with daemon_process.running(program, str(files), kwok=kwok, variables=through) as daemon:
        waiting.until(lambda: daemon.is_synced, deadline_s=benchmark_cluster.DEADLINE_S)
        yield daemon


def _time_to_ready(cluster: benchmark_cluster.BenchmarkCluster, files: Path) -> table.Result:
    """Compare a file saved in a daemon's folder with a sync of the same file."""
    other = cluster.folder / "sync.yaml"
    other.write_text(benchmark_cluster.fleet(SIZE))

    def synced() -> float:
        cluster.rest()
        return cluster.milestones(SIZE, benchmark_cluster.kwokfleet(), "sync", str(other), "--yes")[1]

    def saved() -> float:
        cluster.rest()
        _save(files / "bench.yaml", benchmark_cluster.fleet(0))
        with _daemon(cluster, files):
            began = _save(files / "bench.yaml", benchmark_cluster.fleet(SIZE))
            cluster.nodes.wait(
                lambda view: sum(node.ready for node in view.objects.values()) >= SIZE, benchmark_cluster.DEADLINE_S
            )
            return time.monotonic() - began

    name = "kwokfleet sync, process start to all Ready"
    samples = table.measure_in_turn(ROUNDS, {name: synced, "kwokfleet run, save to all Ready": saved})
    return table.Result(
        f"A file of {SIZE} nodes, saved where a daemon watches", "s", samples, (name,),
        "at most 1.15 times `kwokfleet sync`; the quiet period of 100 ms is part of it",
    )  # fmt: skip


def _with_share(name: str, values: list[float]) -> dict[str, list[float]]:
    """Return all values and their 99th percentile."""
    ordered = sorted(values)
    return {name: values, f"{name}, p99": [ordered[math.ceil(0.99 * len(ordered)) - 1]]}


def _file_latency(files: Path, proxy: faulty_proxy.FaultyProxy) -> table.Result:
    """Measure from a save to the first write request before the API server."""
    values = []
    for number in range(1, TIMES + 1):
        time.sleep(PAUSE_S)
        mark = f'"s{number}"'.encode()
        began = _save(files / "small.yaml", _one_node_fleet(number))
        [first, *_] = waiting.until(
            lambda mark=mark: [request for request in proxy.requests[-200:] if mark in request.body]  # type: ignore[misc]
        )
        values.append((first.at - began - debounce.QUIET_S) * 1000)
    table.print_progress(f"save to first write: {statistics.median(values):.0f} ms, at most {max(values):.0f}")
    return table.Result(
        f"Save of a file to the first write, beside {LARGE} nodes", "ms", _with_share("kwokfleet run", values), (),
        f"p99 at most 150 ms beyond the quiet period, which is subtracted here ({debounce.QUIET_S * 1000:.0f} ms); "
        "writes are seen by a proxy before the API server",
    )  # fmt: skip


def _repair_latency(cluster: benchmark_cluster.BenchmarkCluster) -> table.Result:
    """Measure from a change by another client to the watch event of its repair."""
    with informer.Informer(cluster.api, (requests.NODE,), "drifting=yes") as nodes:
        view = nodes.wait(lambda view: len(view.objects) == DRIFTING, 60)
        keys = sorted(view.objects)
        samples: dict[str, list[float]] = {}
        for name, drift in (("deleted", _delete), ("relabelled", _relabel)):
            values = []
            for number in range(TIMES):
                time.sleep(PAUSE_S)
                values.append(_time_to_repair(cluster, nodes, keys[number % DRIFTING], drift))
            table.print_progress(f"{name}: {statistics.median(values):.0f} ms, at most {max(values):.0f}")
            samples |= _with_share(f"a node {name}", values)
    return table.Result(
        f"Repair of what somebody else did, {LARGE} nodes in the fleet", "ms", samples, (),
        "p99 within 300 ms, from the request that does it until a watch shows the repaired node",
    )  # fmt: skip


Drift = Callable[[benchmark_cluster.BenchmarkCluster, ObjectKey], int]
"""Does something to a node, and returns the version that it has then."""


def _delete(cluster: benchmark_cluster.BenchmarkCluster, key: ObjectKey) -> int:
    assert cluster.api.send(requests.Request("DELETE", requests.path(key))).status == 200
    return sys.maxsize  # only another node can follow


def _relabel(cluster: benchmark_cluster.BenchmarkCluster, key: ObjectKey) -> int:
    body = json.dumps({"metadata": {"labels": {"tier": "tin"}}}).encode()
    response = cluster.api.send(requests.Request("PATCH", requests.path(key), body, "application/merge-patch+json"))
    assert response.status == 200
    return int(response.json()["metadata"]["resourceVersion"])


def _time_to_repair(
    cluster: benchmark_cluster.BenchmarkCluster, nodes: informer.Informer, key: ObjectKey, drift: Drift
) -> float:
    before = nodes.view().objects[key]
    began = time.monotonic()
    after = drift(cluster, key)

    def is_repaired(view: informer.CacheView) -> bool:
        now = view.objects.get(key)
        if now is None or objects.labels(now.manifest).get("tier") != "gold":
            return False
        return now.uid != before.uid or now.resource_version > after

    assert is_repaired(nodes.wait(is_repaired, 30)), f"{key.name} was not repaired"
    return (time.monotonic() - began) * 1000


def _frequent_saves(files: Path, proxy: faulty_proxy.FaultyProxy, daemon: daemon_process.DaemonProcess) -> table.Result:
    """Save very often; check the order in which the saves are applied."""
    mark, first = len(proxy.requests), 10_000
    for number in range(STORM):
        _save(files / "small.yaml", _one_node_fleet(first + number))
        time.sleep(STORM_S / STORM)
    last = f'"s{first + STORM - 1}"'.encode()
    waiting.until(lambda: any(last in request.body for request in proxy.requests[-200:]))
    waiting.until(lambda: daemon.get("/api/v1/plan")["changes"] == [])
    bodies = [
        request.body for request in proxy.requests[mark:] if request.method == "PATCH" and b'"save"' in request.body
    ]
    order = [number for body in bodies for number in range(first, first + STORM) if f'"s{number}"'.encode() in body]
    wrong = sum(before >= after for before, after in itertools.pairwise(order))
    return table.Result(
        f"{STORM} saves in {STORM_S:g} s", "", {
            "writes of the node": [len(order)],
            "writes that came after a newer or the same one": [wrong],
            "saves that came after the one that was left in the end": [first + STORM - 1 - order[-1]],
        }, (), "passes never overlap, so nothing is written twice or out of order, and the last save wins",
    )  # fmt: skip


def _idle_requests(proxy: faulty_proxy.FaultyProxy, daemon: daemon_process.DaemonProcess) -> table.Result:
    """Count the requests of an idle daemon."""
    time.sleep(5)
    mark, cpu = len(proxy.requests), _cpu(daemon)
    time.sleep(IDLE_S / 5)
    unexpected = [
        request for request in proxy.requests[mark:] if not request.is_watch and not request.resource.endswith(LEASE)
    ]
    for request in unexpected:
        table.print_progress(f"unexpected: {request.method} {request.path}")
    share = 100 * (_cpu(daemon) - cpu) / (IDLE_S / 5)
    return table.Result(
        f"Idle with {LARGE} nodes that kwok drives, {IDLE_S / 5:g} s: requests", "", {
            "requests besides watches and our own Lease": [len(unexpected)],
            "% of a core": [share],
        }, (), "0 requests, counted by a proxy",
    )  # fmt: skip


def _idle_cost(daemon: daemon_process.DaemonProcess) -> list[table.Result]:
    """Measure an idle daemon that supervises kwok."""
    time.sleep(min(20.0, IDLE_S))
    process = psutil.Process(daemon.process.pid)
    before, cpu, began = process.memory_info().rss, _cpu(daemon), time.monotonic()
    time.sleep(IDLE_S)
    share = 100 * (_cpu(daemon) - cpu) / (time.monotonic() - began)
    sizes = {"at the begin": [before / 2**20], "at the end": [process.memory_info().rss / 2**20]}
    title = f"Idle with {LARGE} nodes, their leases and kwok, {IDLE_S:g} s"
    return [
        table.Result(f"{title}: CPU", "% of a core", {"kwokfleet run": [share]}, (), "under 1 % of a core"),
        table.Result(f"{title}: memory", "MB", sizes, ("at the begin",), "flat"),
    ]


def _cpu(daemon: daemon_process.DaemonProcess) -> float:
    times = psutil.Process(daemon.process.pid).cpu_times()
    return times.user + times.system
