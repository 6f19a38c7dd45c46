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
WRONG = "own.yaml:10:"
"""Where it is wrong if KEY is."""


class Lab:
    """A folder of files, a cluster, and the program."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program, self.name = cluster, program, f"k-{secrets.token_hex(3)}"
        self.file = folder / "fleet.yaml"
        self.said = ""
        """What the last run said, once it has ended."""
        self.write()

    def write(self, controller: str = "", fleet: str = "") -> None:
        """Write the fleet file, with more fields of the KwokController and the Fleet."""
        self.file.write_text(FILES.format(name=self.name, controller=controller, fleet=fleet))

    def write_stage(self, key: str) -> None:
        """Write a Stage file with a jq expression."""
        self.file.with_name("own.yaml").write_text(STAGE.replace("NAME", self.name).replace("KEY", key))

    def status(self) -> Manifest:
        """Return `kwok status --json`."""
        found: Manifest = json.loads(self.program.run("kwok", "status", "--json").stdout)
        return found

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
            _, self.said = process.communicate(timeout=60)

    def is_ready(self) -> bool:
        """Return whether the process drives its nodes."""
        return any(each["state"] == "ready" and each["identity"] for each in self.status()["processes"])

    def replicas(self) -> tuple[int, dict[str, str]]:
        """Return the replicas of the other kwok and its annotations of kwokfleet."""
        found = self.cluster.get("deployment", "kwok-controller", "-n", self.name)
        ours = {key: value for key, value in found["metadata"].get("annotations", {}).items() if "kwokfleet" in key}
        return found["spec"]["replicas"], ours


def read_until(process: "Popen[str]", text: str) -> list[str]:
    """Return the log of a program up to a line with a text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"it ended without {text!r}: {lines}")


