"""The Stages in stages/: the API server accepts them, and kwok runs pods and nodes by them."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness import kwok, sandbox, stall_clock, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox
from tests.harness.stage_objects import (
    FOLDER,
    SETS,
    add_job,
    add_node,
    add_pod,
    conditions,
    documents,
    is_backing_off,
    is_ready,
    paths,
    phase,
    pod,
    pod_spec,
    ready,
    wait_for_job,
    wait_for_pod,
)
from tests.harness.watch import RecordedWatch, watching

PART = "kwokfleet.dev/test-part"
"""Label of the nodes of one sandbox that belong to different kwoks."""
NOT_READY = "node-not-ready.stage.kwok.x-k8s.io"
FAILED = "pod-container-running-failed.stage.kwok.x-k8s.io"
INIT_FAILED = "pod-init-container-running-failed.stage.kwok.x-k8s.io"
CRASH = "pod-container-crash.stage.kwok.x-k8s.io"

Manifest = dict[str, Any]


# Validation by the API server


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, kinds: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Future[dict[str, Times]]"]:
    """Start the slow Jobs early if a test needs them, so that other tests run meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        is_needed = any("times" in getattr(item, "fixturenames", ()) for item in request.session.items)
        yield pool.submit(
            run_jobs if is_needed else lambda _cluster, _folder: {}, kinds, tmp_path_factory.mktemp("jobs")
        )


def test_the_api_server_accepts_every_document(kinds: ControlPlane, cluster: ControlPlane) -> None:
    """Validated by kwok's CRDs, without unknown fields."""
    output = cluster.kubectl(
        "apply", "--server-side", "--validate=strict", "--dry-run=server", "--filename", str(FOLDER), "--output=name"
    )
    assert len(output.splitlines()) == sum(len(documents(name)) for name in SETS)


# Nodes and fast pods, by Stages that are custom resources


@pytest.fixture
def fast(kinds: ControlPlane, jobs: object, box: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """Run kwok with Stages in the cluster: node-fast, node-heartbeat-with-lease, pod-fast."""
    named = [
        argument for path in paths("node-fast", "node-heartbeat-with-lease", "pod-fast") for argument in ("-f", path)
    ]
    kinds.kubectl("apply", "--server-side", *map(str, named))
    try:
        with kwok.running(kinds, tmp_path / "kwok", selector=box.selector, lease_s=40):
            yield box
    finally:
        kinds.kubectl("delete", *map(str, named))


def test_node_fast_and_pod_fast(fast: Sandbox, cluster: ControlPlane) -> None:
    """A bare Node becomes Ready with a complete status, a Job completes, and nodes with a lifecycle are not changed."""
    other = add_node(fast, "other", {"kwokfleet.dev/lifecycle": "slow"}, schedulable=False)
    sized = fast.manifest("v1", "Node", "sized", status={"capacity": {"cpu": "8", "memory": "1Gi", "pods": "3"}})
    cluster.apply(sized)
    name = add_node(fast, "bare", {"kubernetes.io/arch": "arm64"})
    node = cluster.get("node", name)
    assert {kind: condition["status"] for kind, condition in conditions(node).items()} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "NetworkUnavailable": "False",
    }
    assert node["status"]["phase"] == "Running"
    assert node["status"]["addresses"] == [{"type": "Hostname", "address": name}]
    assert node["status"]["allocatable"] == node["status"]["capacity"] == {"cpu": "1k", "memory": "1Ti", "pods": "1M"}
    assert node["status"]["nodeInfo"]["architecture"] == "arm64"
    waiting.until(lambda: ready(fast, sized["metadata"]["name"]) == "True")
    assert cluster.get("node", sized["metadata"]["name"])["status"]["allocatable"]["cpu"] == "8"

    done = wait_for_job(fast, add_job(fast, "job", {}, "anything"))
    assert conditions(done)["Ready"]["reason"] == "PodCompleted"
    assert done["status"]["podIP"] == done["status"]["podIPs"][0]["ip"]
    assert ready(fast, other) == "none"


