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

import jq  # type: ignore[import-not-found,unused-ignore]  # ships no types
import pytest
from ruamel.yaml import YAML

from tests.harness import kwok, sandbox, stalls, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox
from tests.harness.watch import Watch, watching

FOLDER = Path(__file__).parents[2] / "stages"
SETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
DEFAULT = {"node-fast", "node-heartbeat", "node-heartbeat-with-lease", "pod-fast", "pod-general", "job", "pod-recover"}
"""The sets that leave objects with a lifecycle of their own alone."""
LIFECYCLE = {"key": '.metadata.labels["kwokfleet.dev/lifecycle"]', "operator": "DoesNotExist"}
PART = "kwokfleet.dev/test-part"
"""Tells nodes of one box apart that belong to different kwoks."""
NOT_READY = "node-not-ready.stage.kwok.x-k8s.io"
FAILED = "pod-container-running-failed.stage.kwok.x-k8s.io"
INIT_FAILED = "pod-init-container-running-failed.stage.kwok.x-k8s.io"
CRASH = "pod-container-crash.stage.kwok.x-k8s.io"
QUICK = {
    f"pod-{step}.stage.kwok.x-k8s.io/delay": "100ms"
    for step in ("create", "init-container-running", "init-container-completed", "ready", "complete", "delete")
}
"""Annotations that take a pod through pod-general in half a second."""

Manifest = dict[str, Any]


def paths(*names: str) -> list[Path]:
    """Return the files of sets."""
    return [FOLDER / f"{name}.yaml" for name in names]


def documents(name: str) -> list[Manifest]:
    """Return the documents of a set."""
    return list(YAML(typ="safe").load_all(FOLDER / f"{name}.yaml"))


def stages(name: str) -> dict[str, Manifest]:
    """Return the Stages of a set, by name."""
    return {each["metadata"]["name"]: each["spec"] for each in documents(name) if each["kind"] == "Stage"}


# What the cluster is given


def add_node(box: Sandbox, name: str, labels: dict[str, str] | None = None, *, schedulable: bool = True) -> str:
    """Make a bare node; return its name, normally once pods can land on it."""
    node = box.manifest("v1", "Node", name)
    node["metadata"]["labels"] |= labels or {}
    box.cluster.apply(node)
    made = str(node["metadata"]["name"])
    if schedulable:
        waiting.until(lambda: ready(box, made) == "True" and not box.cluster.get("node", made)["spec"].get("taints"))
    return made


def ready(box: Sandbox, node: str) -> str:
    """Return the status of a node's Ready condition."""
    return str(conditions(box.cluster.get("node", node)).get("Ready", {}).get("status", "none"))


def conditions(thing: Manifest) -> dict[str, Manifest]:
    """Return an object's conditions, by type."""
    return {each["type"]: each for each in thing["status"].get("conditions", ())}


