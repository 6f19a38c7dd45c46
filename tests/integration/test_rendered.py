"""What `kwokfleet render` prints, in a real cluster: the API server takes it, kwok plays it as written.

`tests/harness/lifecycle_recording.py` plays one Fleet with all scenarios; the tests read its record.
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


# What the API server says


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Return a folder with the examples, with a few nodes in each pool."""
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    shutil.copytree(ROOT / "fleets", tmp_path / "fleets")
    for path in (tmp_path / "fleets").glob("*.yaml"):
        path.write_text(re.sub(r"replicas: \d{2,}", "replicas: 3", path.read_text()))
    return tmp_path


TAKE = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-", "--output=name")


def test_the_api_server_takes_every_object_of_the_examples(
    kinds: ControlPlane, cluster: ControlPlane, examples: Path
) -> None:
    """Stages, namespaces, ConfigMaps and nodes, as they are printed, without one field too many."""
    text = render(examples, "--now", NOW)
    answer = cluster.kubectl(*TAKE, stdin=text)
    assert len(answer.splitlines()) == text.count("\n---\n") + text.startswith("---\n")
    said = {line.partition("/")[0] for line in answer.splitlines()}
    kwok_kinds = {f"{kind}.kwok.x-k8s.io" for kind in ("stage", "metric", "clusterresourceusage")}
    assert said == {*kwok_kinds, "namespace", "configmap", "node"}


def test_the_api_server_takes_the_first_object_of_every_wave(
    kinds: ControlPlane, cluster: ControlPlane, box: Sandbox, examples: Path
) -> None:
    """Jobs, Deployments, variables filled in."""
    objects = [
        each for each in rendered_manifests(examples, "--waves", "--now", NOW) if WAVE in each["metadata"]["labels"]
    ]
    first = {(each["metadata"]["labels"][FLEET], each["metadata"]["labels"][WAVE]): each for each in objects[::-1]}
    for each in first.values():
        each["metadata"]["namespace"] = box.name
    answer = cluster.kubectl(*TAKE, stdin="\n".join(map(json.dumps, first.values())))
    assert len(answer.splitlines()) == len(first) == render(examples, "--now", NOW).count("\n# wave ")


@pytest.fixture(scope="module")
def played(kinds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Play the Fleet once for all tests below."""
    with ExitStack() as stack:
        box = stack.enter_context(contextmanager(sandbox.opened)(kinds))
        return Recorder(box, tmp_path_factory.mktemp("play"), stack).run()


@pytest.fixture
def play(played: Recording, cluster: ControlPlane) -> Recording:
    """Return what was played; `cluster` brings the components' logs into a failure."""
    return played


# Nodes


def test_nodes_are_born_settled(play: Recording) -> None:
    """Ready at once; the not-ready taint goes, and then nobody has anything to add or change."""
    for name in play.pool("plain"):
        (at, born), (_, settled), *later = play.nodes.of(name)
        assert is_ready(born)
        assert is_schedulable(settled)
        assert all(after > at + QUIET_S for after, _ in later)
        added, changed = compared(play.sent[name], settled)
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
"""The API server's own, and what it writes for fields that are always there."""


def compared(sent: Manifest, there: Manifest, path: str = "") -> tuple[list[str], list[str]]:
    """Return the fields that were added to an object, and those that were changed or removed."""
    added = [f"{path}{key}" for key in there if key not in sent]
    changed: list[str] = []
    for key, value in sent.items():
        if isinstance(value, dict) and isinstance(there.get(key), dict):
            inner = compared(value, there[key], f"{path}{key}.")
            added, changed = added + inner[0], changed + inner[1]
        elif there.get(key) != value:
            changed.append(f"{path}{key}")
    return sorted(added), sorted(changed)


def test_each_node_is_itself(play: Recording) -> None:
    """Hostname and providerID follow the name; the networks are kept by the API server, and disjoint."""
    nodes = {name: play.nodes.now(name) for name in play.sent}
    for name, node in nodes.items():
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert node["spec"]["providerID"] == f"kwok://{name}"
    given = [nodes[name]["spec"]["podCIDRs"] for pool in ("plain", "other") for name in play.pool(pool)]
    networks = [ipaddress.ip_network(each) for (each,) in given]
    assert len(networks) == 7
    assert not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2))


