"""Output of `kwokfleet render` in a real cluster: the API server accepts it, kwok runs it.

`tests/harness/lifecycle_recording.py` runs one Fleet with all scenarios; the tests read its recording.
"""

import ipaddress
import itertools
import json
import re
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.harness import sandbox
from tests.harness.control_plane import ControlPlane
from tests.harness.lifecycle_recording import (
    CROWD,
    FLEET,
    WAVE,
    Manifest,
    Recorder,
    Recording,
    conditions,
    failures,
    is_creating,
    is_ready,
    is_schedulable,
    is_spared,
    phase,
    render,
    rendered_manifests,
    state,
)
from tests.harness.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
NOW = "2026-03-02T06:00:00Z"
QUIET_S = 3


# Validation by the API server


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Return a folder with the examples, with few nodes in each pool."""
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    shutil.copytree(ROOT / "fleets", tmp_path / "fleets")
    for path in (tmp_path / "fleets").glob("*.yaml"):
        path.write_text(re.sub(r"replicas: \d{2,}", "replicas: 3", path.read_text()))
    return tmp_path


APPLY_DRY_RUN = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-", "--output=name")


def test_the_api_server_accepts_every_object_of_the_examples(
    kinds: ControlPlane, cluster: ControlPlane, examples: Path
) -> None:
    """Stages, namespaces, ConfigMaps and nodes, without unknown fields."""
    text = render(examples, "--now", NOW)
    output = cluster.kubectl(*APPLY_DRY_RUN, stdin=text)
    assert len(output.splitlines()) == text.count("\n---\n") + text.startswith("---\n")
    kinds_in_output = {line.partition("/")[0] for line in output.splitlines()}
    kwok_kinds = {f"{kind}.kwok.x-k8s.io" for kind in ("stage", "metric", "clusterresourceusage")}
    assert kinds_in_output == {*kwok_kinds, "namespace", "configmap", "node"}


def test_the_api_server_accepts_the_first_object_of_every_wave(
    kinds: ControlPlane, cluster: ControlPlane, box: Sandbox, examples: Path
) -> None:
    """Jobs and Deployments with filled-in variables."""
    objects = [
        manifest
        for manifest in rendered_manifests(examples, "--waves", "--now", NOW)
        if WAVE in manifest["metadata"]["labels"]
    ]
    first = {
        (manifest["metadata"]["labels"][FLEET], manifest["metadata"]["labels"][WAVE]): manifest
        for manifest in objects[::-1]
    }
    for manifest in first.values():
        manifest["metadata"]["namespace"] = box.name
    output = cluster.kubectl(*APPLY_DRY_RUN, stdin="\n".join(map(json.dumps, first.values())))
    assert len(output.splitlines()) == len(first) == render(examples, "--now", NOW).count("\n# wave ")


@pytest.fixture(scope="module")
def session_recording(kinds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Record the Fleet once for all tests below."""
    with ExitStack() as stack:
        box = stack.enter_context(contextmanager(sandbox.opened)(kinds))
        return Recorder(box, tmp_path_factory.mktemp("play"), stack).run()


@pytest.fixture
def recording(session_recording: Recording, cluster: ControlPlane) -> Recording:
    """Return the recording; `cluster` adds the components' logs to a failure."""
    return session_recording


# Nodes


def test_nodes_are_created_ready_and_not_changed(recording: Recording) -> None:
    """Only the not-ready taint is removed, and the API server adds its own fields."""
    for name in recording.pool("plain"):
        (at, born), (_, settled), *later = recording.nodes.of(name)
        assert is_ready(born)
        assert is_schedulable(settled)
        assert all(after > at + QUIET_S for after, _ in later)
        added, changed = compare_fields(recording.sent[name], settled)
        assert changed == []
        assert added == ADDED
        managers = {entry["manager"] for entry in settled["metadata"]["managedFields"]}
        assert managers == {"kubectl-create", "kube-controller-manager"}


ADDED = [
    "metadata.creationTimestamp",
    "metadata.managedFields",
    "metadata.resourceVersion",
    "metadata.uid",
    "status.daemonEndpoints",
    "status.nodeInfo.bootID",
    "status.nodeInfo.machineID",
    "status.nodeInfo.systemUUID",
]
"""Fields that the API server adds."""


def compare_fields(sent: Manifest, live: Manifest, path: str = "") -> tuple[list[str], list[str]]:
    """Return the added fields of an object, and the changed or removed ones."""
    added = [f"{path}{key}" for key in live if key not in sent]
    changed: list[str] = []
    for key, value in sent.items():
        if isinstance(value, dict) and isinstance(live.get(key), dict):
            inner = compare_fields(value, live[key], f"{path}{key}.")
            added, changed = added + inner[0], changed + inner[1]
        elif live.get(key) != value:
            changed.append(f"{path}{key}")
    return sorted(added), sorted(changed)