def pod_spec(node: str, *names: str, **fields: Any) -> Manifest:  # noqa: ANN401 - a manifest
    """Write the spec of a pod that is bound to *node* by the scheduler."""
    containers = [{"name": name, "image": "registry/image:1"} for name in names]
    return {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": containers, **fields}


def add_pod(box: Sandbox, name: str, node: str, **parts: Any) -> str:  # noqa: ANN401 - a manifest
    """Make a pod on *node* by naming it there, and return its name; *parts*: labels, annotations, spec."""
    spec = {**pod_spec(node, "main"), **parts.get("spec", {}), "nodeName": node}
    del spec["nodeSelector"]
    pod = box.manifest("v1", "Pod", name, spec=spec)
    pod["metadata"] |= {"annotations": QUICK | parts.get("annotations", {})}
    pod["metadata"]["labels"] |= parts.get("labels", {})
    box.cluster.apply(pod)
    return str(pod["metadata"]["name"])


def add_job(box: Sandbox, name: str, part: dict[str, str], *arguments: str) -> str:
    """Make a Job of one pod, for nodes with the labels *part*, and return its name."""
    metadata = {"annotations": QUICK}
    container = {"name": "main", "image": "busybox", "args": list(arguments)}
    spec = {"nodeSelector": box.labels | part, "restartPolicy": "Never", "containers": [container]}
    job = box.manifest("batch/v1", "Job", name, spec={"template": {"metadata": metadata, "spec": spec}})
    box.cluster.apply(job)
    return str(job["metadata"]["name"])


def pod(box: Sandbox, name: str) -> Manifest:
    """Return a pod as it is now."""
    return box.cluster.get("pod", name, "--namespace", box.name)


def when(box: Sandbox, name: str, is_so: Callable[[Manifest], bool], deadline_s: float = 30) -> Manifest:
    """Wait until something holds for a pod, and return it as it was then."""
    seen: list[Manifest] = []

    def look() -> bool:
        seen[:] = [pod(box, name)]
        return is_so(seen[0])

    waiting.until(look, deadline_s=deadline_s)
    return seen[0]


def is_ready(thing: Manifest) -> bool:
    """Tell whether a pod or node is Ready."""
    return bool(conditions(thing).get("Ready", {}).get("status") == "True")


def completed(box: Sandbox, job: str) -> Manifest:
    """Wait until a Job is complete, and return its pod."""
    waiting.until(lambda: "Complete" in conditions(box.cluster.get("job", job, "--namespace", box.name)))
    selector = ("--selector", f"batch.kubernetes.io/job-name={job}")
    pods: list[Manifest] = box.cluster.get("pods", "--namespace", box.name, *selector)["items"]
    return pods[0]


def phase(name: str) -> Callable[[Manifest], bool]:
    """Return a check for a pod's phase."""
    return lambda thing: bool(thing["status"].get("phase") == name)


def waits(thing: Manifest) -> bool:
    """Tell whether a pod's first container is backing off."""
    return bool(thing["status"]["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")


# What can be said without a cluster


@pytest.mark.parametrize("name", SETS)
def test_a_set_keeps_to_the_form_others_rely_on(name: str) -> None:
    """Names, the label, the current spelling of everything, and lifecycles left alone by the default sets."""
    assert (FOLDER / f"{name}.yaml").read_text().startswith(f"# {name}: ")
    for document in documents(name):
        assert document["metadata"]["labels"]["kwokfleet.dev/stage-set"] == name
    for stage, spec in stages(name).items():
        assert stage.startswith(f"{name}-")
        assert spec["steps"]
        assert "next" not in spec
        required = spec["selector"]["matchExpressions"]
        assert all(set(each) == {"jq"} for each in required)
        assert (required[0] == {"jq": LIFECYCLE}) == (name in DEFAULT)
        for expression in expressions(spec):
            jq.compile(expression)


def expressions(spec: Manifest) -> Iterator[str]:
    """Yield every jq expression of a Stage."""
    yield from (each["jq"]["key"] for each in spec["selector"]["matchExpressions"])
    delay = spec.get("delay", {})
    for source in (spec.get("weightFrom"), delay.get("durationFrom"), delay.get("jitterDurationFrom")):
        if source:
            yield source["jq"]["expression"]


@pytest.mark.parametrize(
    ("arguments", "delay"),
    [
        (["sleep", "10s"], "11000ms"),
        (["sleep", "10"], "11000ms"),
        (["sleep", "0.5"], "1500ms"),
        (["sleep", "1m30s"], "91000ms"),
        (["sleep", "2m"], "121000ms"),
        (["sh", "-c", "echo go; /bin/sleep 3 && exit"], "4000ms"),
        (["sleep", "infinity"], None),
        (["oversleep", "3"], None),
        (["serve"], None),
    ],
)
def test_the_job_set_reads_how_long_a_program_takes(arguments: list[str], delay: str | None) -> None:
    """A pod that is not a Job's ends only if its args say when; teardown takes one second more."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": now}}}]}
    manifest = {
        "metadata": {},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "args": arguments}]},
        "status": status,
    }
    spec = stages("job")["job-complete"]
    ends = jq.compile(spec["selector"]["matchExpressions"][-1]["jq"]["key"]).input_value(manifest).first()
    assert ends == (delay is not None)
    if delay:
        assert jq.compile(spec["delay"]["durationFrom"]["jq"]["expression"]).input_value(manifest).first() == delay


@pytest.mark.parametrize("name", ["pod-fast", "pod-general"])
@pytest.mark.parametrize(("group", "completes"), [("batch/v1", True), ("batch.volcano.sh/v1alpha1", False)])
def test_only_jobs_of_the_group_batch_complete(name: str, group: str, completes: bool) -> None:  # noqa: FBT001 - a case
    """Volcano has a kind of the same name, whose pods end by other means."""
    owner = {"metadata": {"ownerReferences": [{"apiVersion": group, "kind": "Job", "name": "j"}]}}
    required = stages(name)[f"{name}-complete"]["selector"]["matchExpressions"][-1]["jq"]
    assert required["operator"] == "Exists"
    assert bool(jq.compile(required["key"]).input_value(owner).all()) == completes


# What the API server says


@pytest.fixture(scope="module")
def kinds(session_cluster: ControlPlane) -> ControlPlane:
    """Return the session's control plane, with kwok's kinds."""
    kwok.install_crds(session_cluster)
    return session_cluster


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

    done = completed(fast, add_job(fast, "job", {}, "anything"))
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
        when(ground.box, name, is_ready)
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
    done = completed(ground.box, add_job(ground.box, "job", {}, "anything"))
    assert conditions(done)["ContainersReady"]["reason"] == "PodCompleted"
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert "podIP" not in when(ground.box, bare, is_ready)["status"]


def init_state(thing: Manifest) -> str:
    """Return the state of a pod's first init container."""
    return next((key for each in thing["status"].get("initContainerStatuses", ())[:1] for key in each["state"]), "")


def test_a_deleted_pod_with_a_finalizer_ends_and_waits_for_its_owner(ground: Playground) -> None:
    """Foreign finalizers stay; the owner sees a pod that Failed, and when it lets go the pod is gone."""
    box = ground.box
    name = add_pod(box, "held", ground.node)
    when(box, name, is_ready)
    patch = ("patch", "pod", name, "--namespace", box.name, "--type=merge", "--patch")
    box.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    box.cluster.kubectl("delete", "pod", name, "--namespace", box.name, "--wait=false")
    held = when(box, name, lambda thing: thing["metadata"].get("deletionGracePeriodSeconds") == 0)
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

    main, hungry = when(box, name, phase("Failed"))["status"]["containerStatuses"]
    ended = hungry["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert main["state"]["terminated"]["exitCode"] == 0
    one, two = when(box, stuck, phase("Failed"))["status"]["initContainerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 1
    assert "waiting" in two["state"]


OUT_OF_MEMORY = {"container-name": "hungry", "reason": "OOMKilled", "exit-code": "137"}


def test_pod_chaos_crashes_and_restarts(ground: Playground) -> None:
    """Each crash counts, backs off and is followed by a new start, in a pod that stays Running."""
    box = ground.box
    annotations = {f"{CRASH}/delay": "500ms", f"{CRASH}/restart-delay": "500ms", f"{CRASH}/exit-code": "3"}
    with pods_of(box) as watch:
        name = add_pod(box, "crash", ground.node, labels={CRASH: "true"}, annotations=annotations)
        twice = when(box, name, lambda thing: restarts(thing) >= 2)
        seen = [thing for _, thing in watch.of(name) if phase("Running")(thing)]
    assert twice["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    assert [waits(thing) for thing in seen][:4] == [False, True, False, True]
    assert [is_ready(thing) for thing in seen][:4] == [True, False, True, False]


def restarts(thing: Manifest) -> int:
    """Return how often a pod's first container has crashed."""
    return sum(each["restartCount"] for each in thing["status"].get("containerStatuses", ())[:1])


def test_pod_recover_takes_back_what_the_controller_manager_marked(ground: Playground) -> None:
    """Ready False over ready containers is undone; a pod whose containers are not ready stays so."""
    box = ground.box
    unready, marked = (add_pod(box, name, ground.node) for name in ("unready", "marked"))
    for name, types in ((unready, ("ContainersReady", "Ready")), (marked, ("Ready",))):
        when(box, name, is_ready)
        mark(box, name, *types)
    when(box, marked, is_ready)
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


def pods_of(box: Sandbox) -> AbstractContextManager[Watch]:
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
    about: Callable[[float], stalls.About]
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

    def play(part: str) -> kwok.Kwok:
        selector = f"{box.selector},{PART}={part}"
        return stack.enter_context(kwok.running(cluster, folder / part, selector=selector, stages=sets))

    with ExitStack() as stack:
        box = stack.enter_context(contextmanager(sandbox.opened)(cluster))
        play("calm")
        doomed = play("killed")
        for part in ("calm", "killed"):
            add_node(box, part, {PART: part})
        watch = stack.enter_context(pods_of(box))
        lost = stack.enter_context(stalls.counted(cluster))
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


def disturb(watch: Watch, box: Sandbox, jobs: dict[str, str], doomed: kwok.Kwok) -> None:
    """Three seconds into the run, change one Job's pod and kill the kwok that plays another's."""
    started = max(at for at, _, thing in watch.seen if phase("Running")(thing))
    waiting.until(lambda: time.monotonic() > started + 3)
    touched = next(
        name for _, _, thing in watch.seen if (name := thing["metadata"]["name"]).startswith(jobs["touched"])
    )
    box.cluster.kubectl("annotate", "pod", touched, "--namespace", box.name, "example.com/touched=yes")
    doomed.kill()


def timed(watch: Watch, job: str, lost: stalls.Stalls) -> Times:
    """Read a Job's times from the watch."""
    last = [thing for _, _, thing in watch.seen if thing["metadata"]["name"].startswith(job)][-1]
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