def test_a_node_boots_when_its_lifecycle_says(play: Recording) -> None:
    """Not ready before; a change on the way, or another part of the lifecycle, moves nothing."""
    touched, calm = play.pool("booting")
    assert "example.com/touched" in play.nodes.now(touched)["metadata"]["annotations"]
    assert play.nodes.after(calm, is_ready) == play.about(4)
    assert play.nodes.after(touched, is_ready) == play.about(4)
    assert play.nodes.after(play.pool("frail")[0], is_ready) == play.about(3)


def test_a_node_boots_after_the_time_that_was_drawn_for_it(play: Recording) -> None:
    """Each carries its own, and obeys it."""
    drawn = {
        name: play.sent[name]["metadata"]["annotations"]["kwokfleet.dev/boot-after"] for name in play.pool("drawn")
    }
    assert len(set(drawn.values())) == 4
    for name, duration in drawn.items():
        assert play.nodes.after(name, is_ready) == play.about(float(duration.removesuffix("s")))


def test_nodes_fail_and_come_back_and_fail_again(play: Recording) -> None:
    """With the reason and message that were written, for the time that was written, every so often."""
    for name in play.pool("flaky"):
        states = play.nodes.of(name)
        seen = failures(states)
        assert len(seen) >= 2
        for down, up, node in seen:
            assert up - down == play.about(3)
            condition = conditions(node)["Ready"]
            assert (condition["reason"], condition["message"]) == ("PowerLost", 'no "power"')
        ups = [states[0][0], *(up for _, up, _ in seen)]
        # every 6 s, more or less: half of it to half as much again, and what that is exact to
        late = play.lost_s
        assert all(2.5 - late < down - up < 10.5 + late for up, (down, _, _) in zip(ups, seen, strict=False))


def test_node_chaos_fails_a_node_with_a_lifecycle(play: Recording) -> None:
    """It is down a second after the label came, and stays down while the label is there."""
    name = play.pool("frail")[0]
    after = [(at - play.labelled, node) for at, node in play.nodes.of(name) if at > play.labelled]
    down = [(at, node) for at, node in after if not is_ready(node)]
    assert down[0][0] == play.about(1)
    assert conditions(down[0][1])["Ready"]["reason"] == "nodeFailed"
    assert not any(is_ready(node) for at, node in after if at > down[0][0])


# Pods


def test_pods_land_on_the_nodes_of_their_fleet_and_pool(play: Recording) -> None:
    """Not on those of another pool, nor on a node of no fleet that would take anybody."""
    landed = {pod: play.pods.now(pod)["spec"].get("nodeName") for pod in play.pods.names(fleet=play.fleet)}
    on = {wave: {landed[pod] for pod in play.pods.names(wave=wave)} for wave in ("crowd", "sleeper", "long", "loose")}
    assert on["crowd"] <= set(play.pool("plain"))
    assert on["sleeper"] <= set(play.pool("plain"))
    assert on["long"] == set(play.pool("restarted"))
    assert on["loose"] == {play.decoy}
    assert [pod for pod, node in landed.items() if node == play.decoy] == play.pods.names(wave="loose")


def test_a_job_takes_the_time_it_takes_on_a_real_cluster(play: Recording) -> None:
    """`sleep 10s` by the set job: created after 1 s, running after 11 s, completed after 22 s."""
    assert times(play, "simple") == [play.about(each) for each in (1, 11, 22)]


def test_a_lifecycle_takes_the_time_that_was_written(play: Recording) -> None:
    """The same Job by create 1s, ready 10s, complete args: 1 s, 11 s, 21 s."""
    assert times(play, "sleeper") == [play.about(each) for each in (1, 11, 21)]


def times(play: Recording, wave: str) -> list[float | None]:
    """Return when a pod was created, ran and completed."""
    checks = (is_creating, phase("Running"), phase("Succeeded"))
    return [play.pods.after(play.pod(wave), check) for check in checks]


def test_a_restart_of_kwok_prolongs_nothing(play: Recording) -> None:
    """A Job of 20 s whose kwok was killed after 8 s ends after 20 s."""
    _, running, completed = times(play, "long")
    assert running is not None
    assert completed is not None
    assert completed - running == play.about(20)


def test_init_containers_take_their_time_first(play: Recording) -> None:
    """With create 1s, init 2s, ready 10s: running after 13 s."""
    pod = play.pod("prepared")
    assert play.pods.after(pod, lambda each: "running" in state(each, INIT)) == play.about(1)
    assert play.pods.after(pod, lambda each: "terminated" in state(each, INIT)) == play.about(3)
    assert play.pods.after(pod, phase("Running")) == play.about(13)
    ended = [each["state"]["terminated"]["exitCode"] for each in play.pods.now(pod)["status"][INIT]]
    assert ended == [0, 0]


