"""`kwokfleet learn` on a real cluster: kwok runs pods with known distributions."""

import json
import math
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.learn import learner
from kwokfleet.measure.result import Clock
from kwokfleet.render import distributions
from tests.harness import cli, daemon_testbed, pod_states, stall_clock, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.sandbox import Sandbox

Manifest = dict[str, Any]
PODS, FEWER = 100, 25
SURE = 1e-6
"""Probability of a failure by chance alone."""

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
    """Return a testbed; delete the managed objects at the end."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def declared_distributions() -> dict[str, dict[str, distributions.Distribution]]:
    """Return the distributions in the fleet file, by wave and step."""
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


def assert_agrees(
    name: str, fitted_model: Manifest, declared_distribution: distributions.Distribution, lost_s: float
) -> None:
    """Check a learnt distribution against the declared one, within sampling error and clock resolution.

    The empirical distribution differs from the true one by more than `chance` only once in a million times
    (Dvoretzky-Kiefer-Wolfowitz), and the fit differs from the empirical one by its Kolmogorov-Smirnov distance.
    """
    chance = math.sqrt(math.log(2 / SURE) / (2 * fitted_model["samples"])) + fitted_model["kolmogorovSmirnov"]
    slack = stall_clock.RESOLUTION_S + lost_s
    for share in (0.1, 0.5, 0.9):
        low = declared_distribution.quantile(max(share - chance, 1e-9)) - slack
        high = declared_distribution.quantile(min(share + chance, 1 - 1e-9)) + slack
        assert low <= fitted_model["fitted"][f"p{share * 100:g}"] <= high, (
            name,
            json.dumps(fitted_model),
            declared_distribution,
        )


@contextmanager
def learn_wave(testbed: DaemonTestbed, wave: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run `kwokfleet learn` for the pods of a wave."""
    labels = f"kwokfleet.dev/fleet={testbed.name},kwokfleet.dev/wave={wave}"
    arguments = ("learn", "-l", labels, "-n", testbed.name, "--for", "10m", "--output", "json", *more)
    with testbed.program.start(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def learnt_model(process: subprocess.Popen[str], *, interrupt: bool = False) -> Manifest:
    """Return the learnt model after the process ended; `interrupt` sends SIGINT first."""
    if interrupt:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=cli.TIMEOUT_S)
    assert process.returncode == 0, err
    result: Manifest = json.loads(out)
    return result


def pods(testbed: DaemonTestbed, wave: str) -> list[Manifest]:
    """Return the pods of a wave."""
    items: list[Manifest] = testbed.cluster.get("pods", "-n", testbed.name, "-l", f"kwokfleet.dev/wave={wave}")["items"]
    return items


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is Ready."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", ())
    )


