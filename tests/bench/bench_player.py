"""Wave controller: pacing accuracy, time for 1,000 Jobs, and cost."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson
import psutil

from kwokfleet import errors
from kwokfleet.kube import requests
from kwokfleet.measure import result_store
from kwokfleet.measure.result import Result
from kwokfleet.render import desired, workloads
from kwokfleet.source import loader
from tests.bench import benchmark_cluster, collector_cost, table
from tests.harness import cli, daemon_process, waiting

RATE, SECONDS = 100, int(os.environ.get("BENCH_SECONDS", "60"))
JOBS = int(os.environ.get("BENCH_JOBS", "1000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
NODES = 20
JOB = requests.Kind("batch/v1", "Job", "jobs", namespaced=True)
COMPONENTS = {"etcd", "kube-apiserver", "kube-controller", "kube-controller-manager", "kube-scheduler", "kwok"}
PACED = """apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: paced}}
spec:
  waves:
    - name: {wave}
      count: {count}
      arrivals: {{rate: {rate}/s}}
      place: false
      template: {{apiVersion: v1, kind: ConfigMap, data: {{index: "{{{{index}}}}", text: {text}}}}}
"""
JOBS_FILE = """apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: bench}}
spec:
  nodePools:
    - {{name: general, replicas: {nodes}, resources: {{cpu: 32, memory: 256Gi, pods: 110}}}}
  stages: [pod-fast]
  waves:
    - name: {wave}
      start: {{after: {after}}}
      count: {count}
      template:
        apiVersion: batch/v1
        kind: Job
        spec:
          template:
            spec:
              restartPolicy: Never
              containers: [{{name: main, image: busybox, resources: {{requests: {{cpu: 10m}}}}}}]
"""


Paced = Callable[[benchmark_cluster.BenchmarkCluster, str], tuple[dict[str, float], float]]
"""Runs a Wave of that name; returns the deviations of requests from their planned times, and the rate."""


def run() -> list[table.Result]:
    """Measure everything on one cluster."""
    with benchmark_cluster.opened() as cluster:
        return [*_pacing(cluster), *_jobs(cluster)]


# pacing


def _pacing(cluster: benchmark_cluster.BenchmarkCluster) -> list[table.Result]:
    """Run a constant rate for a minute, in turn with a rate limiter."""
    late: dict[str, list[float]] = {}
    off_rate: dict[str, list[float]] = {}
    contestants: dict[str, Paced] = {
        "kwokfleet run": _pace_with_daemon,
        "the player alone": partial(_pace_with_program, "player"),
        "client-side rate limiter": partial(_pace_with_program, "limiter"),
    }
    for number in range(ROUNDS):
        for title, submit in contestants.items():
            off, rate = submit(cluster, f"paced{number}")
            _delete_run(cluster)
            for name, value in off.items():
                late.setdefault(f"{title}, {name}", []).append(value)
            off_rate.setdefault(title, []).append(100 * abs(rate / RATE - 1))
            summary = ", ".join(f"{name} {value:.2f} ms" for name, value in off.items())
            table.print_progress(f"round {number + 1} of {ROUNDS}: {title}: {summary}, {off_rate[title][-1]:.3f} % off")
    title = f"{RATE} objects/s for {SECONDS} s"
    limits = (
        "the limiter has 100 tokens a second and 100 at once, as other load generators do, and stays ahead of the "
        "plan by that burst"
    )
    return [
        table.Result(f"{title}: distance of each request from its instant", "ms", late, (),
                     f"p50 at most 2 ms, p99 at most 25 ms, measured when the request is sent; {limits}"),
        table.Result(f"{title}: error of the rate", "%", off_rate, (), "under 0.5 %"),
    ]  # fmt: skip


def _paced(wave: str) -> str:
    return PACED.format(wave=wave, count=RATE * SECONDS, rate=RATE, text="x" * 500)


def _pace_with_daemon(cluster: benchmark_cluster.BenchmarkCluster, wave: str) -> tuple[dict[str, float], float]:
    """Run it in a daemon that also measures; return the values of its Result."""
    files = cluster.folder / wave
    files.mkdir()
    (files / "fleet.yaml").write_text(_paced(wave))
    store = result_store.ResultStore(cluster.data_dir / "results")

    def done() -> list[Result]:
        return [
            stored.result() for stored in store.find("paced", wave) if (stored.folder / result_store.RESULT).exists()
        ]

    with daemon_process.running(cli.Cli(cluster.data_dir, cluster.environment), str(files), kwok=False):
        waiting.until(lambda: any(result.state == "Done" for result in done()), deadline_s=benchmark_cluster.DEADLINE_S)
    pacing = done()[0].pacing
    assert pacing.count == RATE * SECONDS, pacing
    off = {"p50": pacing.p50 or 0.0, "p99": pacing.p99 or 0.0, "most": pacing.max or 0.0}
    return {name: 1000 * value for name, value in off.items()}, pacing.rate or 0.0


def _pace_with_program(
    who: str, cluster: benchmark_cluster.BenchmarkCluster, wave: str
) -> tuple[dict[str, float], float]:
    """Run it in a program that does nothing else."""
    file = cluster.folder / f"{who}-{wave}.yaml"
    file.write_text(_paced(wave))
    command = [sys.executable, "-m", "tests.bench.wave_submitters", who, str(cluster.plane.kubeconfig), str(file)]
    measured = json.loads(subprocess.run(command, env=cluster.environment, capture_output=True, check=True).stdout)
    off = sorted(abs(seconds) * 1000 for seconds in measured["late"])
    shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: off[math.ceil(share * len(off)) - 1] for name, share in shares.items()}, measured["rate"]


def _delete_run(cluster: benchmark_cluster.BenchmarkCluster) -> None:
    """Delete the Run's objects; wait until the API server is done."""
    path = "/api/v1/namespaces/default/configmaps?labelSelector=kwokfleet.dev%2Ffleet%3Dpaced"
    cluster.api.send(requests.Request("DELETE", path), 120)
    time.sleep(3)