INIT = "initContainerStatuses"


def test_a_pod_fails_with_the_words_that_were_written(play: Recording) -> None:
    """Quotes, braces, line ends and letters of any script arrive as they are."""
    pod = play.pods.now(play.pod("doomed"))
    ended = state(pod)["terminated"]
    assert pod["status"]["phase"] == "Failed"
    assert (ended["reason"], ended["exitCode"]) == ('OOM "Killed" {{x}}', 137)
    assert ended["message"] == "a: \\ 'b'\n{{ .c }} 💥"


def test_some_pods_fail_and_the_others_live_on(play: Recording) -> None:
    """About three in ten of sixty; those that were spared run, and nothing happens to them any more."""
    crowd = {pod: play.pods.of(pod) for pod in play.pods.names(wave="crowd")}
    failed = [pod for pod, states in crowd.items() if phase("Failed")(states[-1][1])]
    assert len(crowd) == CROWD
    assert 4 <= len(failed) <= 34
    for states in (states for pod, states in crowd.items() if pod not in failed):
        assert is_ready(states[-1][1])
        assert [is_spared(pod) for _, pod in states].count(True) == 1


def test_containers_crash_and_start_again(play: Recording) -> None:
    """Each crash counts and backs off for the time that was written, in a pod that stays Running."""
    states = [(at, pod) for at, pod in play.pods.of(play.pod("crashing")) if phase("Running")(pod)]
    backs = [(at, state(pod).get("waiting", {}).get("reason"), restarts(pod)) for at, pod in states][:5]
    reasons = [reason for _, reason, _ in backs]
    assert reasons == [None, "CrashLoopBackOff", None, "CrashLoopBackOff", None]
    assert [count for _, _, count in backs] == [0, 1, 1, 2, 2]
    assert [later[0] - at[0] for at, later in itertools.pairwise(backs)] == [play.about(1)] * 4
    ended = states[1][1]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("Segfault", 139)


def restarts(pod: Manifest) -> int:
    """Return how often a pod's first container has crashed."""
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def test_an_annotation_says_when_a_pod_completes(play: Recording) -> None:
    """So long after its start, or at a time, which may have passed."""
    after, *at = (play.pods.after(pod, phase("Succeeded")) for pod in play.pods.names(wave="told"))
    assert after == play.about(3)
    assert at == [play.about(0)] * 2


def test_a_pod_completes_after_the_time_that_was_drawn_for_it(play: Recording) -> None:
    """Each Job has its own, its pod carries exactly that, and takes that long."""
    key = "kwokfleet.dev/complete-after"
    sent = {
        job["metadata"]["name"]: job["spec"]["template"]["metadata"]["annotations"][key] for job in play.waves["drawn"]
    }
    carried = {}
    for pod in play.pods.names(wave="drawn"):
        running, completed = (play.pods.after(pod, phase(name)) for name in ("Running", "Succeeded"))
        assert running is not None
        assert completed is not None
        metadata = play.pods.now(pod)["metadata"]
        [owner] = metadata["ownerReferences"]
        carried[owner["name"]] = metadata["annotations"][key]
        assert completed - running == play.about(float(metadata["annotations"][key].removesuffix("s")))
    assert carried == sent
    assert len(sent) == 6
    assert len(set(sent.values())) > 1


def test_a_deleted_pod_goes_after_the_time_that_was_written(play: Recording) -> None:
    """Two seconds, not at once and not after its grace period."""
    gone = play.pods.gone(play.pod("mortal"))
    assert gone is not None
    assert gone - play.deleted == play.about(2)


def test_the_sets_leave_pods_with_a_lifecycle_alone(play: Recording) -> None:
    """One whose lifecycle begins in an hour is bound and nothing more, while the set job plays others."""
    frozen = [pod for _, pod in play.pods.of(play.pod("frozen"))]
    assert frozen[-1]["spec"]["nodeName"] in play.pool("plain")
    assert not any("containerStatuses" in pod["status"] for pod in frozen)
    managers = {entry["manager"] for entry in frozen[-1]["metadata"]["managedFields"]}
    assert managers == {"kubectl-create"}


def test_pod_chaos_fails_pods_with_a_lifecycle(play: Recording) -> None:
    """All that ask for it by their label, a second after they ran."""
    for pod in play.pods.names(wave="asked"):
        assert play.pods.after(pod, phase("Failed")) == play.about(1)
