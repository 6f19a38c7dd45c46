"""Usage metrics and debugging of fake pods on a real cluster: metrics, logs, exec, attach, port-forward."""

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
"""One object of each kind except ClusterResourceUsage, which we write; together they use every field."""
LINE = "a line of a fake pod"


@dataclass(frozen=True)
class UsageTestbed:
    """A cluster with a synced fleet, and the Supervisor of its kwok."""

    program: cli.Cli
    cluster: ControlPlane
    files: Path
    kwok_supervisor: supervisor.Supervisor
    tree: render.Tree
    port: int

    def start(self, wave: str) -> str:
        """Create the first object of a wave; return its name when it runs."""
        [fleet] = self.tree.fleets
        [chosen] = [candidate for candidate in fleet.spec.waves if candidate.name == wave]
        manifest = workloads.object_factory(render.run_context(self.tree, fleet, chosen, str(time.monotonic_ns())))(0)
        self.cluster.apply(manifest)
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        self.cluster.kubectl(
            "wait", f"pod/{name}", "-n", namespace, "--for=jsonpath={.status.phase}=Running", "--timeout=60s"
        )
        return str(name)

    def node_metrics(self, node: str) -> dict[str, float]:
        """Return kwok's metrics of a node, by series."""
        url = f"http://127.0.0.1:{self.port}/metrics/nodes/{node}/metrics/resource"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}

    def pod_metric(self, name: str, what: str) -> float:
        """Return a metric of a pod on any node."""
        for node in NODES:
            for series, value in self.node_metrics(node).items():
                if series.startswith(f"{what}{{") and f'pod="{name}"' in series:
                    return value
        return 0.0


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsageTestbed]:
    """Sync the fleet to a separate cluster, and run kwok with a Supervisor."""
    folder = tmp_path_factory.mktemp("usage")
    for program in cli.isolated(folder):
        program.ok("cluster", "up")
        where = program.where()
        port, files = _write_files(folder)
        program.ok("sync", str(files), "--yes", KUBECONFIG=str(where.kubeconfig))
        tree = loader.Loader().load(files).tree
        tools = binaries.ensure(settings.from_environment(os.environ), progress.discard)
        desired_kwok = _desired_kwok(tools.path("kwok"), where.kubeconfig, tree)
        api = client.connect(kubeconfig=where.kubeconfig)
        with supervisor.Supervisor(
            api, desired_kwok, folder / "kwok", lambda: [(name, "") for name in NODES], api
        ) as kwok_supervisor:
            _until_ready(kwok_supervisor)
            yield UsageTestbed(program, control_plane.ControlPlane(where, tools), files, kwok_supervisor, tree, port)
        api.close()


def _until_ready(kwok_supervisor: supervisor.Supervisor) -> None:
    waiting.until(lambda: [status.state for status in kwok_supervisor.statuses()] == [shard.ShardState.READY])


def _write_files(folder: Path) -> tuple[int, Path]:
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
    """Return the file that `attach` shows."""
    return files.parent / "console.log"


def _desired_kwok(program: Path, kubeconfig: Path, tree: render.Tree) -> backend.DesiredKwok:
    desired = render.Renderer().desired(tree, datetime.now(UTC))
    return backend.DesiredKwok(
        program,
        tree.controller,
        kubeconfig,
        kinds=render.kwok_kinds(tree),
        mark=flags.static_digest(desired.values()),
    )


def test_every_node_has_metrics(testbed: UsageTestbed) -> None:
    """Also without pods: metrics-server ignores nodes with zero usage."""
    for node in NODES:
        metrics = testbed.node_metrics(node)
        assert metrics["node_cpu_usage_seconds_total"] > 0
        assert metrics["node_memory_working_set_bytes"] > 0
        assert metrics["resource_scrape_error"] == 0


def test_a_node_of_the_autoscaler_gets_its_own_metrics_path(testbed: UsageTestbed) -> None:
    """It is created from the pool's template, which has another name."""
    [fleet] = testbed.tree.fleets
    [pool] = [candidate for candidate in fleet.spec.node_pools if candidate.autoscaler]
    node = nodes.autoscaler_template(pool, (), render.node_context(testbed.tree, fleet, pool), ready=True)
    testbed.cluster.apply({**node, "metadata": {**node["metadata"], "name": "seen-scaled-x"}})

    def path() -> str | None:
        annotation = testbed.cluster.get("node", "seen-scaled-x")["metadata"]["annotations"].get(usage.METRICS_PATH)
        return str(annotation) if annotation else None

    try:
        assert waiting.until(path) == "/metrics/nodes/seen-scaled-x/metrics/resource"
        assert testbed.node_metrics("seen-scaled-x")["node_memory_working_set_bytes"] > 0
    finally:
        testbed.cluster.kubectl("delete", "node", "seen-scaled-x")


def test_usage_follows_the_phases_of_its_wave(testbed: UsageTestbed) -> None:
    """Amounts are per pod, percentages refer to the requests, and a phase keeps values that it does not set."""
    name = testbed.start("steps")
    samples: list[tuple[float, int]] = []
    before = (time.monotonic(), testbed.pod_metric(name, "pod_cpu_usage_seconds_total"))

    def third_phase() -> bool:
        nonlocal before
        time.sleep(1)
        now = (time.monotonic(), testbed.pod_metric(name, "pod_cpu_usage_seconds_total"))
        cores = round((now[1] - before[1]) / (now[0] - before[0]), 1)
        before = now
        samples.append((cores, round(testbed.pod_metric(name, "pod_memory_working_set_bytes") / MI)))
        return samples[-1] == (2.0, 300)

    waiting.until(third_phase, deadline_s=60)
    assert (1.0, 100) in samples
    assert (2.0, 100) in samples
    assert samples.index((1.0, 100)) < samples.index((2.0, 100))