def test_each_node_has_its_own_identity(recording: Recording) -> None:
    """Hostname and providerID follow the name; the pod networks are disjoint."""
    nodes = {name: recording.nodes.now(name) for name in recording.sent}
    for name, node in nodes.items():
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert node["spec"]["providerID"] == f"kwok://{name}"
    pod_cidrs = [nodes[name]["spec"]["podCIDRs"] for pool in ("plain", "other") for name in recording.pool(pool)]
    networks = [ipaddress.ip_network(cidr) for (cidr,) in pod_cidrs]
    assert len(networks) == 7
    assert not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2))


def test_a_node_boots_after_its_boot_delay(recording: Recording) -> None:
    """An update during the boot, or another part of the lifecycle, does not move it."""
    touched, calm = recording.pool("booting")
    assert "example.com/touched" in recording.nodes.now(touched)["metadata"]["annotations"]
    assert recording.nodes.after(calm, is_ready) == recording.about(4)
    assert recording.nodes.after(touched, is_ready) == recording.about(4)
    assert recording.nodes.after(recording.pool("frail")[0], is_ready) == recording.about(3)


def test_a_node_boots_after_its_random_delay(recording: Recording) -> None:
    """Each node has the delay in its annotation."""
    drawn = {
        name: recording.sent[name]["metadata"]["annotations"]["kwokfleet.dev/boot-after"]
        for name in recording.pool("drawn")
    }
    assert len(set(drawn.values())) == 4
    for name, duration in drawn.items():
        assert recording.nodes.after(name, is_ready) == recording.about(float(duration.removesuffix("s")))


def test_nodes_fail_and_recover_repeatedly(recording: Recording) -> None:
    """With the declared reason, message, duration and interval."""
    for name in recording.pool("flaky"):
        states = recording.nodes.of(name)
        outages = failures(states)
        assert len(outages) >= 2
        for down, up, node in outages:
            assert up - down == recording.about(3)
            condition = conditions(node)["Ready"]
            assert (condition["reason"], condition["message"]) == ("PowerLost", 'no "power"')
        ups = [states[0][0], *(up for _, up, _ in outages)]
        # every 6 s with a jitter of 50 %, plus the clock's tolerance
        tolerance_s = recording.lost_s
        assert all(
            2.5 - tolerance_s < down - up < 10.5 + tolerance_s for up, (down, _, _) in zip(ups, outages, strict=False)
        )


def test_node_chaos_fails_a_node_with_a_lifecycle(recording: Recording) -> None:
    """It fails one second after it is labelled, and stays down while it has the label."""
    name = recording.pool("frail")[0]
    after = [(at - recording.labelled, node) for at, node in recording.nodes.of(name) if at > recording.labelled]
    down = [(at, node) for at, node in after if not is_ready(node)]
    assert down[0][0] == recording.about(1)
    assert conditions(down[0][1])["Ready"]["reason"] == "nodeFailed"
    assert not any(is_ready(node) for at, node in after if at > down[0][0])


# Pods


def test_pods_are_scheduled_on_nodes_of_their_fleet_and_pool(recording: Recording) -> None:
    """Not on nodes of another pool, nor on a foreign node without taints."""
    landed = {
        pod: recording.pods.now(pod)["spec"].get("nodeName") for pod in recording.pods.names(fleet=recording.fleet)
    }
    on = {
        wave: {landed[pod] for pod in recording.pods.names(wave=wave)} for wave in ("crowd", "sleeper", "long", "loose")
    }
    assert on["crowd"] <= set(recording.pool("plain"))
    assert on["sleeper"] <= set(recording.pool("plain"))
    assert on["long"] == set(recording.pool("restarted"))
    assert on["loose"] == {recording.decoy}
    assert [pod for pod, node in landed.items() if node == recording.decoy] == recording.pods.names(wave="loose")


def test_the_job_set_has_the_timing_of_a_real_cluster(recording: Recording) -> None:
    """`sleep 10s`: created after 1 s, running after 11 s, completed after 22 s."""
    assert times(recording, "simple") == [recording.about(seconds) for seconds in (1, 11, 22)]


def test_a_lifecycle_has_the_declared_timing(recording: Recording) -> None:
    """The same Job with create 1s, ready 10s, complete args: 1 s, 11 s, 21 s."""
    assert times(recording, "sleeper") == [recording.about(seconds) for seconds in (1, 11, 21)]


def times(recording: Recording, wave: str) -> list[float | None]:
    """Return when a pod was created, ran and completed."""
    checks = (is_creating, phase("Running"), phase("Succeeded"))
    return [recording.pods.after(recording.pod(wave), check) for check in checks]


def test_a_restart_of_kwok_does_not_delay_a_job(recording: Recording) -> None:
    """A Job of 20 s whose kwok was killed after 8 s ends after 20 s."""
    _, running, completed = times(recording, "long")
    assert running is not None
    assert completed is not None
    assert completed - running == recording.about(20)