# Other fast Stages, from files


@dataclass(frozen=True)
class KwokSandbox:
    """A sandbox with one node, which kwok drives by pod-general and related sets."""

    box: Sandbox
    node: str


@pytest.fixture(scope="module")
def shared_sandbox(
    kinds: ControlPlane, jobs: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KwokSandbox]:
    """Run one kwok for all tests of this part; each test has its own objects."""
    sets = ("node-fast", "node-heartbeat-with-lease", "node-chaos", "pod-general", "pod-chaos", "pod-recover", "volume")
    storage_class = documents("volume")[0]
    with ExitStack() as stack:
        # If it stayed, it would be a foreign object and a conflict for later fleets with this set.
        stack.callback(kinds.kubectl, "delete", "storageclass", storage_class["metadata"]["name"])
        kinds.apply(storage_class)
        box = stack.enter_context(contextmanager(sandbox.opened)(kinds))
        folder = tmp_path_factory.mktemp("kwok")
        stack.enter_context(kwok.running(kinds, folder, selector=box.selector, stages=paths(*sets), lease_s=40))
        yield KwokSandbox(box, add_node(box, "ground"))


@pytest.fixture
def kwok_sandbox(shared_sandbox: KwokSandbox, cluster: ControlPlane) -> KwokSandbox:
    """Return the sandbox; `cluster` adds the components' logs to a failure."""
    return shared_sandbox


def test_pod_general_runs_and_deletes_a_pod(kwok_sandbox: KwokSandbox) -> None:
    """With init containers, a sidecar, two containers and a readiness gate."""
    init = [{"name": "first", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}]
    containers = pod_spec("", "main", "second")["containers"]
    gates = [{"conditionType": "example.com/gate"}]
    spec = {"initContainers": init, "containers": containers, "readinessGates": gates}
    with watch_pods(kwok_sandbox.box) as watch:
        name = add_pod(kwok_sandbox.box, "life", kwok_sandbox.node, spec=spec)
        wait_for_pod(kwok_sandbox.box, name, is_ready)
        pod_states = [manifest for _, manifest in watch.of(name)]
    states = [state for state, _ in itertools.groupby(map(init_state, pod_states))]
    assert states == ["", "waiting", "running", "terminated"]
    status = pod(kwok_sandbox.box, name)["status"]
    assert {kind: condition["status"] for kind, condition in conditions({"status": status}).items()} == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready", "example.com/gate"), "True"
    )
    assert [container["name"] for container in status["containerStatuses"]] == ["main", "second"]
    assert "running" in status["initContainerStatuses"][1]["state"]
    kwok_sandbox.box.cluster.kubectl("delete", "pod", name, "--namespace", kwok_sandbox.box.name, "--timeout=20s")


def test_pod_general_completes_jobs_and_runs_host_network_pods(kwok_sandbox: KwokSandbox) -> None:
    """The pod of a Job ends as with a kubelet; a host network pod runs on a node without an address."""
    bare = add_pod(kwok_sandbox.box, "bare", kwok_sandbox.node, spec={"hostNetwork": True})
    done = wait_for_job(kwok_sandbox.box, add_job(kwok_sandbox.box, "job", {}, "anything"))
    assert conditions(done)["ContainersReady"]["reason"] == "PodCompleted"
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert "podIP" not in wait_for_pod(kwok_sandbox.box, bare, is_ready)["status"]


def init_state(manifest: Manifest) -> str:
    """Return the state of a pod's first init container."""
    return next(
        (key for status in manifest["status"].get("initContainerStatuses", ())[:1] for key in status["state"]), ""
    )


