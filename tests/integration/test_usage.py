"""Usage and debugging of fake pods, on a real cluster with a real kwok: figures, logs, exec, files that converge."""

import os
import re
import select
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from kwokfleet import settings
from kwokfleet.embedded import binaries, progress
from kwokfleet.kube import client, requests
from kwokfleet.kwok import backend, flags, shard, supervisor
from kwokfleet.render import desired as render
from kwokfleet.render import nodes, usage, workloads
from kwokfleet.source import loader
from tests.harness import cli, control_plane, waiting
from tests.harness.control_plane import ControlPlane

MI = 1 << 20
NODES = ("seen-general-0", "seen-general-1", "seen-general-2", "seen-silent-0")
pytestmark = pytest.mark.cluster

FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: seen}
spec:
  nodePools:
    - {name: general, replicas: 3, usage: {cpu: 250m, memory: 50%}}
    - {name: silent, replicas: 1}
    - {name: scaled, autoscaler: {min: 0, max: 5}}
  kwokResources: [{file: objects/debug.yaml}]
  waves:
    - name: steps
      namespace: seen-steps
      pools: [general]
      usage:
        - {for: 8s, cpu: 1, memory: 100Mi}
        - {for: 8s, cpu: 50%}
        - {for: 1h, memory: 300Mi}
      template: &pod
        apiVersion: v1
        kind: Pod
        spec:
          containers:
            - {name: one, image: none, resources: {requests: {cpu: 4, memory: 1Gi}}}
            - {name: two, image: none}
    - {name: plain, namespace: seen-plain, pools: [general], template: *pod}
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {name: default}
spec: {port: PORT, leaseDuration: 40s}
"""
DEBUG = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterLogs
metadata: {name: seen}
spec: {logs: [{logsFile: LOG}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterExec
metadata: {name: seen, labels: {why: tests}}
spec: {selector: {matchNamespaces: [seen-plain]}, execs: [{local: {workDir: /, envs: [{name: WHO, value: fake}]}}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Logs
metadata: {name: by-name, namespace: seen-logs}
spec: {logs: [{containers: [one], logsFile: LOG, follow: false}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Metric
metadata: {name: seen-own}
spec:
  path: "/metrics/own/{nodeName}"
  metrics:
    - {name: seen_one, kind: gauge, value: "1.0"}
    - name: seen_many
      help: Many.
      kind: histogram
      dimension: node
      buckets: [{le: 0.5, value: "1.0"}, {le: 1, value: "2.0", hidden: true}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Attach
metadata: {name: by-name, namespace: seen-logs}
spec: {attaches: [{containers: [one], logsFile: LOG}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterAttach
metadata: {name: seen, annotations: {}}
spec: {selector: {matchNames: [nobody]}, attaches: [{logsFile: LOG}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterAttach
metadata: {name: seen-plain}
spec: {selector: {matchNamespaces: [seen-plain]}, attaches: [{logsFile: CONSOLE}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Exec
metadata: {name: by-name}
spec: {execs: [{containers: [one], local: {securityContext: {runAsUser: 1000, runAsGroup: 1000}}}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: PortForward
metadata: {name: by-name, namespace: seen-logs}
spec: {forwards: [{ports: [80], target: {address: 127.0.0.1, port: 8080}}, {command: [cat]}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterPortForward
metadata: {name: seen}
spec: {selector: null, forwards: [{ports: [80], target: {address: 127.0.0.1, port: KWOK}}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ResourceUsage
metadata: {name: by-name, namespace: seen-logs}
spec: {usages: [{containers: [one], usage: {cpu: {value: 1}, memory: {expression: Quantity("1Gi")}}}]}
"""
"""One of each kind, with every field somewhere, but for ClusterResourceUsage: that is ours."""
LINE = "a line of a fake pod"