def crashes(pod: Manifest) -> int:
    """Return the restarts of a pod's containers."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))


@contextmanager
def record_pods(testbed: DaemonTestbed) -> Iterator[Path]:
    """Record the pods of the wave `batch` with kubectl."""
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


def test_known_distributions_are_learnt(testbed: DaemonTestbed) -> None:
    """From a watch and from a recording: percentiles agree, failures are counted, and the written Fleet is valid."""
    (testbed.files / "fleet.yaml").write_text(FLEET.replace("NAME", testbed.name))
    with (
        stall_clock.running(testbed.cluster) as stalls,
        record_pods(testbed) as file,
        learn_wave(testbed, "batch", "--pods", str(PODS)) as batch,
        learn_wave(testbed, "service") as service,
        learn_wave(testbed, "loop") as loop,
        testbed.run(kwok=True),
    ):
        waiting.until(lambda: sum(map(is_ready, pods(testbed, "service"))) == FEWER, deadline_s=120)
        testbed.cluster.kubectl(
            "delete", "pods", "-n", testbed.name, "-l", "kwokfleet.dev/wave=service", "--wait=false"
        )
        waiting.until(lambda: not pods(testbed, "service"))
        waiting.until(lambda: sum(map(crashes, pods(testbed, "loop"))) >= 2 * FEWER, deadline_s=120)
        learnt_models = {
            "batch": learnt_model(batch),
            "service": learnt_model(service, interrupt=True),
            "loop": learnt_model(loop, interrupt=True),
        }
        failed = sum(pod["status"]["phase"] == "Failed" for pod in pods(testbed, "batch"))
    assert (
        learnt_models["batch"]["lifecycle"]["pod"]["fail"].items() >= {"reason": "OOMKilled", "exitCode": 137}.items()
    )
    assert learnt_models["batch"]["lifecycle"]["pod"]["fail"]["probability"] == failed / PODS
    assert (
        learnt_models["loop"]["lifecycle"]["pod"]["restart"].items() >= {"reason": "Segfault", "exitCode": 139}.items()
    )
    learnt_models["recorded"] = json.loads(testbed.program.ok("learn", str(file), "--output", "json"))
    for wave, steps in ({**declared_distributions(), "recorded": declared_distributions()["batch"]}).items():
        assert learnt_models[wave]["steps"].keys() >= steps.keys()
        for step, distribution in steps.items():
            assert_agrees(f"{wave} {step}", learnt_models[wave]["steps"][step], distribution, stalls.lost_s)
    assert {step_result["resolutionSeconds"] for step_result in learnt_models["recorded"]["steps"].values()} == {1.0}
    by_watch = learner.GRID_S[Clock.WATCH]
    assert learnt_models["batch"]["steps"]["complete"]["resolutionSeconds"] == by_watch
    fleet_file = testbed.folder / "learnt.yaml"
    testbed.program.ok("learn", str(file), "--fleet", "learnt", "--to", str(fleet_file))
    testbed.program.ok("validate", "--strict", str(fleet_file))


def reader_kubeconfig(box: Sandbox, file: Path) -> Path:
    """Return a kubeconfig with rights to list and watch pods in one namespace only."""
    cluster, inside = box.cluster, ("--namespace", box.name)
    cluster.kubectl("create", "serviceaccount", "reader", *inside)
    cluster.kubectl("create", "role", "reader", "--verb=list,watch", "--resource=pods", *inside)
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={box.name}:reader", *inside)
    account = f"--as=system:serviceaccount:{box.name}:reader"
    waiting.until(lambda: cluster.try_kubectl("auth", "can-i", "watch", "pods", account, *inside).returncode == 0)
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output", "json"))
    token = cluster.kubectl("create", "token", "reader", *inside).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file.write_text(json.dumps(config))
    return file


def test_learn_needs_only_list_and_watch_of_pods_in_a_namespace(
    kwokfleet: cli.Cli, box: Sandbox, tmp_path: Path
) -> None:
    """Missing rights are reported; pods that are Ready before the start are learnt from their timestamps."""
    for index in range(3):
        pod = pod_states.PodState("web", policy="Always")
        pod.bound(0)
        pod.creating(2)
        pod.started(7)
        status = pod.ready(7)["status"]
        manifest = box.manifest(
            "v1", "Pod", f"web-{index}", spec={"nodeName": "none", "containers": [{"name": "main", "image": "none"}]}
        )
        box.cluster.apply(manifest)
        box.cluster.kubectl(
            "patch", "pod", manifest["metadata"]["name"], "--namespace", box.name, "--subresource=status",
            "--type=merge", "--patch", json.dumps({"status": status}),
        )  # fmt: skip
    arguments = (
        "learn",
        "-l",
        box.selector,
        "-o",
        "json",
        "--kubeconfig",
        str(reader_kubeconfig(box, tmp_path / "config.json")),
    )
    model_json = json.loads(kwokfleet.ok(*arguments, "--namespace", box.name, "--pods", "3"))
    assert {name: step["delay"] for name, step in model_json["steps"].items()} == {"create": "2s", "ready": "5s"}
    beyond = kwokfleet.run(*arguments, "--all-namespaces")
    assert beyond.returncode == 4
    assert "refused to list pods --all-namespaces: 403" in beyond.stderr
    wrong = kwokfleet.run("learn", "-l", "app in (", "--kubeconfig", str(box.cluster.kubeconfig))
    assert wrong.returncode == 4
    assert "400" in wrong.stderr
