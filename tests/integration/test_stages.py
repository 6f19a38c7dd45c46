"""The Stages in stages/: the API server takes them, and a real kwok does by them what they promise."""

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
"""Tells nodes of one box apart that belong to different kwoks."""
NOT_READY = "node-not-ready.stage.kwok.x-k8s.io"
FAILED = "pod-container-running-failed.stage.kwok.x-k8s.io"
INIT_FAILED = "pod-init-container-running-failed.stage.kwok.x-k8s.io"
CRASH = "pod-container-crash.stage.kwok.x-k8s.io"

Manifest = dict[str, Any]


# What the API server says


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, kinds: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Future[dict[str, Times]]"]:
    """Begin early with Jobs that take half a minute, if a test wants them: others need not wait for that."""
    with ThreadPoolExecutor(1) as pool:
        wanted = any("times" in getattr(item, "fixturenames", ()) for item in request.session.items)
        yield pool.submit(play_jobs if wanted else lambda _cluster, _folder: {}, kinds, tmp_path_factory.mktemp("jobs"))


def test_the_api_server_takes_every_document(kinds: ControlPlane, cluster: ControlPlane) -> None:
    """By kwok's own definitions, without one field too many."""
    answer = cluster.kubectl(
        "apply", "--server-side", "--validate=strict", "--dry-run=server", "--filename", str(FOLDER), "--output=name"
    )
    assert len(answer.splitlines()) == sum(len(documents(name)) for name in SETS)


# Nodes and fast pods, by Stages that are custom resources