@dataclass(frozen=True)
class Lab:
    """A cluster with a fleet on it, and the kwok that plays it."""

    program: cli.Cli
    cluster: ControlPlane
    files: Path
    kept: supervisor.Supervisor
    tree: render.Tree
    port: int

    def start(self, wave: str) -> str:
        """Make the first object of a wave, and return its name once it runs."""
        [fleet] = self.tree.fleets
        [chosen] = [each for each in fleet.spec.waves if each.name == wave]
        made = workloads.object_factory(render.run_context(self.tree, fleet, chosen, str(time.monotonic_ns())))(0)
        self.cluster.apply(made)
        name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
        self.cluster.kubectl(
            "wait", f"pod/{name}", "-n", namespace, "--for=jsonpath={.status.phase}=Running", "--timeout=60s"
        )
        return str(name)

    def figures(self, node: str) -> dict[str, float]:
        """Return what kwok tells of a node, by series."""
        url = f"http://127.0.0.1:{self.port}/metrics/nodes/{node}/metrics/resource"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}

    def of_pod(self, name: str, what: str) -> float:
        """Return a figure of a pod, wherever it is."""
        for node in NODES:
            for series, value in self.figures(node).items():
                if series.startswith(f"{what}{{") and f'pod="{name}"' in series:
                    return value
        return 0.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Sync the fleet to a cluster of its own, and run kwok as the keeper does."""
    folder = tmp_path_factory.mktemp("usage")
    for program in cli.isolated(folder):
        program.ok("cluster", "up")
        where = program.where()
        port, files = _written(folder)
        program.ok("sync", str(files), "--yes", KUBECONFIG=str(where.kubeconfig))
        tree = loader.Loader().load(files).tree
        tools = binaries.ensure(settings.from_environment(os.environ), progress.discard)
        wanted = _wanted(tools.path("kwok"), where.kubeconfig, tree)
        api = client.connect(kubeconfig=where.kubeconfig)
        with supervisor.Supervisor(api, wanted, folder / "kwok", lambda: [(name, "") for name in NODES], api) as kept:
            _until_ready(kept)
            yield Lab(program, control_plane.ControlPlane(where, tools), files, kept, tree, port)
        api.close()


def _until_ready(kept: supervisor.Supervisor) -> None:
    waiting.until(lambda: [each.state for each in kept.statuses()] == [shard.ShardState.READY])


def _written(folder: Path) -> tuple[int, Path]:
    log = folder / "pod.log"
    log.write_text(f"2026-03-02T08:00:00.000000000Z stdout F {LINE}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    files = folder / "fleets"
    (files / "objects").mkdir(parents=True)
    (files / "seen.yaml").write_text(FLEET.replace("PORT", str(port)))
    text = DEBUG.replace("LOG", str(log)).replace("CONSOLE", str(_console(files))).replace("KWOK", str(port))
    (files / "objects" / "debug.yaml").write_text(text)
    return port, files


def _console(files: Path) -> Path:
    """Return the file that is shown to whoever attaches."""
    return files.parent / "console.log"


def _wanted(program: Path, kubeconfig: Path, tree: render.Tree) -> backend.DesiredKwok:
    desired = render.Renderer().desired(tree, datetime.now(UTC))
    return backend.DesiredKwok(
        program,
        tree.controller,
        kubeconfig,
        kinds=render.kwok_kinds(tree),
        mark=flags.static_digest(desired.values()),
    )


def test_every_node_has_figures(lab: Lab) -> None:
    """Also one without a pod: metrics-server passes over zeros."""
    for node in NODES:
        found = lab.figures(node)
        assert found["node_cpu_usage_seconds_total"] > 0
        assert found["node_memory_working_set_bytes"] > 0
        assert found["resource_scrape_error"] == 0


def test_a_node_of_the_autoscaler_points_at_its_own_figures(lab: Lab) -> None:
    """Made from the template of its pool, as the autoscaler does, which knows of no other name."""
    [fleet] = lab.tree.fleets
    [pool] = [each for each in fleet.spec.node_pools if each.autoscaler]
    node = nodes.autoscaler_template(pool, (), render.node_context(lab.tree, fleet, pool), ready=True)
    lab.cluster.apply({**node, "metadata": {**node["metadata"], "name": "seen-scaled-x"}})

    def path() -> str | None:
        found = lab.cluster.get("node", "seen-scaled-x")["metadata"]["annotations"].get(usage.METRICS_PATH)
        return str(found) if found else None

    try:
        assert waiting.until(path) == "/metrics/nodes/seen-scaled-x/metrics/resource"
        assert lab.figures("seen-scaled-x")["node_memory_working_set_bytes"] > 0
    finally:
        lab.cluster.kubectl("delete", "node", "seen-scaled-x")


def test_usage_follows_the_phases_of_its_wave(lab: Lab) -> None:
    """Amounts are the whole pod's, shares are of the requests, and what a phase does not name stays."""
    name = lab.start("steps")
    seen: list[tuple[float, int]] = []
    before = (time.monotonic(), lab.of_pod(name, "pod_cpu_usage_seconds_total"))

    def third_phase() -> bool:
        nonlocal before
        time.sleep(1)
        now = (time.monotonic(), lab.of_pod(name, "pod_cpu_usage_seconds_total"))
        cores = round((now[1] - before[1]) / (now[0] - before[0]), 1)
        before = now
        seen.append((cores, round(lab.of_pod(name, "pod_memory_working_set_bytes") / MI)))
        return seen[-1] == (2.0, 300)

    waiting.until(third_phase, deadline_s=60)
    assert (1.0, 100) in seen
    assert (2.0, 100) in seen
    assert seen.index((1.0, 100)) < seen.index((2.0, 100))


def test_pods_of_no_phase_use_what_their_pool_says(lab: Lab) -> None:
    """Half of the gibibyte that one of its containers requests; a quarter of a core."""
    name = lab.start("plain")
    waiting.until(lambda: lab.of_pod(name, "pod_memory_working_set_bytes") == 512 * MI)
    asked = time.monotonic()
    first, begun = lab.of_pod(name, "pod_cpu_usage_seconds_total"), time.monotonic()
    time.sleep(2)
    ended = time.monotonic()
    used, answered = lab.of_pod(name, "pod_cpu_usage_seconds_total") - first, time.monotonic()
    assert 0.8 * 0.25 * (ended - begun) <= used <= 1.2 * 0.25 * (answered - asked)