def test_a_deleted_pod_with_a_finalizer_fails_and_waits(kwok_sandbox: KwokSandbox) -> None:
    """Foreign finalizers stay; the pod is removed after its owner removes the finalizer."""
    box = kwok_sandbox.box
    name = add_pod(box, "held", kwok_sandbox.node)
    wait_for_pod(box, name, is_ready)
    patch = ("patch", "pod", name, "--namespace", box.name, "--type=merge", "--patch")
    box.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    box.cluster.kubectl("delete", "pod", name, "--namespace", box.name, "--wait=false")
    held = wait_for_pod(box, name, lambda manifest: manifest["metadata"].get("deletionGracePeriodSeconds") == 0)
    assert held["status"]["phase"] == "Failed"
    assert held["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert held["metadata"]["finalizers"] == ["example.com/held"]
    box.cluster.kubectl(*patch, '{"metadata": {"finalizers": null}}')
    waiting.until(lambda: box.cluster.try_kubectl("get", "pod", name, "--namespace", box.name).returncode != 0)


def test_node_chaos_fails_a_node_once_and_recovers_it(kwok_sandbox: KwokSandbox) -> None:
    """The node stays down and is not changed while it has the label; without the label it is Ready again."""
    box = kwok_sandbox.box
    first = add_node(box, "chaos-1")
    annotations = (f"{NOT_READY}/reason=PowerLost", f"{NOT_READY}/type=DiskPressure")
    box.cluster.kubectl("annotate", "node", first, *annotations)
    # Each node takes more than a second to fail; the failed ones must not change meanwhile.
    failed = {node: fail_node(box, node) for node in (first, add_node(box, "chaos-2"), add_node(box, "chaos-3"))}
    assert {node: conditions(box.cluster.get("node", node)) for node in failed} == failed
    assert failed[first]["Ready"]["reason"] == failed[first]["DiskPressure"]["reason"] == "PowerLost"
    assert failed[first]["DiskPressure"]["status"] == "True"
    box.cluster.kubectl("label", "node", first, f"{NOT_READY}-")
    waiting.until(lambda: ready(box, first) == "True")
    assert conditions(box.cluster.get("node", first))["DiskPressure"]["status"] == "False"


def fail_node(box: Sandbox, node: str) -> dict[str, Manifest]:
    """Label a node to fail; return its conditions after the failure."""
    box.cluster.kubectl("label", "node", node, f"{NOT_READY}=true")
    waiting.until(lambda: ready(box, node) == "False")
    return conditions(box.cluster.get("node", node))


def test_pod_chaos_fails_pods(kwok_sandbox: KwokSandbox) -> None:
    """A named container fails as declared, and a failed init container prevents the start of its pod."""
    box = kwok_sandbox.box
    annotations = {f"{FAILED}/{key}": value for key, value in OUT_OF_MEMORY.items()}
    spec = {"containers": pod_spec("", "main", "hungry")["containers"]}
    name = add_pod(box, "failed", kwok_sandbox.node, labels={FAILED: "true"}, annotations=annotations, spec=spec)
    init = {"initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}
    stuck = add_pod(box, "stuck", kwok_sandbox.node, labels={INIT_FAILED: "true"}, spec=init)

    main, hungry = wait_for_pod(box, name, phase("Failed"))["status"]["containerStatuses"]
    ended = hungry["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert main["state"]["terminated"]["exitCode"] == 0
    one, two = wait_for_pod(box, stuck, phase("Failed"))["status"]["initContainerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 1
    assert "waiting" in two["state"]


OUT_OF_MEMORY = {"container-name": "hungry", "reason": "OOMKilled", "exit-code": "137"}


def test_pod_chaos_crashes_and_restarts_containers(kwok_sandbox: KwokSandbox) -> None:
    """Each crash is counted and backs off; the pod stays Running."""
    box = kwok_sandbox.box
    annotations = {f"{CRASH}/delay": "500ms", f"{CRASH}/restart-delay": "500ms", f"{CRASH}/exit-code": "3"}
    with watch_pods(box) as watch:
        name = add_pod(box, "crash", kwok_sandbox.node, labels={CRASH: "true"}, annotations=annotations)
        twice = wait_for_pod(box, name, lambda manifest: restarts(manifest) >= 2)
        pod_states = [manifest for _, manifest in watch.of(name) if phase("Running")(manifest)]
    assert twice["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    assert [is_backing_off(manifest) for manifest in pod_states][:4] == [False, True, False, True]
    assert [is_ready(manifest) for manifest in pod_states][:4] == [True, False, True, False]


def restarts(manifest: Manifest) -> int:
    """Return the restarts of a pod's first container."""
    return sum(status["restartCount"] for status in manifest["status"].get("containerStatuses", ())[:1])


def test_pod_recover_resets_the_ready_condition(kwok_sandbox: KwokSandbox) -> None:
    """If all containers are ready; other pods stay unready."""
    box = kwok_sandbox.box
    unready, marked = (add_pod(box, name, kwok_sandbox.node) for name in ("unready", "marked"))
    for name, types in ((unready, ("ContainersReady", "Ready")), (marked, ("Ready",))):
        wait_for_pod(box, name, is_ready)
        set_conditions_false(box, name, *types)
    wait_for_pod(box, marked, is_ready)
    assert not is_ready(pod(box, unready))


def set_conditions_false(box: Sandbox, name: str, *types: str) -> None:
    """Set conditions of a pod to False, as the controller manager does with Ready."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    marks = [{"type": condition_type, "status": "False", "lastTransitionTime": now} for condition_type in types]
    status = json.dumps({"status": {"conditions": marks}})
    box.cluster.kubectl("patch", "pod", name, "--namespace", box.name, "--subresource=status", "--patch", status)
    assert not is_ready(pod(box, name))


def test_volume_provisions_binds_and_deletes(kwok_sandbox: KwokSandbox) -> None:
    """A claim is Bound to a volume of its size; the volume is deleted with it."""
    box = kwok_sandbox.box
    spec = {
        "storageClassName": "kwok-volume",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}},
    }
    claim = box.manifest("v1", "PersistentVolumeClaim", "claim", spec=spec)
    box.cluster.apply(claim)
    get = ("pvc", claim["metadata"]["name"], "--namespace", box.name)
    waiting.until(lambda: box.cluster.get(*get)["status"].get("phase") == "Bound")
    bound = box.cluster.get(*get)
    assert bound["status"]["capacity"] == {"storage": "5Gi"}
    box.cluster.kubectl("delete", *get)
    waiting.until(lambda: box.cluster.try_kubectl("get", "pv", bound["spec"]["volumeName"]).returncode != 0)


# Slow Jobs


def watch_pods(box: Sandbox) -> AbstractContextManager[RecordedWatch]:
    """Record the pods of a sandbox."""
    return watching(box.cluster, f"/api/v1/namespaces/{box.name}/pods")


def container_waits(manifest: Manifest) -> bool:
    """Return whether a pod's first container is being created."""
    statuses = manifest["status"].get("containerStatuses", ())
    return any(status["state"].get("waiting", {}).get("reason") == "ContainerCreating" for status in statuses[:1])


@dataclass(frozen=True)
class Times:
    """Seconds from a pod's creation to each state, and its last container status."""

    creating: float | None
    running: float | None
    completed: float | None
    container: Manifest
    about: Callable[[float], stall_clock.ApproximateSeconds]
    """Returns a value that equals a time within the tolerance."""


SHORT = {"name": "main", "image": "busybox", "command": ["sleep"], "args": ["1"]}
OTHER_PODS = {
    "prepared": {"restartPolicy": "OnFailure", "initContainers": [SHORT | {"name": "init"}], "containers": [SHORT]},
    "endless": {"restartPolicy": "Always", "containers": [SHORT]},
}
"""Specs of pods that no Job owns."""


def run_jobs(cluster: ControlPlane, folder: Path) -> dict[str, Times]:
    """Run three Jobs of `sleep 10s`: undisturbed, with kwok killed, with updates; and OTHER_PODS beside them."""
    sets = paths("node-fast", "node-heartbeat", "job")

    def run_kwok(part: str) -> kwok.KwokProcess:
        selector = f"{box.selector},{PART}={part}"
        return stack.enter_context(kwok.running(cluster, folder / part, selector=selector, stages=sets))

    with ExitStack() as stack:
        box = stack.enter_context(contextmanager(sandbox.opened)(cluster))
        run_kwok("calm")
        killed_kwok = run_kwok("killed")
        for part in ("calm", "killed"):
            add_node(box, part, {PART: part})
        watch = stack.enter_context(watch_pods(box))
        stalls = stack.enter_context(stall_clock.running(cluster))
        parts = {"calm": "calm", "killed": "killed", "touched": "calm"}
        jobs = {name: add_job(box, name, {PART: part}, "sleep", "10s") for name, part in parts.items()}
        others = {name: add_pod(box, name, f"{box.name}-calm", spec=spec) for name, spec in OTHER_PODS.items()}
        waiting.until(lambda: all(watch.first(job, phase("Running")) for job in jobs.values()), deadline_s=40)
        disturb(watch, box, jobs, killed_kwok)
        run_kwok("killed")
        waiting.until(lambda: all(watch.first(job, phase("Succeeded")) for job in jobs.values()), deadline_s=40)
        return {name: read_times(watch, prefix, stalls) for name, prefix in (jobs | others).items()}


@pytest.fixture
def times(jobs: "Future[dict[str, Times]]") -> dict[str, Times]:
    """Wait for the Jobs and return their times."""
    return jobs.result()


def disturb(watch: RecordedWatch, box: Sandbox, jobs: dict[str, str], killed_kwok: kwok.KwokProcess) -> None:
    """Three seconds after the start, change the pod of one Job and kill the kwok of another."""
    started = max(at for at, _, manifest in watch.events if phase("Running")(manifest))
    waiting.until(lambda: time.monotonic() > started + 3)
    touched = next(
        name for _, _, manifest in watch.events if (name := manifest["metadata"]["name"]).startswith(jobs["touched"])
    )
    box.cluster.kubectl("annotate", "pod", touched, "--namespace", box.name, "example.com/touched=yes")
    killed_kwok.kill()


def read_times(watch: RecordedWatch, job: str, stalls: stall_clock.StallClock) -> Times:
    """Return the times of a Job."""
    last = [manifest for _, _, manifest in watch.events if manifest["metadata"]["name"].startswith(job)][-1]
    return Times(
        creating=watch.first(job, container_waits),
        running=watch.first(job, phase("Running")),
        completed=watch.first(job, phase("Succeeded")),
        container=last["status"]["containerStatuses"][0],
        about=stalls.about,
    )


def test_the_job_set_has_the_timing_of_a_real_cluster(times: dict[str, Times], cluster: ControlPlane) -> None:
    """`sleep 10s`: created after 1 s, running after 11 s, completed after 22 s."""
    calm = times["calm"]
    assert calm.creating == calm.about(1)
    assert calm.running == calm.about(11)
    assert calm.completed == calm.about(22)
    ended = calm.container["state"]["terminated"]
    ran = [datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt")]
    assert (ran[1] - ran[0]).total_seconds() == calm.about(10)


@pytest.mark.parametrize("disturbance", ["killed", "touched"])
def test_a_disturbed_job_is_not_delayed(times: dict[str, Times], cluster: ControlPlane, disturbance: str) -> None:
    """Neither a restart of kwok nor an update of the pod restarts its delay."""
    assert times[disturbance].completed == times[disturbance].about(22)


def test_pods_without_a_job_complete_by_their_restart_policy(times: dict[str, Times], cluster: ControlPlane) -> None:
    """Init containers run first; a pod with restartPolicy Always never completes."""
    prepared = times["prepared"]
    assert prepared.running == prepared.about(1 + 1 + 1 + 10)
    assert prepared.completed == prepared.about(1 + 1 + 1 + 10 + 2)
    assert times["endless"].running
    assert times["endless"].completed is None
