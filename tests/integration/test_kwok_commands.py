"""The `kwokfleet kwok` commands."""

import json
import os
import secrets
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import cli, kwok, supervised_kwok, waiting
from tests.harness.control_plane import ControlPlane

if TYPE_CHECKING:
    from subprocess import Popen

Manifest = dict[str, Any]
FILES = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}}}
spec: {{nodePools: [{{name: pool, replicas: 3}}], {fleet}}}
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{manage: {{label: kwokfleet.dev/fleet={name}}}, {controller}}}
"""
STAGE = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: NAME}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {own: stage}
    matchExpressions:
      - jq: {key: 'KEY', operator: Exists}
  steps: [{patch: {subresource: status, root: status, template: "phase: Failed"}}]
"""
METRIC = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Metric
metadata: {name: NAME}
spec: {path: "/metrics/own/{nodeName}", metrics: [{name: own_one, kind: gauge, value: "1.0"}]}
"""
ERROR_PLACE = "own.yaml:10:"
"""Place of an error in KEY."""


class KwokTestbed:
    """A fleet folder, a cluster and the CLI."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program, self.name = cluster, program, f"k-{secrets.token_hex(3)}"
        self.file = folder / "fleet.yaml"
        self.stderr = ""
        """Log of the last run, after its end."""
        self.write()

    def write(self, controller: str = "", fleet: str = "") -> None:
        """Write the fleet file, with more fields of the KwokController and the Fleet."""
        self.file.write_text(FILES.format(name=self.name, controller=controller, fleet=fleet))

    def write_stage(self, key: str) -> None:
        """Write a Stage file with a jq expression."""
        self.file.with_name("own.yaml").write_text(STAGE.replace("NAME", self.name).replace("KEY", key))

    def status(self) -> Manifest:
        """Return `kwok status --json`."""
        status: Manifest = json.loads(self.program.run("kwok", "status", "--json").stdout)
        return status

    @contextmanager
    def running(self) -> Iterator["Popen[str]"]:
        """Run kwok until the block ends."""
        process = self.program.start("kwok", "run", str(self.file))
        try:
            waiting.until(lambda: process.poll() is not None or self.is_ready(), deadline_s=90)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            _, self.stderr = process.communicate(timeout=60)

    def is_ready(self) -> bool:
        """Return whether the process drives its nodes."""
        return any(process["state"] == "ready" and process["identity"] for process in self.status()["processes"])

    def replicas(self) -> tuple[int, dict[str, str]]:
        """Return the replicas of the other kwok and its kwokfleet annotations."""
        deployment = self.cluster.get("deployment", "kwok-controller", "-n", self.name)
        ours = {
            key: value for key, value in deployment["metadata"].get("annotations", {}).items() if "kwokfleet" in key
        }
        return deployment["spec"]["replicas"], ours