def test_metrics_of_one_s_own_are_served(lab: Lab) -> None:
    """Beside ours, at their own path."""
    with urllib.request.urlopen(f"http://127.0.0.1:{lab.port}/metrics/own/seen-silent-0", timeout=10) as answer:
        assert "seen_one 1" in answer.read().decode()


def test_logs_are_those_of_the_declared_file(lab: Lab) -> None:
    """Kubectl asks the API server, which asks the address and port of the node's status."""
    name = lab.start("plain")
    assert lab.cluster.kubectl("logs", name, "-n", "seen-plain", "-c", "one").strip() == LINE


def test_exec_runs_where_it_is_declared_and_nowhere_else(lab: Lab) -> None:
    """In the namespace that the file names."""
    allowed, refused = lab.start("plain"), lab.start("steps")
    said = lab.cluster.kubectl("exec", allowed, "-n", "seen-plain", "-c", "one", "--", "sh", "-c", "echo $WHO; pwd")
    assert said.split() == ["fake", "/"]
    done = lab.cluster.try_kubectl("exec", refused, "-n", "seen-steps", "-c", "one", "--", "echo", "no")
    assert done.returncode != 0
    assert "no exec found" in done.stderr


@contextmanager
def kubectl(lab: Lab, *arguments: str) -> Iterator[IO[str]]:
    """Start kubectl, which goes on by itself, and give what it says."""
    command = [str(lab.cluster.tools.path("kubectl")), "--kubeconfig", str(lab.cluster.kubeconfig), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.terminate()


def test_attach_shows_what_is_written_to_the_declared_file(lab: Lab) -> None:
    """From then on, in the namespace that the file names; elsewhere there is nothing to attach to."""
    allowed, refused = lab.start("plain"), lab.start("steps")
    console = _console(lab.files)
    console.touch()
    with kubectl(lab, "attach", allowed, "-n", "seen-plain", "-c", "one") as said, console.open("a") as sink:

        def hears() -> bool:
            sink.write(f"2026-03-02T08:00:00.000000000Z stdout F {LINE}\n")
            sink.flush()
            return bool(select.select([said], [], [], 0.2)[0])

        waiting.until(hears)
        assert said.readline().strip() == LINE
    done = lab.cluster.try_kubectl("attach", refused, "-n", "seen-steps", "-c", "one")
    assert done.returncode != 0
    assert "no attaches found" in done.stderr


def test_ports_are_forwarded_where_a_file_says(lab: Lab) -> None:
    """A port of a pod that is kwok itself."""
    name = lab.start("plain")
    with kubectl(lab, "port-forward", f"pod/{name}", "-n", "seen-plain", ":80") as said:
        local = re.search(r"127\.0\.0\.1:(\d+)", said.readline())
        assert local is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{local[1]}/healthz", timeout=10) as answer:
            assert answer.read() == b"ok"


def test_nodes_point_at_their_kwok(lab: Lab) -> None:
    """Without a hostname, which the API server would ask first."""
    status = lab.cluster.get("node", "seen-general-0")["status"]
    assert status["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == lab.port


def test_what_was_synced_differs_in_nothing(lab: Lab) -> None:
    """Though the API server fills in defaults, and kwok writes to the same nodes."""
    done = lab.program.run("diff", str(lab.files), KUBECONFIG=str(lab.cluster.kubeconfig))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_what_no_file_declares_any_more_goes(lab: Lab, tmp_path: Path) -> None:
    """Objects of every kind; the nodes show made-up addresses again, and nothing of usage."""
    text = (lab.files / "seen.yaml").read_text().partition("---")[0]
    text = text.replace("kwokResources: [{file: objects/debug.yaml}]", "prune: {maxPercent: 100}")
    text = re.sub(r", usage: \{.*?\}\}", "}", text)
    text = re.sub(r"      usage:\n(        - .*\n)+", "", text)
    (tmp_path / "seen.yaml").write_text(text)
    variables = {"KUBECONFIG": str(lab.cluster.kubeconfig)}
    lab.program.ok("sync", str(tmp_path), "--yes", **variables)
    kinds = ",".join(f"{each.plural}.kwok.x-k8s.io" for each in requests.KWOK_KINDS)
    assert lab.cluster.get(kinds, "-A")["items"] == []
    node = lab.cluster.get("node", "seen-general-0")
    assert {each["type"] for each in node["status"]["addresses"]} == {"InternalIP", "Hostname"}
    assert not any("usage" in key for key in node["metadata"]["annotations"])
    assert lab.program.run("diff", str(tmp_path), **variables).returncode == 0
    lab.cluster.kubectl("wait", "--for=delete", "namespace/seen-logs", "--timeout=60s")
    lab.program.ok("sync", str(lab.files), "--yes", **variables)
    assert lab.program.run("diff", str(lab.files), **variables).returncode == 0
