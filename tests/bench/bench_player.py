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
"""Plays a Wave of that name; returns how far requests were from their instants, and the rate."""


def run() -> list[table.Result]:
    """Measure everything on one cluster."""
    with benchmark_cluster.opened() as place:
        return [*_pacing(place), *_jobs(place)]


# pacing


def _pacing(place: benchmark_cluster.BenchmarkCluster) -> list[table.Result]:
    """Play a constant rate for a minute, in turn with a rate limiter."""
    late: dict[str, list[float]] = {}
    off_rate: dict[str, list[float]] = {}
    contestants: dict[str, Paced] = {
        "kwokfleet run": _daemon_paces,
        "the player alone": partial(_program_paces, "player"),
        "client-side rate limiter": partial(_program_paces, "limiter"),
    }
    for number in range(ROUNDS):
        for title, play in contestants.items():
            off, rate = play(place, f"paced{number}")
            _forget(place)
            for name, value in off.items():
                late.setdefault(f"{title}, {name}", []).append(value)
            off_rate.setdefault(title, []).append(100 * abs(rate / RATE - 1))
            said = ", ".join(f"{name} {value:.2f} ms" for name, value in off.items())
            table.print_progress(f"round {number + 1} of {ROUNDS}: {title}: {said}, {off_rate[title][-1]:.3f} % off")
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


def _daemon_paces(place: benchmark_cluster.BenchmarkCluster, wave: str) -> tuple[dict[str, float], float]:
    """Let a daemon play it, which also measures; return what its Result says."""
    files = place.folder / wave
    files.mkdir()
    (files / "fleet.yaml").write_text(_paced(wave))
    kept = result_store.ResultStore(place.data_dir / "results")

    def done() -> list[Result]:
        return [each.result() for each in kept.find("paced", wave) if (each.folder / result_store.RESULT).exists()]

    with daemon_process.running(cli.Cli(place.data_dir, place.environment), str(files), kwok=False):
        waiting.until(lambda: any(each.state == "Done" for each in done()), deadline_s=benchmark_cluster.DEADLINE_S)
    pacing = done()[0].pacing
    assert pacing.count == RATE * SECONDS, pacing
    off = {"p50": pacing.p50 or 0.0, "p99": pacing.p99 or 0.0, "most": pacing.max or 0.0}
    return {name: 1000 * value for name, value in off.items()}, pacing.rate or 0.0


def _program_paces(who: str, place: benchmark_cluster.BenchmarkCluster, wave: str) -> tuple[dict[str, float], float]:
    """Let a program play it that does nothing else."""
    file = place.folder / f"{who}-{wave}.yaml"
    file.write_text(_paced(wave))
    command = [sys.executable, "-m", "tests.bench.wave_submitters", who, str(place.plane.kubeconfig), str(file)]
    made = json.loads(subprocess.run(command, env=place.environment, capture_output=True, check=True).stdout)
    off = sorted(abs(each) * 1000 for each in made["late"])
    shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: off[math.ceil(share * len(off)) - 1] for name, share in shares.items()}, made["rate"]


def _forget(place: benchmark_cluster.BenchmarkCluster) -> None:
    """Remove what was played, and let the API server finish with it."""
    path = "/api/v1/namespaces/default/configmaps?labelSelector=kwokfleet.dev%2Ffleet%3Dpaced"
    place.api.send(requests.Request("DELETE", path), 120)
    time.sleep(3)


# Jobs


@dataclass
class Seen:
    """What a watch of all Jobs has seen."""

    first: float = 0.0
    last: float = 0.0
    done: set[str] = field(default_factory=set)