def read_until(process: "Popen[str]", text: str) -> list[str]:
    """Return the log of a process up to a line that contains a text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the process ended without {text!r}: {lines}")


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[KwokTestbed]:
    """Return a testbed with its own nodes; delete them at the end."""
    kwok.install_crds(cluster)
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    testbed = KwokTestbed(cluster, program, tmp_path)
    cluster.kubectl("create", "namespace", testbed.name)
    program.ok("sync", str(testbed.file))
    yield testbed
    program.ok("delete", testbed.name, "--yes")
    cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


@pytest.fixture
def foreign_kwok(testbed: KwokTestbed) -> Iterator[None]:
    """Create another kwok Deployment; its pods need not run."""
    labels = {"app": "kwok-controller"}
    container = {"name": "kwok", "image": "registry.k8s.io/kwok/kwok:v0.8.0"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    metadata = {"name": "kwok-controller", "namespace": testbed.name}
    testbed.cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    yield
    # Its namespace is deleted slowly, and kwok in a later test would find the Deployment.
    testbed.cluster.kubectl("delete", "deployment", "kwok-controller", "-n", testbed.name)


def test_run_status_logs_restart_and_stop(testbed: KwokTestbed) -> None:
    """After a stop no process is left."""
    with testbed.running() as process:
        [before] = testbed.status()["processes"]
        assert testbed.program.run("kwok", "run", str(testbed.file)).returncode == 5
        testbed.program.ok("kwok", "restart")
        [after] = testbed.status()["processes"]
        assert after["pid"] != before["pid"]
        assert not supervised_kwok.process_exists(before["pid"])
        assert testbed.program.run("kwok", "logs").returncode == 0
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert not supervised_kwok.process_exists(after["pid"])
    assert testbed.status()["processes"] == []


def test_kwok_does_not_outlive_a_killed_kwokfleet(testbed: KwokTestbed) -> None:
    """After kill -9 of kwokfleet no orphan is left, and the next run drives the nodes without waiting for leases."""
    with testbed.running() as process:
        [before] = testbed.status()["processes"]
        os.kill(process.pid, signal.SIGKILL)
        waiting.until(lambda: not supervised_kwok.process_exists(before["pid"]), deadline_s=10)
    with testbed.running():
        [after] = testbed.status()["processes"]
        assert after["identity"] != before["identity"]
        waiting.until(lambda: before["identity"] not in {holder["holder"] for holder in testbed.status()["holders"]})


def test_another_kwok_is_an_error_by_default(testbed: KwokTestbed, foreign_kwok: None) -> None:
    """The error names its Deployment, which is not changed."""
    done = testbed.program.run("kwok", "run", str(testbed.file))
    assert done.returncode == 5
    assert f"Deployment {testbed.name}/kwok-controller (2 replicas)" in done.stderr
    assert testbed.replicas() == (2, {})


def test_scale_down_policy_restores_the_replicas_on_exit(testbed: KwokTestbed, foreign_kwok: None) -> None:
    """The other kwok has 0 replicas while ours runs."""
    testbed.write("takeover: {policy: scaleDown}")
    with testbed.running():
        assert testbed.replicas() == (0, {"kwokfleet.dev/replicas": "2"})
    assert testbed.replicas() == (2, {}), testbed.stderr


def test_replicas_can_be_restored_after_a_crash(testbed: KwokTestbed, foreign_kwok: None) -> None:
    """An annotation in the cluster keeps their number."""
    testbed.write("takeover: {policy: scaleDown}")
    with testbed.running() as process:
        os.kill(process.pid, signal.SIGKILL)
    assert testbed.replicas()[0] == 0
    assert f"{testbed.name}/kwok-controller: 2 replicas" in testbed.program.ok("kwok", "restore")
    assert testbed.replicas() == (2, {})
    assert "nothing to restore" in testbed.program.run("kwok", "restore").stderr


@pytest.mark.parametrize("stages_as", ["resources", "file"])
def test_an_invalid_stage_never_reaches_kwok(testbed: KwokTestbed, stages_as: str) -> None:
    """The error is logged once with its line; the last valid Stage stays until the file is fixed."""
    testbed.write(f"stagesAs: {stages_as}", "stages: [{file: own.yaml}]")
    testbed.write_stage(".status.good")
    testbed.program.ok("sync", str(testbed.file))
    with testbed.running() as process:
        read_until(process, "Ctrl-C stops it")
        [before] = testbed.status()["processes"]
        testbed.write_stage(".status.bad[")
        lines = read_until(process, "continues with the last valid files")
        refused = testbed.program.run("sync", str(testbed.file))
        assert refused.returncode == 2
        assert ERROR_PLACE in refused.stderr
        stages = current_stages(testbed, stages_as)
        assert ".status.good" in stages
        assert ".status.bad" not in stages
        testbed.write_stage(".status.better")
        lines += read_until(process, "valid again")
        assert sum(ERROR_PLACE in line for line in lines) == 1
        testbed.program.ok("sync", str(testbed.file))
        waiting.until(lambda: ".status.better" in current_stages(testbed, stages_as))
        waiting.until(lambda: (testbed.status()["processes"][0]["pid"] == before["pid"]) == (stages_as == "resources"))
        assert testbed.status()["processes"][0]["restarts"] == 0


def current_stages(testbed: KwokTestbed, stages_as: str) -> str:
    """Return the Stages that kwok uses, as text."""
    if stages_as == "resources":
        return testbed.cluster.kubectl("get", "stage", testbed.name, "-o", "yaml")
    [config] = testbed.program.data_dir.glob("kwok/*/shard-0/kwok.yaml")
    return config.read_text()


def test_stages_as_file_puts_all_kinds_into_the_file(testbed: KwokTestbed) -> None:
    """Nothing of it is in the cluster, and kwok uses it."""
    testbed.write("stagesAs: file", "kwokResources: [{file: own.yaml}]")
    testbed.file.with_name("own.yaml").write_text(METRIC.replace("NAME", testbed.name))
    testbed.program.ok("sync", str(testbed.file))
    assert "NotFound" in testbed.cluster.try_kubectl("get", "metrics.kwok.x-k8s.io", testbed.name).stderr
    with testbed.running():
        [process] = testbed.status()["processes"]
        url = f"http://127.0.0.1:{process['port']}/metrics/own/{testbed.name}-pool-0"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert "own_one 1" in response.read().decode()
        assert testbed.program.run("diff", str(testbed.file)).returncode == 0


def test_an_external_kwok_is_observed(testbed: KwokTestbed, tmp_path: Path) -> None:
    """Found and vanished drivers are logged; no process is started."""
    testbed.write("mode: external, leaseDuration: 4s")
    with kwok.running(
        testbed.cluster, tmp_path / "other", selector=f"kwokfleet.dev/fleet={testbed.name}", lease_s=4
    ) as other:
        waiting.until(lambda: testbed.program.run("kwok", "status", str(testbed.file)).returncode == 0)
        process = testbed.program.start("kwok", "run", str(testbed.file))
        try:
            found_event = json.loads(read_until(process, "driver_found")[-1])
            status = json.loads(testbed.program.ok("kwok", "status", str(testbed.file), "--json"))
            assert (status["mode"], status["processes"], status["nodes"]["undriven"]) == ("external", [], [])
            assert [(holder["holder"], holder["fresh"]) for holder in status["holders"]] == [(found_event["holder"], 3)]
            other.kill()
            vanished = json.loads(read_until(process, "driver_vanished")[-1])
            assert (vanished["holder"], vanished["nodes"]) == (found_event["holder"], 3)
            read_until(process, "nodes_not_driven")
            after = testbed.program.run("kwok", "status", str(testbed.file))
            assert (after.returncode, "kwokfleet does not run kwok" in after.stderr) == (1, True)
            assert f"0 of 3 nodes driven; not driven: {testbed.name}-pool-0" in after.stdout
        finally:
            process.terminate()
            process.communicate(timeout=60)