def test_pods_without_phases_have_the_usage_of_their_pool(testbed: UsageTestbed) -> None:
    """Half of the 1Gi that a container requests, and a quarter of a core."""
    name = testbed.start("plain")
    waiting.until(lambda: testbed.pod_metric(name, "pod_memory_working_set_bytes") == 512 * MI)
    before_first = time.monotonic()
    first, begun = testbed.pod_metric(name, "pod_cpu_usage_seconds_total"), time.monotonic()
    time.sleep(2)
    ended = time.monotonic()
    used, after_last = testbed.pod_metric(name, "pod_cpu_usage_seconds_total") - first, time.monotonic()
    assert 0.8 * 0.25 * (ended - begun) <= used <= 1.2 * 0.25 * (after_last - before_first)


def test_declared_metrics_are_served(testbed: UsageTestbed) -> None:
    """At their own path, beside ours."""
    with urllib.request.urlopen(f"http://127.0.0.1:{testbed.port}/metrics/own/seen-silent-0", timeout=10) as response:
        assert "seen_one 1" in response.read().decode()


def test_logs_come_from_the_declared_file(testbed: UsageTestbed) -> None:
    """The API server connects to the address and port in the node's status."""
    name = testbed.start("plain")
    assert testbed.cluster.kubectl("logs", name, "-n", "seen-plain", "-c", "one").strip() == LINE


def test_exec_works_only_where_declared(testbed: UsageTestbed) -> None:
    """In the namespace of the selector."""
    allowed, refused = testbed.start("plain"), testbed.start("steps")
    output = testbed.cluster.kubectl(
        "exec", allowed, "-n", "seen-plain", "-c", "one", "--", "sh", "-c", "echo $WHO; pwd"
    )
    assert output.split() == ["fake", "/"]
    done = testbed.cluster.try_kubectl("exec", refused, "-n", "seen-steps", "-c", "one", "--", "echo", "no")
    assert done.returncode != 0
    assert "no exec found" in done.stderr


@contextmanager
def kubectl(testbed: UsageTestbed, *arguments: str) -> Iterator[IO[str]]:
    """Run kubectl in the background; yield its standard output."""
    command = [str(testbed.cluster.tools.path("kubectl")), "--kubeconfig", str(testbed.cluster.kubeconfig), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.terminate()


def test_attach_follows_the_declared_file(testbed: UsageTestbed) -> None:
    """In the namespace of the selector; elsewhere attach is rejected."""
    allowed, refused = testbed.start("plain"), testbed.start("steps")
    console = _console(testbed.files)
    console.touch()
    with kubectl(testbed, "attach", allowed, "-n", "seen-plain", "-c", "one") as stdout, console.open("a") as sink:

        def receives_line() -> bool:
            sink.write(f"2026-03-02T08:00:00.000000000Z stdout F {LINE}\n")
            sink.flush()
            return bool(select.select([stdout], [], [], 0.2)[0])

        waiting.until(receives_line)
        assert stdout.readline().strip() == LINE
    done = testbed.cluster.try_kubectl("attach", refused, "-n", "seen-steps", "-c", "one")
    assert done.returncode != 0
    assert "no attaches found" in done.stderr


def test_port_forward_reaches_the_declared_target(testbed: UsageTestbed) -> None:
    """The target here is kwok itself."""
    name = testbed.start("plain")
    with kubectl(testbed, "port-forward", f"pod/{name}", "-n", "seen-plain", ":80") as stdout:
        local = re.search(r"127\.0\.0\.1:(\d+)", stdout.readline())
        assert local is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{local[1]}/healthz", timeout=10) as response:
            assert response.read() == b"ok"


def test_nodes_have_the_address_of_their_kwok(testbed: UsageTestbed) -> None:
    """Without a Hostname address, which the API server would prefer."""
    status = testbed.cluster.get("node", "seen-general-0")["status"]
    assert status["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == testbed.port


def test_after_a_sync_nothing_differs(testbed: UsageTestbed) -> None:
    """Despite defaults of the API server and writes of kwok."""
    done = testbed.program.run("diff", str(testbed.files), KUBECONFIG=str(testbed.cluster.kubeconfig))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_objects_that_are_no_longer_declared_are_deleted(testbed: UsageTestbed, tmp_path: Path) -> None:
    """Of every kind; the nodes get fake addresses again and lose the usage annotations."""
    text = (testbed.files / "seen.yaml").read_text().partition("---")[0]
    text = text.replace("kwokResources: [{file: objects/debug.yaml}]", "prune: {maxPercent: 100}")
    text = re.sub(r", usage: \{.*?\}\}", "}", text)
    text = re.sub(r"      usage:\n(        - .*\n)+", "", text)
    (tmp_path / "seen.yaml").write_text(text)
    variables = {"KUBECONFIG": str(testbed.cluster.kubeconfig)}
    testbed.program.ok("sync", str(tmp_path), "--yes", **variables)
    kinds = ",".join(f"{kind.plural}.kwok.x-k8s.io" for kind in requests.KWOK_KINDS)
    assert testbed.cluster.get(kinds, "-A")["items"] == []
    node = testbed.cluster.get("node", "seen-general-0")
    assert {address["type"] for address in node["status"]["addresses"]} == {"InternalIP", "Hostname"}
    assert not any("usage" in key for key in node["metadata"]["annotations"])
    assert testbed.program.run("diff", str(tmp_path), **variables).returncode == 0
    testbed.cluster.kubectl("wait", "--for=delete", "namespace/seen-logs", "--timeout=60s")
    testbed.program.ok("sync", str(testbed.files), "--yes", **variables)
    assert testbed.program.run("diff", str(testbed.files), **variables).returncode == 0
