"""Records a Fleet with all lifecycle scenarios, rendered and run by real kwok processes.

Each scenario has a Lifecycle. One kwok runs them all with Stages from custom resources. Every state of every
node and pod is recorded with its time. A second kwok has the nodes of one pool and is killed.
"""

import itertools
import json
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import cli, kwok, stall_clock, waiting, watch
from tests.harness.sandbox import Sandbox
from tests.harness.watch import Check

FLEET, POOL, WAVE = "kwokfleet.dev/fleet", "kwokfleet.dev/pool", "kwokfleet.dev/wave"
NOT_READY = "node.kubernetes.io/not-ready"
NODE_CHAOS = "node-not-ready.stage.kwok.x-k8s.io"
CROWD = 60

FILE = r"""
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {name: default}
spec: {leaseDuration: 0s} # after a restart kwok would have to wait for its own leases
---
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: BOX}
spec:
  stages: [job, node-chaos, pod-chaos]
  nodePools:
    - {name: plain, replicas: 5, labels: &box {kwokfleet.dev/test: BOX}, podCIDR: 10.200.0.0/20}
    - {name: other, replicas: 2, labels: *box, podCIDR: 10.200.16.0/20, taint: false}
    - {name: restarted, replicas: 1, labels: *box}
    - {name: booting, replicas: 2, labels: *box, lifecycle: booting}
    - {name: drawn, replicas: 4, labels: *box, lifecycle: drawn-boot}
    - {name: flaky, replicas: 2, labels: *box, lifecycle: flaky}
    - {name: frail, replicas: 1, labels: *box, lifecycle: frail}
  lifecycles:
    - {name: booting, node: {boot: 4s}}
    - {name: drawn-boot, node: {boot: {normal: {mean: 5s, stddev: 2s}}}}
    - {name: flaky, node: {notReady: {every: 6s, for: 3s, reason: PowerLost, message: 'no "power"'}}}
    - {name: frail, node: {boot: 3s, notReady: {every: 100h, for: 1h}}}
    - {name: sleeper, pod: {create: 1s, ready: 10s, complete: args}}
    - name: doomed
      pod:
        fail:
          {probability: 100%, after: 1s, exitCode: 137, reason: 'OOM "Killed" {{x}}', message: "a: \\ 'b'\n{{ .c }} 💥"}
    - {name: gamble, pod: {fail: {probability: 30%}}}
    - {name: crashing, pod: {restart: {every: 1s, backoff: 1s, reason: Segfault, exitCode: 139}}}
    - {name: told, pod: {complete: {after: {annotation: example.com/takes}, when: always}}}
    - {name: drawn, pod: {complete: {after: {exponential: {mean: 3s}}}}}
    - {name: prepared, pod: {create: 1s, init: 2s, ready: 10s}}
    - {name: mortal, pod: {delete: 2s}}
    - {name: long, pod: {complete: 20s}}
    - {name: frozen, pod: {create: 1h}}
    - {name: patient, pod: {complete: {after: 1h, when: always}}}
  waves:
    - name: crowd
      count: 60
      lifecycle: gamble
      pools: &plain [plain]
      namespace: &namespace BOX
      template: &pod {apiVersion: v1, kind: Pod, spec: {containers: &main [{name: main, image: busybox}]}}
    - name: simple
      pools: *plain
      namespace: *namespace
      template: &job
        apiVersion: batch/v1
        kind: Job
        spec:
          template:
            spec: {restartPolicy: Never, containers: [{name: main, image: busybox, args: [sleep, 10s]}]}
    - {name: sleeper, lifecycle: sleeper, pools: *plain, namespace: *namespace, template: *job}
    - {name: drawn, count: 6, lifecycle: drawn, pools: *plain, namespace: *namespace, template: *job}
    - {name: long, lifecycle: long, pools: [restarted], namespace: *namespace, template: *job}
    - {name: doomed, lifecycle: doomed, pools: *plain, namespace: *namespace, template: *pod}
    - {name: crashing, lifecycle: crashing, pools: *plain, namespace: *namespace, template: *pod}
    - {name: mortal, lifecycle: mortal, pools: *plain, namespace: *namespace, template: *pod}
    - {name: frozen, lifecycle: frozen, pools: *plain, namespace: *namespace, template: *pod}
    - name: told
      count: 3
      lifecycle: told
      pools: *plain
      namespace: *namespace
      vary: {takes: {cycle: [3s, "2020-01-01T00:00:00+02:00", "2020-01-01T00:00:00.5Z"]}}
      template:
        apiVersion: v1
        kind: Pod
        metadata: {annotations: {example.com/takes: "{{takes}}"}}
        spec: {containers: *main}
    - name: prepared
      lifecycle: prepared
      pools: *plain
      namespace: *namespace
      template:
        apiVersion: v1
        kind: Pod
        spec: {initContainers: [{name: first, image: busybox}, {name: second, image: busybox}], containers: *main}
    - name: asked
      count: 8
      lifecycle: patient
      labels: {pod-container-running-failed.stage.kwok.x-k8s.io: "true"}
      pools: *plain
      namespace: *namespace
      template: *pod
    - name: loose
      place: false
      namespace: *namespace
      template:
        apiVersion: v1
        kind: Pod
        spec: {nodeSelector: {kwokfleet.dev/test: BOX, example.com/real: "yes"}, containers: *main}
"""