# Jobs


@dataclass
class JobWatch:
    """Times from a watch of all Jobs."""

    first: float = 0.0
    last: float = 0.0
    done: set[str] = field(default_factory=set)


def _jobs(cluster: benchmark_cluster.BenchmarkCluster) -> list[table.Result]:
    """Create all Jobs at once, in turn with a POST loop; also measure the CPU of both."""
    took: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    events: list[bytes] = []
    files = cluster.folder / "files"
    files.mkdir()
    file = files / "bench.yaml"
    file.write_text(JOBS_FILE.format(nodes=NODES, wave="warm", after="0s", count=50))
    program = cli.Cli(cluster.data_dir, cluster.environment)
    with daemon_process.running(program, str(files), kwok=False) as daemon:
        waiting.until(lambda: daemon.is_synced, deadline_s=benchmark_cluster.DEADLINE_S)
        cluster.wait(NODES)
        daemon_proc = psutil.Process(daemon.process.pid)
        for number in range(ROUNDS):
            for title, submit in (
                ("raw POST loop, 16 threads", _posted(cluster, file, f"raw{number}")),
                ("kwokfleet run", _waved(file, f"own{number}")),
            ):
                _delete_jobs(cluster)
                with _watch_jobs(cluster) as jobs, _watch_events(cluster, requests.POD, events.append):
                    ours, theirs = _cpu([daemon_proc]), _cpu(_components(cluster))
                    submit()
                    waiting.until(lambda jobs=jobs: len(jobs.done) == JOBS, deadline_s=benchmark_cluster.DEADLINE_S)  # type: ignore[misc]
                    ours, theirs = _cpu([daemon_proc]) - ours, _cpu(_components(cluster)) - theirs
                took.setdefault(title, []).append(jobs.last - jobs.first)
                shares.setdefault(title, []).append(100 * ours / theirs)
                table.print_progress(f"round {number + 1} of {ROUNDS}: {title}: {took[title][-1]:.2f} s; "
                          f"kwokfleet run {ours:.2f} s CPU, control plane {theirs:.2f} s")  # fmt: skip
    raw, own = took
    usage = {f"{own}, while it plays": shares[own], f"{own}, while the loop posts": shares[raw]}
    return [
        table.Result(f"{JOBS} one-pod Jobs, from the first to all Complete", "s", took, (raw,),
                     "at most 1.05 times the raw POST loop"),
        table.Result(f"{JOBS} one-pod Jobs: CPU of our process", "% of the control plane's", usage, (), "at most 5 %"),
        *collector_cost.results(events, ROUNDS),
    ]  # fmt: skip