def _jobs(place: benchmark_cluster.BenchmarkCluster) -> list[table.Result]:
    """Play Jobs all at once, in turn with a loop that only posts; the CPU of both sides is measured beside."""
    took: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    events: list[bytes] = []
    files = place.folder / "files"
    files.mkdir()
    file = files / "bench.yaml"
    file.write_text(JOBS_FILE.format(nodes=NODES, wave="warm", after="0s", count=50))
    program = cli.Cli(place.data_dir, place.environment)
    with daemon_process.running(program, str(files), kwok=False) as daemon:
        waiting.until(lambda: daemon.is_synced, deadline_s=benchmark_cluster.DEADLINE_S)
        place.wait(NODES)
        mine = psutil.Process(daemon.process.pid)
        for number in range(ROUNDS):
            for title, play in (
                ("raw POST loop, 16 threads", _posted(place, file, f"raw{number}")),
                ("kwokfleet run", _waved(file, f"own{number}")),
            ):
                _rest(place)
                with _watched(place) as seen, _heard(place, requests.POD, events.append):
                    ours, theirs = _cpu([mine]), _cpu(_components(place))
                    play()
                    waiting.until(lambda seen=seen: len(seen.done) == JOBS, deadline_s=benchmark_cluster.DEADLINE_S)  # type: ignore[misc]
                    ours, theirs = _cpu([mine]) - ours, _cpu(_components(place)) - theirs
                took.setdefault(title, []).append(seen.last - seen.first)
                shares.setdefault(title, []).append(100 * ours / theirs)
                table.print_progress(f"round {number + 1} of {ROUNDS}: {title}: {took[title][-1]:.2f} s; "
                          f"kwokfleet run {ours:.2f} s CPU, control plane {theirs:.2f} s")  # fmt: skip
    raw, own = took
    beside = {f"{own}, while it plays": shares[own], f"{own}, while the loop posts": shares[raw]}
    return [
        table.Result(f"{JOBS} one-pod Jobs, from the first to all Complete", "s", took, (raw,),
                     "at most 1.05 times the raw POST loop"),
        table.Result(f"{JOBS} one-pod Jobs: CPU of our process", "% of the control plane's", beside, (), "at most 5 %"),
        *collector_cost.results(events, ROUNDS),
    ]  # fmt: skip


def _waved(file: Path, wave: str) -> Callable[[], None]:
    return lambda: _save(file, JOBS_FILE.format(nodes=NODES, wave=wave, after="2s", count=JOBS))


def _save(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}")
    draft.write_text(text)
    draft.replace(file)


def _posted(place: benchmark_cluster.BenchmarkCluster, file: Path, wave: str) -> Callable[[], None]:
    """Return what posts the same Jobs under other names."""
    mine = place.folder / f"{wave}.yaml"
    mine.write_text(JOBS_FILE.format(nodes=NODES, wave=wave, after="0s", count=JOBS))
    tree = loader.Loader().load(mine).tree
    [fleet] = tree.fleets
    make = workloads.object_factory(desired.run_context(tree, fleet, fleet.spec.waves[0], "0"))
    bodies = place.folder / f"{wave}.json"
    bodies.write_bytes(b"\n".join(orjson.dumps(make(index)) for index in range(JOBS)))
    path = "/apis/batch/v1/namespaces/default/jobs"
    command = (sys.executable, "-m", "tests.bench.raw_post", str(place.plane.kubeconfig), str(bodies), path)

    def post() -> None:
        place.run(*command)

    return post


@contextmanager
def _watched(place: benchmark_cluster.BenchmarkCluster) -> Iterator[Seen]:
    """Watch all Jobs from now on."""
    seen = Seen()

    def look(line: bytes) -> None:
        event, now = orjson.loads(line), time.monotonic()
        status = event["object"].get("status") or {}
        if event["type"] == "ADDED":
            seen.first = seen.first or now
        elif any(each["type"] == "Complete" for each in status.get("conditions") or ()):
            seen.done.add(event["object"]["metadata"]["uid"])
            seen.last = seen.last if len(seen.done) > JOBS else now

    with _heard(place, JOB, look):
        yield seen


@contextmanager
def _heard(
    place: benchmark_cluster.BenchmarkCluster, kind: requests.Kind, hear: Callable[[bytes], None]
) -> Iterator[None]:
    """Hear every event of a kind from now on."""
    listed = place.api.send(requests.list_page(kind)).json()["metadata"]["resourceVersion"]
    stream = place.api.stream(requests.watch(kind, "", listed, 900), 900)

    def listen() -> None:
        rest = b""
        with suppress(errors.UnreachableError):  # it is cut off when nobody listens any more
            for chunk in stream.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if b'"BOOKMARK"' not in line[:20]:
                        hear(line)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join()
        stream.close()


def _rest(place: benchmark_cluster.BenchmarkCluster) -> None:
    """Remove all Jobs and their pods, and let the control plane finish with them."""
    for path in ("/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"):
        request = requests.Request("DELETE", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
        while place.api.send(request, 120).status == 504:  # the API server ends requests after a minute
            pass
    waiting.until(
        lambda: not place.plane.get("pods", "-n", "default")["items"], deadline_s=benchmark_cluster.DEADLINE_S
    )
    time.sleep(8)


def _components(place: benchmark_cluster.BenchmarkCluster) -> list[psutil.Process]:
    """Return the processes of the control plane, kwok among them."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        name, words = process.info["name"] or "", " ".join(process.info["cmdline"] or ())
        if any(name.startswith(each[:15]) for each in COMPONENTS) and str(place.folder) in words:
            found.append(process)
    assert len(found) >= 5, found
    return found


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in processes)