Manifest = dict[str, Any]


def render(folder: Path, *arguments: str) -> str:
    """Return the output of `kwokfleet render`."""
    program = cli.Cli(folder / "data", {"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    return program.ok("render", str(folder / "fleets"), *arguments)


def rendered_manifests(folder: Path, *arguments: str) -> list[Manifest]:
    """Return the parsed output of `kwokfleet render`."""
    return [json.loads(line) for line in render(folder, "--output", "json", *arguments).splitlines()]


def by_wave(objects: list[Manifest]) -> dict[str, list[Manifest]]:
    """Return the objects of waves, by wave name."""
    objects_by_wave: dict[str, list[Manifest]] = {}
    for manifest in objects:
        wave = manifest["metadata"].get("labels", {}).get(WAVE)
        if wave:
            objects_by_wave.setdefault(wave, []).append(manifest)
    return objects_by_wave


def conditions(manifest: Manifest) -> dict[str, Manifest]:
    """Return an object's conditions, by type."""
    return {condition["type"]: condition for condition in manifest["status"].get("conditions", ())}


def is_ready(manifest: Manifest) -> bool:
    """Return whether a pod or node is Ready."""
    return bool(conditions(manifest).get("Ready", {}).get("status") == "True")


def is_schedulable(node: Manifest) -> bool:
    """Return whether a node is Ready and has no not-ready taint."""
    return is_ready(node) and NOT_READY not in {taint["key"] for taint in node["spec"].get("taints", ())}


def phase(*names: str) -> Check:
    """Return a check for a pod's phase."""
    return lambda manifest: manifest["status"].get("phase") in names


def state(manifest: Manifest, which: str = "containerStatuses") -> Manifest:
    """Return the state of a pod's first container."""
    return next((dict(container["state"]) for container in manifest["status"].get(which, ())[:1]), {})


def is_creating(manifest: Manifest) -> bool:
    """Return whether a pod's first container is being created."""
    return bool(state(manifest).get("waiting", {}).get("reason") == "ContainerCreating")


def is_spared(pod: Manifest) -> bool:
    """Return whether the random choice spared a pod."""
    return "kwokfleet.dev/spared" in pod["metadata"].get("annotations", {})


def failures(states: list[tuple[float, Manifest]]) -> list[tuple[float, float, Manifest]]:
    """Return start, end and last NotReady state of each finished failure of a node."""
    runs = [(ready, list(group)) for ready, group in itertools.groupby(states, key=lambda state: is_ready(state[1]))]
    return [
        (down[0][0], up[0][0], down[-1][1])
        for (was, down), (_, up) in itertools.pairwise(runs)
        if not was and down[0][0] != states[0][0]
    ]


@dataclass(frozen=True)
class Recording:
    """The objects sent and the states observed."""

    fleet: str
    sent: dict[str, Manifest]
    """Nodes by name."""
    waves: dict[str, list[Manifest]]
    """Objects by wave."""
    nodes: watch.RecordedWatch
    pods: watch.RecordedWatch
    decoy: str
    deleted: float
    """When the pod of the wave `mortal` was deleted."""
    labelled: float
    """When a node got the label that makes it fail."""
    lost_s: float
    """Stall time of the machine during the recording."""

    def about(self, seconds: float) -> stall_clock.ApproximateSeconds:
        """Return a value equal to any time within tolerance."""
        return stall_clock.ApproximateSeconds(seconds, self.lost_s)

    def pod(self, wave: str) -> str:
        """Return the first pod of a wave."""
        return self.pods.names(wave=wave)[0]

    def pool(self, name: str) -> list[str]:
        """Return the nodes of a pool."""
        return self.nodes.names(pool=name)


class Recorder:
    """Runs the scenarios and records them."""

    def __init__(self, box: Sandbox, folder: Path, stack: ExitStack) -> None:
        self.box, self.cluster, self.folder, self.stack = box, box.cluster, folder, stack
        (folder / "fleets").mkdir()
        (folder / "fleets" / "fleet.yaml").write_text(FILE.replace("BOX", box.name))
        self.objects = rendered_manifests(folder)
        self.waves = by_wave(rendered_manifests(folder, "--waves"))
        self.nodes = watch.RecordedWatch()
        self.pods = watch.RecordedWatch()
        self.stalls = stack.enter_context(stall_clock.running(self.cluster))

    def set_up(self) -> None:
        """Start Stages, kwok and watches."""
        stages = [manifest for manifest in self.objects if manifest["kind"] == "Stage"]
        self.stack.callback(self.send, stages, "delete", "--ignore-not-found", "--wait=false")
        self.send(stages, "apply", "--server-side", "--force-conflicts")
        self.start_kwok("most", f"{FLEET}={self.box.name},{POOL}!=restarted")
        self.nodes = self.stack.enter_context(watch.watching(self.cluster, "/api/v1/nodes", self.box.selector))
        self.pods = self.stack.enter_context(watch.watching(self.cluster, f"/api/v1/namespaces/{self.box.name}/pods"))

    def start_kwok(self, name: str, selector: str) -> kwok.KwokProcess:
        """Start a kwok."""
        return self.stack.enter_context(kwok.running(self.cluster, self.folder / name, selector=selector))

    def send(self, objects: list[Manifest], *command: str) -> None:
        """Run a kubectl command with objects as input."""
        self.cluster.kubectl(*command, "--filename", "-", stdin="\n".join(map(json.dumps, objects)))

    def add_nodes(self) -> str:
        """Create all nodes and one node without a fleet; return its name when the nodes are schedulable."""
        nodes = [manifest for manifest in self.objects if manifest["kind"] == "Node"]
        decoy = self.box.manifest("v1", "Node", "decoy", status=nodes[0]["status"])
        decoy["metadata"]["labels"]["example.com/real"] = "yes"
        self.send([*nodes, decoy], "create")
        name = str(decoy["metadata"]["name"])
        settled = {"plain", "other", "restarted"}
        expected = [name, *(node["metadata"]["name"] for node in nodes if node["metadata"]["labels"][POOL] in settled)]
        waiting.until(
            lambda: all(self.nodes.of(node) and is_schedulable(self.nodes.now(node)) for node in expected),
            deadline_s=30,
        )
        waiting.until(lambda: {node["metadata"]["name"] for node in nodes} <= set(self.nodes.names()))
        return name

    def touch(self) -> None:
        """Change a node during its boot, as the controller manager may do."""
        node = self.nodes.names(pool="booting")[0]
        created = self.nodes.of(node)[0][0]
        waiting.until(lambda: time.monotonic() > created + 2.5)
        self.cluster.kubectl("annotate", "node", node, "example.com/touched=yes")

    def run(self) -> Recording:
        """Run all scenarios; return the recording."""
        self.set_up()
        doomed = self.start_kwok("doomed", f"{FLEET}={self.box.name},{POOL}=restarted")
        decoy = self.add_nodes()
        self.touch()
        self.crowd()
        self.send(
            [manifest for wave, objects in self.waves.items() if wave != "crowd" for manifest in objects], "create"
        )
        labelled = self.fail()
        deleted = self.delete()
        self.restart(doomed)
        with suppress(AssertionError):  # the tests report missing steps
            waiting.until(self.is_over, deadline_s=40)
        return Recording(
            self.box.name,
            {manifest["metadata"]["name"]: manifest for manifest in self.objects if manifest["kind"] == "Node"},
            self.waves,
            self.nodes,
            self.pods,
            decoy,
            deleted,
            labelled,
            self.stalls.lost_s,
        )

    def crowd(self) -> None:
        """Run many random outcomes, before any timed scenario."""
        self.send(self.waves["crowd"], "create")
        settled: Check = lambda pod: phase("Failed")(pod) or is_spared(pod)  # noqa: E731 - a condition
        waiting.until(lambda: sum(settled(self.pods.now(pod)) for pod in self.pods.names(wave="crowd")) == CROWD)

    def fail(self) -> float:
        """Make a node fail; return the time."""
        frail = self.nodes.names(pool="frail")[0]
        with suppress(AssertionError):
            waiting.until(lambda: is_ready(self.nodes.now(frail)), deadline_s=10)
        labelled = time.monotonic()
        self.cluster.kubectl("label", "node", frail, f"{NODE_CHAOS}=true")
        return labelled

    def delete(self) -> float:
        """Delete a running pod; return the time."""
        waiting.until(lambda: any(is_ready(self.pods.now(pod)) for pod in self.pods.names(wave="mortal")))
        deleted = time.monotonic()
        self.cluster.kubectl(
            "delete", "pod", self.pods.names(wave="mortal")[0], "--namespace", self.box.name, "--wait=false"
        )
        return deleted

    def restart(self, doomed: kwok.KwokProcess) -> None:
        """Kill kwok eight seconds after its Job started; start a new one."""
        started, *_ = waiting.until(
            lambda: [at for at, _, pod in self.pods.events if wave(pod) == "long" and is_ready(pod)]
        )
        waiting.until(lambda: time.monotonic() > started + 8)
        doomed.kill()
        self.start_kwok("successor", f"{FLEET}={self.box.name},{POOL}=restarted")

    def is_over(self) -> bool:
        """Return whether all expected states were observed."""
        ended = [pod for wave in ("simple", "sleeper", "drawn", "long") for pod in self.pods.names(wave=wave)]
        return (
            all(phase("Succeeded")(self.pods.now(pod)) for pod in ended)
            and all(len(failures(self.nodes.of(node))) >= 2 for node in self.nodes.names(pool="flaky"))
            and all(is_ready(self.pods.now(pod)) for pod in self.pods.names(wave="prepared"))
        )


def wave(manifest: Manifest) -> str:
    """Return the wave of an object."""
    return str(manifest["metadata"]["labels"].get(WAVE, ""))