@pytest.fixture
def lab(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[Lab]:
    """Return a testbed with its own nodes; delete them at the end."""
    kwok.install_crds(cluster)
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    made = Lab(cluster, program, tmp_path)
    cluster.kubectl("create", "namespace", made.name)
    program.ok("sync", str(made.file))
    yield made
    program.ok("delete", made.name, "--yes")
    cluster.kubectl("delete", "namespace", made.name, "--wait=false")


@pytest.fixture
def foreign_kwok(lab: Lab) -> Iterator[None]:
    """Create another kwok Deployment; its pods need not run."""
    labels = {"app": "kwok-controller"}
    container = {"name": "kwok", "image": "registry.k8s.io/kwok/kwok:v0.8.0"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    metadata = {"name": "kwok-controller", "namespace": lab.name}
    lab.cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    yield
    # Its namespace takes its time to go, and every kwok of a later test would find it there.
    lab.cluster.kubectl("delete", "deployment", "kwok-controller", "-n", lab.name)


def test_run_status_logs_restart_and_stop(lab: Lab) -> None:
    """After a stop no process is left."""
    with lab.running() as process:
        [before] = lab.status()["processes"]
        assert lab.program.run("kwok", "run", str(lab.file)).returncode == 5
        lab.program.ok("kwok", "restart")
        [after] = lab.status()["processes"]
        assert after["pid"] != before["pid"]
        assert not supervised_kwok.process_exists(before["pid"])
        assert lab.program.run("kwok", "logs").returncode == 0
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert not supervised_kwok.process_exists(after["pid"])
    assert lab.status()["processes"] == []


def test_kwok_does_not_outlive_a_killed_kwokfleet(lab: Lab) -> None:
    """After kill -9 of kwokfleet no orphan is left, and the next run drives the nodes without waiting for leases."""
    with lab.running() as process:
        [before] = lab.status()["processes"]
        os.kill(process.pid, signal.SIGKILL)
        waiting.until(lambda: not supervised_kwok.process_exists(before["pid"]), deadline_s=10)
    with lab.running():
        [after] = lab.status()["processes"]
        assert after["identity"] != before["identity"]
        waiting.until(lambda: before["identity"] not in {each["holder"] for each in lab.status()["holders"]})


def test_another_kwok_is_an_error_by_default(lab: Lab, foreign_kwok: None) -> None:
    """The error names its Deployment, which is not changed."""
    done = lab.program.run("kwok", "run", str(lab.file))
    assert done.returncode == 5
    assert f"Deployment {lab.name}/kwok-controller (2 replicas)" in done.stderr
    assert lab.replicas() == (2, {})


def test_scale_down_policy_restores_the_replicas_on_exit(lab: Lab, foreign_kwok: None) -> None:
    """The other kwok has 0 replicas while ours runs."""
    lab.write("takeover: {policy: scaleDown}")
    with lab.running():
        assert lab.replicas() == (0, {"kwokfleet.dev/replicas": "2"})
    assert lab.replicas() == (2, {}), lab.said


def test_replicas_can_be_restored_after_a_crash(lab: Lab, foreign_kwok: None) -> None:
    """An annotation in the cluster keeps their number."""
    lab.write("takeover: {policy: scaleDown}")
    with lab.running() as process:
        os.kill(process.pid, signal.SIGKILL)
    assert lab.replicas()[0] == 0
    assert f"{lab.name}/kwok-controller: 2 replicas" in lab.program.ok("kwok", "restore")
    assert lab.replicas() == (2, {})
    assert "nothing to restore" in lab.program.run("kwok", "restore").stderr


@pytest.mark.parametrize("stages_as", ["resources", "file"])
def test_an_invalid_stage_never_reaches_kwok(lab: Lab, stages_as: str) -> None:
    """The error is logged once with its line; the last valid Stage stays until the file is fixed."""
    lab.write(f"stagesAs: {stages_as}", "stages: [{file: own.yaml}]")
    lab.write_stage(".status.good")
    lab.program.ok("sync", str(lab.file))
    with lab.running() as process:
        read_until(process, "Ctrl-C stops it")
        [before] = lab.status()["processes"]
        lab.write_stage(".status.bad[")
        said = read_until(process, "continues with the last valid files")
        refused = lab.program.run("sync", str(lab.file))
        assert refused.returncode == 2
        assert WRONG in refused.stderr
        played = current_stages(lab, stages_as)
        assert ".status.good" in played
        assert ".status.bad" not in played
        lab.write_stage(".status.better")
        said += read_until(process, "valid again")
        assert sum(WRONG in line for line in said) == 1
        lab.program.ok("sync", str(lab.file))
        waiting.until(lambda: ".status.better" in current_stages(lab, stages_as))
        waiting.until(lambda: (lab.status()["processes"][0]["pid"] == before["pid"]) == (stages_as == "resources"))
        assert lab.status()["processes"][0]["restarts"] == 0


def current_stages(lab: Lab, stages_as: str) -> str:
    """Return the Stages that kwok uses, as text."""
    if stages_as == "resources":
        return lab.cluster.kubectl("get", "stage", lab.name, "-o", "yaml")
    [config] = lab.program.data_dir.glob("kwok/*/shard-0/kwok.yaml")
    return config.read_text()


def test_stages_as_file_puts_all_kinds_into_the_file(lab: Lab) -> None:
    """Nothing of it is in the cluster, and kwok uses it."""
    lab.write("stagesAs: file", "kwokResources: [{file: own.yaml}]")
    lab.file.with_name("own.yaml").write_text(METRIC.replace("NAME", lab.name))
    lab.program.ok("sync", str(lab.file))
    assert "NotFound" in lab.cluster.try_kubectl("get", "metrics.kwok.x-k8s.io", lab.name).stderr
    with lab.running():
        [process] = lab.status()["processes"]
        url = f"http://127.0.0.1:{process['port']}/metrics/own/{lab.name}-pool-0"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert "own_one 1" in answer.read().decode()
        assert lab.program.run("diff", str(lab.file)).returncode == 0


def test_an_external_kwok_is_observed(lab: Lab, tmp_path: Path) -> None:
    """Found and vanished drivers are logged; no process is started."""
    lab.write("mode: external, leaseDuration: 4s")
    with kwok.running(lab.cluster, tmp_path / "other", selector=f"kwokfleet.dev/fleet={lab.name}", lease_s=4) as other:
        waiting.until(lambda: lab.program.run("kwok", "status", str(lab.file)).returncode == 0)
        process = lab.program.start("kwok", "run", str(lab.file))
        try:
            found = json.loads(read_until(process, "driver_found")[-1])
            status = json.loads(lab.program.ok("kwok", "status", str(lab.file), "--json"))
            assert (status["mode"], status["processes"], status["nodes"]["undriven"]) == ("external", [], [])
            assert [(each["holder"], each["fresh"]) for each in status["holders"]] == [(found["holder"], 3)]
            other.kill()
            vanished = json.loads(read_until(process, "driver_vanished")[-1])
            assert (vanished["holder"], vanished["nodes"]) == (found["holder"], 3)
            read_until(process, "nodes_not_driven")
            after = lab.program.run("kwok", "status", str(lab.file))
            assert (after.returncode, "kwokfleet does not run kwok" in after.stderr) == (1, True)
            assert f"0 of 3 nodes driven; not driven: {lab.name}-pool-0" in after.stdout
        finally:
            process.terminate()
            process.communicate(timeout=60)