def _waved(file: Path, wave: str) -> Callable[[], None]:
    return lambda: _save(file, JOBS_FILE.format(nodes=NODES, wave=wave, after="2s", count=JOBS))


def _save(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}")
    draft.write_text(text)
    draft.replace(file)


def _posted(cluster: benchmark_cluster.BenchmarkCluster, file: Path, wave: str) -> Callable[[], None]:
    """Return a function that posts the same Jobs with other names."""
    fleet_file = cluster.folder / f"{wave}.yaml"
    fleet_file.write_text(JOBS_FILE.format(nodes=NODES, wave=wave, after="0s", count=JOBS))
    tree = loader.Loader().load(fleet_file).tree
    [fleet] = tree.fleets
    make = workloads.object_factory(desired.run_context(tree, fleet, fleet.spec.waves[0], "0"))
    bodies = cluster.folder / f"{wave}.json"
    bodies.write_bytes(b"\n".join(orjson.dumps(make(index)) for index in range(JOBS)))
    path = "/apis/batch/v1/namespaces/default/jobs"
    command = (sys.executable, "-m", "tests.bench.raw_post", str(cluster.plane.kubeconfig), str(bodies), path)

    def post() -> None:
        cluster.run(*command)

    return post


@contextmanager
def _watch_jobs(cluster: benchmark_cluster.BenchmarkCluster) -> Iterator[JobWatch]:
    """Watch all Jobs until the block ends."""
    observation = JobWatch()

    def record_job(line: bytes) -> None:
        event, now = orjson.loads(line), time.monotonic()
        status = event["object"].get("status") or {}
        if event["type"] == "ADDED":
            observation.first = observation.first or now
        elif any(condition["type"] == "Complete" for condition in status.get("conditions") or ()):
            observation.done.add(event["object"]["metadata"]["uid"])
            observation.last = observation.last if len(observation.done) > JOBS else now

    with _watch_events(cluster, JOB, record_job):
        yield observation


@contextmanager
def _watch_events(
    cluster: benchmark_cluster.BenchmarkCluster, kind: requests.Kind, handle: Callable[[bytes], None]
) -> Iterator[None]:
    """Call *handle* with every watch event of a kind until the block ends."""
    listed = cluster.api.send(requests.list_page(kind)).json()["metadata"]["resourceVersion"]
    stream = cluster.api.stream(requests.watch(kind, "", listed, 900), 900)

    def listen() -> None:
        rest = b""
        with suppress(errors.UnreachableError):  # the connection is closed at the end
            for chunk in stream.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if b'"BOOKMARK"' not in line[:20]:
                        handle(line)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join()
        stream.close()


def _delete_jobs(cluster: benchmark_cluster.BenchmarkCluster) -> None:
    """Delete all Jobs and their pods; wait until the control plane is idle."""
    for path in ("/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"):
        request = requests.Request("DELETE", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
        while cluster.api.send(request, 120).status == 504:  # the API server ends requests after a minute
            pass
    waiting.until(
        lambda: not cluster.plane.get("pods", "-n", "default")["items"], deadline_s=benchmark_cluster.DEADLINE_S
    )
    time.sleep(8)


def _components(cluster: benchmark_cluster.BenchmarkCluster) -> list[psutil.Process]:
    """Return the processes of the control plane and of kwok."""
    components = []
    for process in psutil.process_iter(["name", "cmdline"]):
        name, words = process.info["name"] or "", " ".join(process.info["cmdline"] or ())
        if any(name.startswith(component[:15]) for component in COMPONENTS) and str(cluster.folder) in words:
            components.append(process)
    assert len(components) >= 5, components
    return components


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)
