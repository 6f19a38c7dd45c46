"""CPU and memory of all components by number of nodes, pods and shards.

The rows go to docs/scaling.json, from which `python docs/scaling.py` writes the tables and the plan of docs/scaling.md.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from kwokfleet.embedded import processes
from kwokfleet.kube import objects, requests
from kwokfleet.kube.informer import informer
from kwokfleet.kube.observed import Observed
from tests.bench import benchmark_cluster, many_pods, table
from tests.harness import cli, daemon_process, waiting

SMALL = int(os.environ.get("BENCH_NODES", "1000"))
CASES = (*((SMALL * factor, 1) for factor in (1, 2, 5)), *((SMALL * 2, shards) for shards in (2, 4)))
"""Nodes and shards."""
PODS = 2 * SMALL
LEASE_S = 40
IDLE_S = float(os.environ.get("BENCH_SCALING_IDLE_S", "60"))
SETTLE_S = 15.0
ROWS = Path(__file__).parents[2] / "docs" / "scaling.json"
KWOKFLEET, KWOK = "kwokfleet", "kwok"
PARTS = (KWOK, KWOKFLEET, "kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")
_DB_SIZE = "apiserver_storage_size_bytes{"

Row = dict[str, float]


def run() -> list[table.Result]:
    """Measure all cases, each on a new cluster."""
    rows = [_case(nodes, shards) for nodes, shards in CASES]
    ROWS.write_text(json.dumps({"leaseSeconds": LEASE_S, "cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")
    return [
        _result("Idle: CPU while nothing but leases is renewed", "% of a core", rows, "idle {} cores", 100),
        _result("Memory with nodes and no pods", "MB", rows, "idle {} bytes", 2**-20),
        _result(f"CPU for the life of one of {PODS} pods: made, run, deleted", "ms", rows, "pod {} cpu_s", 1000),
    ]


def _result(title: str, unit: str, rows: list[Row], key: str, factor: float) -> table.Result:
    samples = {
        f"{part}: {row['nodes']:,.0f} nodes, {row['shards']:.0f} shard{'s' if row['shards'] > 1 else ''}": [
            row[key.format(part)] * factor
        ]
        for part in PARTS
        for row in rows
    }
    return table.Result(title, unit, samples, (), "an account, not a contest: docs/scaling.md draws conclusions")


def _case(nodes: int, shards: int) -> Row:
    with benchmark_cluster.opened(driven=False) as cluster, _daemon(cluster, nodes, shards) as daemon:
        cluster.wait(nodes)
        waiting.until(lambda: _ready(daemon) == shards, deadline_s=benchmark_cluster.DEADLINE_S)
        time.sleep(SETTLE_S)
        row: Row = {"nodes": nodes, "shards": shards, "pods": PODS, **_idle(cluster, daemon)}
        row |= _pod_cost(cluster, daemon)
    table.print_progress(f"{nodes} nodes, {shards} shards: {row}")
    return row


@contextmanager
def _daemon(
    cluster: benchmark_cluster.BenchmarkCluster, nodes: int, shards: int
) -> Iterator[daemon_process.DaemonProcess]:
    files = cluster.folder / "files"
    files.mkdir()
    controller = (
        "---\napiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: default}\n"
        f"spec: {{shards: {shards}, leaseDuration: {LEASE_S}s}}\n"
    )
    (files / "fleet.yaml").write_text(benchmark_cluster.fleet(nodes) + controller)
    program = cli.Cli(cluster.data_dir, cluster.environment)
    with daemon_process.running(program, str(files), kwok=True) as daemon:
        waiting.until(lambda: daemon.is_synced, deadline_s=benchmark_cluster.DEADLINE_S)
        yield daemon


def _ready(daemon: daemon_process.DaemonProcess) -> int:
    return sum(shard["state"] == "ready" for shard in daemon.get("/api/v1/kwok"))


def _idle(cluster: benchmark_cluster.BenchmarkCluster, daemon: daemon_process.DaemonProcess) -> Row:
    """Measure an idle fleet."""
    parts = _parts(cluster, daemon)
    before, asked, began = _cpu(parts), cluster.requests(), time.monotonic()
    lag = 0.0
    while time.monotonic() - began < IDLE_S:
        lag = max(lag, *(shard["lagSeconds"] for shard in daemon.get("/api/v1/kwok")))
        time.sleep(2)
    took, after, now = time.monotonic() - began, _cpu(parts), cluster.requests()
    renewed = sum(now[key] - asked.get(key, 0) for key in now if key[0] in ("PUT", "PATCH") and key[1] == "leases")
    row = {f"idle {part} cores": (after[part] - before[part]) / took for part in parts}
    row |= {
        f"idle {part} bytes": float(sum(_memory(process) for process in part_processes))
        for part, part_processes in parts.items()
    }
    return {**row, "renewals_per_s": renewed / took, "lag_s": lag, "db_bytes": _db_size(cluster)}


def _pod_cost(cluster: benchmark_cluster.BenchmarkCluster, daemon: daemon_process.DaemonProcess) -> Row:
    """Create, run and delete pods; return the cost per pod."""
    parts = _parts(cluster, daemon)
    before, size, began = _cpu(parts), _db_size(cluster), time.monotonic()
    with informer.Informer(cluster.api, (requests.POD,), f"{objects.WAVE}=load") as pods:
        many_pods.create_pods(cluster, PODS)
        pods.wait(lambda view: sum(map(_runs, view.objects.values())) == PODS, benchmark_cluster.DEADLINE_S)
        ran, held = time.monotonic() - began, _db_size(cluster)
        memory = {
            f"pods {part} bytes": float(sum(_memory(process) for process in part_processes))
            for part, part_processes in parts.items()
        }
        cluster.api.send(requests.Request("DELETE", requests.collection(requests.POD, many_pods.NAMESPACE)), 120)
        pods.wait(lambda view: not view.objects, benchmark_cluster.DEADLINE_S)
    took, after = time.monotonic() - began, _cpu(parts)
    row = {f"pod {part} cpu_s": (after[part] - before[part]) / PODS for part in parts}
    return {**row, **memory, "pods_running_s": ran, "pods_gone_s": took, "pod_db_bytes": (held - size) / PODS}


def _runs(pod: Observed) -> bool:
    return bool((pod.manifest.get("status") or {}).get("phase") == "Running")


def _parts(
    cluster: benchmark_cluster.BenchmarkCluster, daemon: daemon_process.DaemonProcess
) -> Mapping[str, list[psutil.Process]]:
    """Return the processes of each part."""
    ours = psutil.Process(daemon.process.pid)
    kwoks = [child for child in ours.children(recursive=True) if child.name() == KWOK]
    pids = {component.component: component.pid for component in processes.find_processes(cluster.plane.where)}
    return {KWOK: kwoks, KWOKFLEET: [ours]} | {name: [psutil.Process(pids[name])] for name in PARTS[2:]}


def _cpu(parts: Mapping[str, list[psutil.Process]]) -> dict[str, float]:
    """Return the CPU seconds of each part."""
    return {name: sum(sum(process.cpu_times()[:2]) for process in part) for name, part in parts.items()}


def _memory(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _db_size(cluster: benchmark_cluster.BenchmarkCluster) -> float:
    """Return the size of etcd's database; it shrinks only by defragmentation."""
    lines = cluster.plane.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_DB_SIZE))
