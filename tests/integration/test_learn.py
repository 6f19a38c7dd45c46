"""`kwokfleet learn` on a real cluster: pods that a real kwok plays by known distributions, learnt while they run."""

import json
import math
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.learn import model
from kwokfleet.measure.result import Clock
from kwokfleet.render import distributions
from tests.harness import cli, daemon_testbed, pod_states, stall_clock, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.sandbox import Sandbox

Manifest = dict[str, Any]
PODS, FEWER = 100, 25
SURE = 1e-6
"""How seldom chance alone may fail a test."""

FLEET = f"""
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: NAME}}
spec:
  nodePools: [{{name: pool, replicas: 10}}]
  lifecycles:
    - name: batch
      pod:
        create: 0.5s..1.5s
        init: 2s
        ready: {{normal: {{mean: 4s, stddev: 0.5s}}}}
        complete: {{after: {{lognormal: {{median: 5s, sigma: 0.5}}}}, when: always}}
        fail: {{probability: 30%, after: {{exponential: {{mean: 4s}}}}, reason: OOMKilled, exitCode: 137}}
    - {{name: service, pod: {{ready: 1s..3s, delete: 2s..5s}}}}
    - {{name: loop, pod: {{restart: {{every: 3s..5s, backoff: 4s, reason: Segfault, exitCode: 139}}}}}}
  waves:
    - name: batch
      start: &soon {{after: 1s}}
      count: {PODS}
      arrivals: {{rate: 5/s}}
      lifecycle: batch
      namespace: NAME
      template:
        apiVersion: v1
        kind: Pod
        spec:
          restartPolicy: Never
          initContainers: [{{name: first, image: none}}]
          containers: &main [{{name: main, image: none}}]
    - name: service
      start: *soon
      count: {FEWER}
      arrivals: {{rate: 2/s}}
      lifecycle: service
      namespace: NAME
      template: &pod {{apiVersion: v1, kind: Pod, spec: {{containers: *main}}}}
    - name: loop
      start: *soon
      count: {FEWER}
      arrivals: {{rate: 2/s}}
      lifecycle: loop
      namespace: NAME
      template: *pod
"""


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Give a test a folder, and leave nothing of ours in the cluster."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def declared() -> dict[str, dict[str, distributions.Distribution]]:
    """Return what the file says, step by step."""
    return {
        "batch": {
            "create": distributions.UniformDistribution(0.5, 1.5),
            "init": distributions.ConstantDistribution(2),
            "ready": distributions.NormalDistribution(4, 0.5),
            "complete": distributions.LogNormalDistribution(5, 0.5),
            "fail": distributions.ExponentialDistribution(4),
        },
        "service": {
            "create": distributions.ConstantDistribution(0),
            "ready": distributions.UniformDistribution(1, 3),
            "delete": distributions.UniformDistribution(2, 5),
        },
        "loop": {
            "create": distributions.ConstantDistribution(0),
            "every": distributions.UniformDistribution(3, 5),
            "backoff": distributions.ConstantDistribution(4),
        },
    }


def assert_agrees(name: str, learnt: Manifest, said: distributions.Distribution, lost_s: float) -> None:
    """Check that a learnt distribution is the declared one, as far as so many values and such clocks can tell.

    The shares of values up to any time differ from the true ones by more than `chance` only once in a million
    times (Dvoretzky, Kiefer, Wolfowitz), and those of the fit from them by its Kolmogorov-Smirnov distance.
    """
    chance = math.sqrt(math.log(2 / SURE) / (2 * learnt["samples"])) + learnt["kolmogorovSmirnov"]
    slack = stall_clock.RESOLUTION_S + lost_s
    for share in (0.1, 0.5, 0.9):
        low = said.quantile(max(share - chance, 1e-9)) - slack
        high = said.quantile(min(share + chance, 1 - 1e-9)) + slack
        assert low <= learnt["fitted"][f"p{share * 100:g}"] <= high, (name, json.dumps(learnt), said)