@pytest.fixture
def fast(kinds: ControlPlane, jobs: object, box: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """Run a kwok by the cluster's own Stages: node-fast, node-heartbeat-with-lease, pod-fast."""
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
    """A bare Node becomes Ready with a whole status, a Job on it completes, and lifecycles are left alone."""
    other = add_node(fast, "other", {"kwokfleet.dev/lifecycle": "slow"}, schedulable=False)
    sized = fast.manifest("v1", "Node", "sized", status={"capacity": {"cpu": "8", "memory": "1Gi", "pods": "3"}})
    cluster.apply(sized)
    name = add_node(fast, "bare", {"kubernetes.io/arch": "arm64"})
    node = cluster.get("node", name)
    assert {kind: each["status"] for kind, each in conditions(node).items()} == {
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


# Everything else that waits for nobody, by Stages from files


@dataclass(frozen=True)
class Playground:
    """A box whose nodes a kwok plays by pod-general and what goes beside it."""

    box: Sandbox
    node: str


@pytest.fixture(scope="module")
def shared(kinds: ControlPlane, jobs: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """Run one kwok for all tests of this part; each has pods, nodes and claims of its own."""
    sets = ("node-fast", "node-heartbeat-with-lease", "node-chaos", "pod-general", "pod-chaos", "pod-recover", "volume")
    storage_class = documents("volume")[0]
    with ExitStack() as stack:
        # Left behind it would be a stranger's, in the way of every later fleet that brings this set along.
        stack.callback(kinds.kubectl, "delete", "storageclass", storage_class["metadata"]["name"])
        kinds.apply(storage_class)
        box = stack.enter_context(contextmanager(sandbox.opened)(kinds))
        folder = tmp_path_factory.mktemp("kwok")
        stack.enter_context(kwok.running(kinds, folder, selector=box.selector, stages=paths(*sets), lease_s=40))
        yield Playground(box, add_node(box, "ground"))


@pytest.fixture
def ground(shared: Playground, cluster: ControlPlane) -> Playground:
    """Return the playground; `cluster` brings the components' logs into a failure."""
    return shared


def test_pod_general_takes_a_pod_through_its_life(ground: Playground) -> None:
    """Init containers, a sidecar, two containers and a readiness gate; then it goes, by its grace period."""
    init = [{"name": "first", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}]
    containers = pod_spec("", "main", "second")["containers"]
    gates = [{"conditionType": "example.com/gate"}]
    spec = {"initContainers": init, "containers": containers, "readinessGates": gates}
    with pods_of(ground.box) as watch:
        name = add_pod(ground.box, "life", ground.node, spec=spec)
        wait_for_pod(ground.box, name, is_ready)
        seen = [thing for _, thing in watch.of(name)]
    states = [state for state, _ in itertools.groupby(map(init_state, seen))]
    assert states == ["", "waiting", "running", "terminated"]
    status = pod(ground.box, name)["status"]
    assert {kind: each["status"] for kind, each in conditions({"status": status}).items()} == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready", "example.com/gate"), "True"
    )
    assert [each["name"] for each in status["containerStatuses"]] == ["main", "second"]
    assert "running" in status["initContainerStatuses"][1]["state"]
    ground.box.cluster.kubectl("delete", "pod", name, "--namespace", ground.box.name, "--timeout=20s")


def test_pod_general_completes_jobs_and_copes_with_host_network(ground: Playground) -> None:
    """A Job's pod ends as a kubelet would end it; a pod in the network of a node without address runs."""
    bare = add_pod(ground.box, "bare", ground.node, spec={"hostNetwork": True})
    done = wait_for_job(ground.box, add_job(ground.box, "job", {}, "anything"))
    assert conditions(done)["ContainersReady"]["reason"] == "PodCompleted"
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert "podIP" not in wait_for_pod(ground.box, bare, is_ready)["status"]


def init_state(thing: Manifest) -> str:
    """Return the state of a pod's first init container."""
    return next((key for each in thing["status"].get("initContainerStatuses", ())[:1] for key in each["state"]), "")


def test_a_deleted_pod_with_a_finalizer_ends_and_waits_for_its_owner(ground: Playground) -> None:
    """Foreign finalizers stay; the owner sees a pod that Failed, and when it lets go the pod is gone."""
    box = ground.box
    name = add_pod(box, "held", ground.node)
    wait_for_pod(box, name, is_ready)
    patch = ("patch", "pod", name, "--namespace", box.name, "--type=merge", "--patch")
    box.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    box.cluster.kubectl("delete", "pod", name, "--namespace", box.name, "--wait=false")
    held = wait_for_pod(box, name, lambda thing: thing["metadata"].get("deletionGracePeriodSeconds") == 0)
    assert held["status"]["phase"] == "Failed"
    assert held["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert held["metadata"]["finalizers"] == ["example.com/held"]
    box.cluster.kubectl(*patch, '{"metadata": {"finalizers": null}}')
    waiting.until(lambda: box.cluster.try_kubectl("get", "pod", name, "--namespace", box.name).returncode != 0)


def test_node_chaos_fails_a_node_once_and_recovers_it(ground: Playground) -> None:
    """The node stays down, untouched, while the label is there; without it the node is Ready again."""
    box = ground.box
    first = add_node(box, "chaos-1")
    annotations = (f"{NOT_READY}/reason=PowerLost", f"{NOT_READY}/type=DiskPressure")
    box.cluster.kubectl("annotate", "node", first, *annotations)
    # Each takes more than a second to fail, in which nothing may happen to those before it.
    failed = {node: fail(box, node) for node in (first, add_node(box, "chaos-2"), add_node(box, "chaos-3"))}
    assert {node: conditions(box.cluster.get("node", node)) for node in failed} == failed
    assert failed[first]["Ready"]["reason"] == failed[first]["DiskPressure"]["reason"] == "PowerLost"
    assert failed[first]["DiskPressure"]["status"] == "True"
    box.cluster.kubectl("label", "node", first, f"{NOT_READY}-")
    waiting.until(lambda: ready(box, first) == "True")
    assert conditions(box.cluster.get("node", first))["DiskPressure"]["status"] == "False"


def fail(box: Sandbox, node: str) -> dict[str, Manifest]:
    """Let a node fail, and return its conditions when it did."""
    box.cluster.kubectl("label", "node", node, f"{NOT_READY}=true")
    waiting.until(lambda: ready(box, node) == "False")
    return conditions(box.cluster.get("node", node))


def test_pod_chaos_ends_pods_as_failed(ground: Playground) -> None:
    """A named container fails as told, and an init container keeps its pod from starting."""
    box = ground.box
    annotations = {f"{FAILED}/{key}": value for key, value in OUT_OF_MEMORY.items()}
    spec = {"containers": pod_spec("", "main", "hungry")["containers"]}
    name = add_pod(box, "failed", ground.node, labels={FAILED: "true"}, annotations=annotations, spec=spec)
    init = {"initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}
    stuck = add_pod(box, "stuck", ground.node, labels={INIT_FAILED: "true"}, spec=init)

    main, hungry = wait_for_pod(box, name, phase("Failed"))["status"]["containerStatuses"]
    ended = hungry["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert main["state"]["terminated"]["exitCode"] == 0
    one, two = wait_for_pod(box, stuck, phase("Failed"))["status"]["initContainerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 1
    assert "waiting" in two["state"]


OUT_OF_MEMORY = {"container-name": "hungry", "reason": "OOMKilled", "exit-code": "137"}


def test_pod_chaos_crashes_and_restarts(ground: Playground) -> None:
    """Each crash counts, backs off and is followed by a new start, in a pod that stays Running."""
    box = ground.box
    annotations = {f"{CRASH}/delay": "500ms", f"{CRASH}/restart-delay": "500ms", f"{CRASH}/exit-code": "3"}
    with pods_of(box) as watch:
        name = add_pod(box, "crash", ground.node, labels={CRASH: "true"}, annotations=annotations)
        twice = wait_for_pod(box, name, lambda thing: restarts(thing) >= 2)
        seen = [thing for _, thing in watch.of(name) if phase("Running")(thing)]
    assert twice["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    assert [is_backing_off(thing) for thing in seen][:4] == [False, True, False, True]
    assert [is_ready(thing) for thing in seen][:4] == [True, False, True, False]


def restarts(thing: Manifest) -> int:
    """Return how often a pod's first container has crashed."""
    return sum(each["restartCount"] for each in thing["status"].get("containerStatuses", ())[:1])


def test_pod_recover_takes_back_what_the_controller_manager_marked(ground: Playground) -> None:
    """Ready False over ready containers is undone; a pod whose containers are not ready stays so."""
    box = ground.box
    unready, marked = (add_pod(box, name, ground.node) for name in ("unready", "marked"))
    for name, types in ((unready, ("ContainersReady", "Ready")), (marked, ("Ready",))):
        wait_for_pod(box, name, is_ready)
        mark(box, name, *types)
    wait_for_pod(box, marked, is_ready)
    assert not is_ready(pod(box, unready))


def mark(box: Sandbox, name: str, *types: str) -> None:
    """Set conditions of a pod to False, as the controller manager does with Ready."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    marks = [{"type": each, "status": "False", "lastTransitionTime": now} for each in types]
    status = json.dumps({"status": {"conditions": marks}})
    box.cluster.kubectl("patch", "pod", name, "--namespace", box.name, "--subresource=status", "--patch", status)
    assert not is_ready(pod(box, name))


def test_volume_provisions_binds_and_deletes(ground: Playground) -> None:
    """A claim is Bound to a volume of its size; with the claim goes the volume."""
    box = ground.box
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


# Jobs that take their time


def pods_of(box: Sandbox) -> AbstractContextManager[RecordedWatch]:
    """Watch the pods of a box."""
    return watching(box.cluster, f"/api/v1/namespaces/{box.name}/pods")


def container_waits(thing: Manifest) -> bool:
    """Tell whether a pod's first container is being created."""
    statuses = thing["status"].get("containerStatuses", ())
    return any(each["state"].get("waiting", {}).get("reason") == "ContainerCreating" for each in statuses[:1])


@dataclass(frozen=True)
class Times:
    """When a pod was first seen in each state, in seconds after its creation; and how it ended."""

    creating: float | None
    running: float | None
    completed: float | None
    container: Manifest
    about: Callable[[float], stall_clock.ApproximateSeconds]
    """What equals a time that was kept."""


SHORT = {"name": "main", "image": "busybox", "command": ["sleep"], "args": ["1"]}
OTHERS = {
    "prepared": {"restartPolicy": "OnFailure", "initContainers": [SHORT | {"name": "init"}], "containers": [SHORT]},
    "endless": {"restartPolicy": "Always", "containers": [SHORT]},
}
"""Specs of pods that no Job owns."""


def play_jobs(cluster: ControlPlane, folder: Path) -> dict[str, Times]:
    """Run three Jobs of `sleep 10s`, undisturbed, with kwok killed, with updates; and OTHERS, all at once."""
    sets = paths("node-fast", "node-heartbeat", "job")

    def play(part: str) -> kwok.KwokProcess:
        selector = f"{box.selector},{PART}={part}"
        return stack.enter_context(kwok.running(cluster, folder / part, selector=selector, stages=sets))

    with ExitStack() as stack:
        box = stack.enter_context(contextmanager(sandbox.opened)(cluster))
        play("calm")
        doomed = play("killed")
        for part in ("calm", "killed"):
            add_node(box, part, {PART: part})
        watch = stack.enter_context(pods_of(box))
        lost = stack.enter_context(stall_clock.running(cluster))
        parts = {"calm": "calm", "killed": "killed", "touched": "calm"}
        jobs = {name: add_job(box, name, {PART: part}, "sleep", "10s") for name, part in parts.items()}
        others = {name: add_pod(box, name, f"{box.name}-calm", spec=spec) for name, spec in OTHERS.items()}
        waiting.until(lambda: all(watch.first(job, phase("Running")) for job in jobs.values()), deadline_s=40)
        disturb(watch, box, jobs, doomed)
        play("killed")
        waiting.until(lambda: all(watch.first(job, phase("Succeeded")) for job in jobs.values()), deadline_s=40)
        return {name: timed(watch, prefix, lost) for name, prefix in (jobs | others).items()}


@pytest.fixture
def times(jobs: "Future[dict[str, Times]]") -> dict[str, Times]:
    """Wait for the Jobs, and return when they did what."""
    return jobs.result()


def disturb(watch: RecordedWatch, box: Sandbox, jobs: dict[str, str], doomed: kwok.KwokProcess) -> None:
    """Three seconds into the run, change one Job's pod and kill the kwok that plays another's."""
    started = max(at for at, _, thing in watch.events if phase("Running")(thing))
    waiting.until(lambda: time.monotonic() > started + 3)
    touched = next(
        name for _, _, thing in watch.events if (name := thing["metadata"]["name"]).startswith(jobs["touched"])
    )
    box.cluster.kubectl("annotate", "pod", touched, "--namespace", box.name, "example.com/touched=yes")
    doomed.kill()


def timed(watch: RecordedWatch, job: str, lost: stall_clock.StallClock) -> Times:
    """Read a Job's times from the watch."""
    last = [thing for _, _, thing in watch.events if thing["metadata"]["name"].startswith(job)][-1]
    return Times(
        creating=watch.first(job, container_waits),
        running=watch.first(job, phase("Running")),
        completed=watch.first(job, phase("Succeeded")),
        container=last["status"]["containerStatuses"][0],
        about=lost.about,
    )


def test_a_job_takes_the_time_it_takes_on_a_real_cluster(times: dict[str, Times], cluster: ControlPlane) -> None:
    """`sleep 10s`: created after 1 s, running after 11 s, completed after 22 s, each to a second."""
    calm = times["calm"]
    assert calm.creating == calm.about(1)
    assert calm.running == calm.about(11)
    assert calm.completed == calm.about(22)
    ended = calm.container["state"]["terminated"]
    ran = [datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt")]
    assert (ran[1] - ran[0]).total_seconds() == calm.about(10)


@pytest.mark.parametrize("disturbance", ["killed", "touched"])
def test_a_job_is_not_prolonged(times: dict[str, Times], cluster: ControlPlane, disturbance: str) -> None:
    """Neither kwok's restart nor a change of the pod begins the waiting anew."""
    assert times[disturbance].completed == times[disturbance].about(22)


def test_pods_of_no_job_end_if_they_would(times: dict[str, Times], cluster: ControlPlane) -> None:
    """Init containers take their own time first; what restarts always never completes."""
    prepared = times["prepared"]
    assert prepared.running == prepared.about(1 + 1 + 1 + 10)
    assert prepared.completed == prepared.about(1 + 1 + 1 + 10 + 2)
    assert times["endless"].running
    assert times["endless"].completed is None