def test_init_containers_run_first(recording: Recording) -> None:
    """With create 1s, init 2s, ready 10s: running after 13 s."""
    pod = recording.pod("prepared")
    assert recording.pods.after(pod, lambda manifest: "running" in state(manifest, INIT)) == recording.about(1)
    assert recording.pods.after(pod, lambda manifest: "terminated" in state(manifest, INIT)) == recording.about(3)
    assert recording.pods.after(pod, phase("Running")) == recording.about(13)
    exit_codes = [status["state"]["terminated"]["exitCode"] for status in recording.pods.now(pod)["status"][INIT]]
    assert exit_codes == [0, 0]


INIT = "initContainerStatuses"


def test_a_pod_fails_with_the_declared_reason_and_message(recording: Recording) -> None:
    """Quotes, braces, newlines and non-ASCII characters are kept."""
    pod = recording.pods.now(recording.pod("doomed"))
    ended = state(pod)["terminated"]
    assert pod["status"]["phase"] == "Failed"
    assert (ended["reason"], ended["exitCode"]) == ('OOM "Killed" {{x}}', 137)
    assert ended["message"] == "a: \\ 'b'\n{{ .c }} 💥"


def test_a_share_of_the_pods_fails(recording: Recording) -> None:
    """About 30 % of 60; the others run and do not change any more."""
    crowd = {pod: recording.pods.of(pod) for pod in recording.pods.names(wave="crowd")}
    failed = [pod for pod, states in crowd.items() if phase("Failed")(states[-1][1])]
    assert len(crowd) == CROWD
    assert 4 <= len(failed) <= 34
    for states in (states for pod, states in crowd.items() if pod not in failed):
        assert is_ready(states[-1][1])
        assert [is_spared(pod) for _, pod in states].count(True) == 1


def test_containers_crash_and_restart(recording: Recording) -> None:
    """Each crash is counted and backs off for the declared time; the pod stays Running."""
    states = [(at, pod) for at, pod in recording.pods.of(recording.pod("crashing")) if phase("Running")(pod)]
    backs = [(at, state(pod).get("waiting", {}).get("reason"), restarts(pod)) for at, pod in states][:5]
    reasons = [reason for _, reason, _ in backs]
    assert reasons == [None, "CrashLoopBackOff", None, "CrashLoopBackOff", None]
    assert [count for _, _, count in backs] == [0, 1, 1, 2, 2]
    assert [later[0] - at[0] for at, later in itertools.pairwise(backs)] == [recording.about(1)] * 4
    ended = states[1][1]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("Segfault", 139)


def restarts(pod: Manifest) -> int:
    """Return the restarts of a pod's first container."""
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def test_an_annotation_sets_the_completion_time(recording: Recording) -> None:
    """A delay after the start, or a time, which may be in the past."""
    after, *at = (recording.pods.after(pod, phase("Succeeded")) for pod in recording.pods.names(wave="told"))
    assert after == recording.about(3)
    assert at == [recording.about(0)] * 2


def test_a_pod_completes_after_its_random_delay(recording: Recording) -> None:
    """Each Job has its own delay; its pod has it in an annotation."""
    key = "kwokfleet.dev/complete-after"
    sent = {
        job["metadata"]["name"]: job["spec"]["template"]["metadata"]["annotations"][key]
        for job in recording.waves["drawn"]
    }
    carried = {}
    for pod in recording.pods.names(wave="drawn"):
        running, completed = (recording.pods.after(pod, phase(name)) for name in ("Running", "Succeeded"))
        assert running is not None
        assert completed is not None
        metadata = recording.pods.now(pod)["metadata"]
        [owner] = metadata["ownerReferences"]
        carried[owner["name"]] = metadata["annotations"][key]
        assert completed - running == recording.about(float(metadata["annotations"][key].removesuffix("s")))
    assert carried == sent
    assert len(sent) == 6
    assert len(set(sent.values())) > 1


def test_a_deleted_pod_is_removed_after_the_declared_delay(recording: Recording) -> None:
    """Two seconds, not at once and not after its grace period."""
    gone = recording.pods.gone(recording.pod("mortal"))
    assert gone is not None
    assert gone - recording.deleted == recording.about(2)


def test_stage_sets_do_not_change_pods_with_a_lifecycle(recording: Recording) -> None:
    """A pod whose lifecycle starts in an hour is bound only."""
    frozen = [pod for _, pod in recording.pods.of(recording.pod("frozen"))]
    assert frozen[-1]["spec"]["nodeName"] in recording.pool("plain")
    assert not any("containerStatuses" in pod["status"] for pod in frozen)
    managers = {entry["manager"] for entry in frozen[-1]["metadata"]["managedFields"]}
    assert managers == {"kubectl-create"}


def test_pod_chaos_fails_pods_with_a_lifecycle(recording: Recording) -> None:
    """All labelled pods, one second after they run."""
    for pod in recording.pods.names(wave="asked"):
        assert recording.pods.after(pod, phase("Failed")) == recording.about(1)