@contextmanager
def learning_of(testbed: DaemonTestbed, wave: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Let the program learn from the pods of a wave, from before they are there."""
    labels = f"kwokfleet.dev/fleet={testbed.name},kwokfleet.dev/wave={wave}"
    arguments = ("learn", "-l", labels, "-n", testbed.name, "--for", "10m", "--output", "json", *more)
    with testbed.program.start(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def learnt(process: subprocess.Popen[str], *, interrupt: bool = False) -> Manifest:
    """Return what was learnt, once it has ended, or been ended as by Ctrl-C."""
    if interrupt:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=cli.TIMEOUT_S)
    assert process.returncode == 0, err
    made: Manifest = json.loads(out)
    return made


def pods(testbed: DaemonTestbed, wave: str) -> list[Manifest]:
    """Return the pods of a wave."""
    found: list[Manifest] = testbed.cluster.get("pods", "-n", testbed.name, "-l", f"kwokfleet.dev/wave={wave}")["items"]
    return found


def is_ready(pod: Manifest) -> bool:
    """Tell whether a pod is Ready."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def crashes(pod: Manifest) -> int:
    """Return how often a pod's container crashed."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


@contextmanager
def recording(testbed: DaemonTestbed) -> Iterator[Path]:
    """Let kubectl record the pods of the wave `batch`, until it is killed."""
    file = testbed.folder / "pods.json"
    command = [
        str(testbed.cluster.tools.path("kubectl")),
        "--kubeconfig",
        str(testbed.cluster.kubeconfig),
        "get",
        "pods",
    ]
    command += ["--watch", "--output-watch-events", "--output", "json", "--namespace", testbed.name]
    with (
        file.open("wb") as sink,
        subprocess.Popen([*command, "-l", "kwokfleet.dev/wave=batch"], stdout=sink) as process,
    ):
        try:
            yield file
        finally:
            process.kill()


def test_pods_played_by_known_distributions_are_learnt(testbed: DaemonTestbed) -> None:
    """From a watch or a recording: percentiles agree with the file's, failures are counted, the Fleet is valid."""
    (testbed.files / "fleet.yaml").write_text(FLEET.replace("NAME", testbed.name))
    with (
        stall_clock.running(testbed.cluster) as stood,
        recording(testbed) as file,
        learning_of(testbed, "batch", "--pods", str(PODS)) as batch,
        learning_of(testbed, "service") as service,
        learning_of(testbed, "loop") as loop,
        testbed.run(kwok=True),
    ):
        waiting.until(lambda: sum(map(is_ready, pods(testbed, "service"))) == FEWER, deadline_s=120)
        testbed.cluster.kubectl(
            "delete", "pods", "-n", testbed.name, "-l", "kwokfleet.dev/wave=service", "--wait=false"
        )
        waiting.until(lambda: not pods(testbed, "service"))
        waiting.until(lambda: sum(map(crashes, pods(testbed, "loop"))) >= 2 * FEWER, deadline_s=120)
        made = {
            "batch": learnt(batch),
            "service": learnt(service, interrupt=True),
            "loop": learnt(loop, interrupt=True),
        }
        failed = sum(pod["status"]["phase"] == "Failed" for pod in pods(testbed, "batch"))
    assert made["batch"]["lifecycle"]["pod"]["fail"].items() >= {"reason": "OOMKilled", "exitCode": 137}.items()
    assert made["batch"]["lifecycle"]["pod"]["fail"]["probability"] == failed / PODS
    assert made["loop"]["lifecycle"]["pod"]["restart"].items() >= {"reason": "Segfault", "exitCode": 139}.items()
    made["recorded"] = json.loads(testbed.program.ok("learn", str(file), "--output", "json"))
    for wave, steps in ({**declared(), "recorded": declared()["batch"]}).items():
        assert made[wave]["steps"].keys() >= steps.keys()
        for step, said in steps.items():
            assert_agrees(f"{wave} {step}", made[wave]["steps"][step], said, stood.lost_s)
    assert {each["resolutionSeconds"] for each in made["recorded"]["steps"].values()} == {1.0}
    by_watch = model.GRID_S[Clock.WATCH]
    assert made["batch"]["steps"]["complete"]["resolutionSeconds"] == by_watch
    whole = testbed.folder / "learnt.yaml"
    testbed.program.ok("learn", str(file), "--fleet", "learnt", "--to", str(whole))
    testbed.program.ok("validate", "--strict", str(whole))


def reader(box: Sandbox, file: Path) -> Path:
    """Return a kubeconfig of somebody who may list and watch pods in one namespace, and nothing else."""
    cluster, inside = box.cluster, ("--namespace", box.name)
    cluster.kubectl("create", "serviceaccount", "reader", *inside)
    cluster.kubectl("create", "role", "reader", "--verb=list,watch", "--resource=pods", *inside)
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={box.name}:reader", *inside)
    who = f"--as=system:serviceaccount:{box.name}:reader"
    waiting.until(lambda: cluster.try_kubectl("auth", "can-i", "watch", "pods", who, *inside).returncode == 0)
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output", "json"))
    token = cluster.kubectl("create", "token", "reader", *inside).strip()
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    file.write_text(json.dumps(config))
    return file


def test_rights_to_list_and_watch_pods_in_a_namespace_are_enough(
    kwokfleet: cli.Cli, box: Sandbox, tmp_path: Path
) -> None:
    """Beyond it, what is missing is said; pods that have long been Ready are learnt by their timestamps."""
    for index in range(3):
        pod = pod_states.PodState("web", policy="Always")
        pod.bound(0)
        pod.creating(2)
        pod.started(7)
        status = pod.ready(7)["status"]
        made = box.manifest(
            "v1", "Pod", f"web-{index}", spec={"nodeName": "none", "containers": [{"name": "main", "image": "none"}]}
        )
        box.cluster.apply(made)
        box.cluster.kubectl(
            "patch", "pod", made["metadata"]["name"], "--namespace", box.name, "--subresource=status", "--type=merge",
            "--patch", json.dumps({"status": status}),
        )  # fmt: skip
    arguments = ("learn", "-l", box.selector, "-o", "json", "--kubeconfig", str(reader(box, tmp_path / "config.json")))
    found = json.loads(kwokfleet.ok(*arguments, "--namespace", box.name, "--pods", "3"))
    assert {name: step["delay"] for name, step in found["steps"].items()} == {"create": "2s", "ready": "5s"}
    beyond = kwokfleet.run(*arguments, "--all-namespaces")
    assert beyond.returncode == 4
    assert "refused to list pods --all-namespaces: 403" in beyond.stderr
    wrong = kwokfleet.run("learn", "-l", "app in (", "--kubeconfig", str(box.cluster.kubeconfig))
    assert wrong.returncode == 4
    assert "400" in wrong.stderr
