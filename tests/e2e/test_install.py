"""`kwokfleet install` and `uninstall` on a cluster of their own, whose pods run: what they make, leave and refuse."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.install import ownership
from tests.harness import cli, cluster_snapshot, control_plane, foreign_objects, git_repository, kubelet, waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
PodsRun = Callable[[], AbstractContextManager[kubelet.Kubelet]]
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: lab}
spec:
  nodePools: [{name: pool, replicas: 3}]
  stages: [pod-general, {file: ../parts/slow.yaml}]
  waves:
    - name: jobs
      start: {after: 0s}
      namespace: lab-jobs
      count: 2
      template: {apiVersion: v1, kind: Pod, spec: {containers: [{name: main, image: none}]}}
---
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {name: default}
spec: {manage: {label: kwokfleet.dev/fleet=lab}}    # other fake nodes have a kwok of their own
"""
STAGE = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: slow}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchLabels: {slow: "true"}}
  steps: [{delete: true}]
"""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Keep a control plane of these tests' own: they compare all of it, before and after."""
    yield from control_plane.running("install", foreign_objects.QUIET)


@pytest.fixture
def program(kwokfleet: cli.Cli, plane: ControlPlane) -> Iterator[cli.Cli]:
    """Run the command line against it; what a test that failed has installed is taken away."""
    made = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(plane.kubeconfig)})
    yield made
    for namespace in ("kwokfleet", "theirs"):  # no machine may be left to end them
        plane.try_kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--namespace", namespace)
    made.run("uninstall", "--delete-fleet", "--timeout=20s")
    plane.kubectl("delete", "namespace", "theirs", "occupied", "--ignore-not-found")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write fleet files, one of which refers to a file in a folder beside theirs."""
    folder = tmp_path / "fleets"
    for name, text in {"fleets/lab.yaml": FLEET, "parts/slow.yaml": STAGE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return folder


@pytest.fixture
def pods_run(plane: ControlPlane, tmp_path: Path) -> PodsRun:
    """Return what lets the pods of the namespaces that these tests install into run."""
    return lambda: kubelet.running(plane, tmp_path / "machine", "kwokfleet", "theirs")


def versions(plane: ControlPlane) -> dict[str, str]:
    """Return the version of everything that was installed."""
    kinds = ",".join(f"{each.plural}.{group}" if (group := _group(each.api_version)) else each.plural for each in KINDS)
    found = plane.get(kinds, "--all-namespaces", "--selector", ownership.INSTALL_LABEL)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in found}


def settled_versions(plane: ControlPlane) -> dict[str, str]:
    """Return the same once controllers have written what they find about it, nothing before."""
    before = versions(plane)
    time.sleep(cluster_snapshot.QUIET_S)
    return before if versions(plane) == before else {}


KINDS = [each for each in ownership.KINDS if not each.api_version.startswith("monitoring.")]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def nodes(plane: ControlPlane) -> dict[str, str]:
    """Return the fake nodes, and whether each is Ready."""
    found = plane.get("nodes", "--selector", "kwokfleet.dev/fleet=lab")["items"]
    return {
        each["metadata"]["name"]: next(c["status"] for c in each["status"]["conditions"] if c["type"] == "Ready")
        for each in found
    }


def refused(program: cli.Cli, code: int, *arguments: str) -> str:
    """Run a command that must end with a code, and return what it said."""
    done = program.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_what_is_wrong_with_files_is_said_before_a_cluster_is_asked(program: cli.Cli, files: Path) -> None:
    """Whoever installs hears of both, and of the files first."""
    (files / "lab.yaml").write_text(FLEET.replace("replicas: 3", "replicas: many"))
    done = program.run("install", "--from", str(files), KUBECONFIG=str(files / "none"))
    assert done.returncode == 2, done.stderr
    assert "lab.yaml:6" in done.stderr
    (files / "lab.yaml").write_text(FLEET)
    done = program.run("install", "--from", str(files), KUBECONFIG=str(files / "none"))
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


def test_a_deployment_of_somebody_else_is_not_touched(plane: ControlPlane, program: cli.Cli, files: Path) -> None:
    """Not even by force, and nothing else is written either."""
    labels = {"team": "others"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    theirs = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    plane.kubectl("create", "namespace", "occupied")
    metadata = {"name": "kwokfleet", "namespace": "occupied"}
    plane.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": theirs})
    waiting.until(
        lambda: plane.get("deployment/kwokfleet", "-n", "occupied").get("status", {}).get("observedGeneration")
    )
    before = cluster_snapshot.take_settled(plane)
    said = refused(program, 5, "install", "-n", "occupied", "--from", str(files), "--force")
    assert "deployment/kwokfleet in occupied already exists and does not belong to kwokfleet" in said
    assert not cluster_snapshot.differences(before, cluster_snapshot.take(plane))


def test_who_may_not_install_is_told_so_and_changes_nothing(
    plane: ControlPlane, program: cli.Cli, tmp_path: Path
) -> None:
    """Nor does a trial on the server, whoever asks for it."""
    before = cluster_snapshot.take_settled(plane)
    said = program.ok("install", "--dry-run=server")
    assert "deployment/kwokfleet in kwokfleet created (server dry run)" in said
    kubeconfig = plane.kubeconfig_of("default", tmp_path / "nobody.json")
    said = refused(program, 4, "install", "--kubeconfig", str(kubeconfig))
    assert "forbidden" in said.lower()
    assert not cluster_snapshot.differences(before, cluster_snapshot.take(plane))


@pytest.mark.faults
def test_what_is_in_the_way_of_an_upgrade_is_said(plane: ControlPlane, program: cli.Cli, files: Path) -> None:
    """A pod without a machine, a field that others have set, files that are not named again, another namespace."""
    said = refused(program, 7, "install", "--from", str(files), "--timeout=3s")
    assert "is not scheduled" in said
    plane.kubectl("scale", "deployment/kwokfleet", "--replicas=3", "-n", "kwokfleet")
    again = ("install", "--from", str(files), "--no-wait")
    said = refused(program, 4, *again)
    assert ".spec.replicas" in said
    assert "--force" in said
    assert plane.get("deployment/kwokfleet", "-n", "kwokfleet")["spec"]["replicas"] == 3
    program.ok(*again, "--force")
    assert plane.get("deployment/kwokfleet", "-n", "kwokfleet")["spec"]["replicas"] == 1
    assert "name them again" in refused(program, 2, "install", "--no-wait")
    said = refused(program, 5, *again, "--namespace=elsewhere")
    assert "already installed in namespace kwokfleet" in said
    plane.kubectl("delete", "deployment,service", "kwokfleet", "-n", "kwokfleet")  # half of it is missing
    program.ok("uninstall", "--delete-fleet")
    assert plane.try_kubectl("get", "namespace/kwokfleet").returncode == 1


def test_a_cluster_is_as_it_was_after_install_and_uninstall(
    plane: ControlPlane, program: cli.Cli, files: Path, pods_run: PodsRun
) -> None:
    """A fleet in one command; again, and nothing is written; away, and so is everything."""
    with pods_run():
        before = cluster_snapshot.take_settled(plane)
        said = program.ok("install", "--timeout=60s", "--from", str(files))
        assert "deployment/kwokfleet in kwokfleet created" in said
        assert nodes(plane) == {f"lab-pool-{index}": "True" for index in range(3)}
        first = waiting.until(lambda: settled_versions(plane))
        program.ok("install", "--timeout=60s", "--from", str(files))
        waiting.until(lambda: len(plane.get("pods", "-n", "lab-jobs")["items"]) == 2)
        assert versions(plane) == first
        assert "--delete-fleet or --keep-fleet" in refused(program, 2, "uninstall")
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(plane, before)
        done = program.run("uninstall", "--delete-fleet")
        assert (done.returncode, "no installation found" in done.stderr) == (0, True)


@pytest.mark.faults
def test_other_options_are_an_upgrade(plane: ControlPlane, program: cli.Cli, files: Path, pods_run: PodsRun) -> None:
    """Only what differs changes, what is no longer asked for goes, and new files are waited for."""
    with pods_run():
        program.ok("install", "--timeout=60s", "--from", str(files))
        first = versions(plane)
        (files / "lab.yaml").write_text(FLEET.replace("replicas: 3", "replicas: 4"))
        program.ok("install", "--timeout=60s", "--from", str(files), "--replicas=2", "--viewer")
        assert len(nodes(plane)) == 4
        assert plane.get("deployment/kwokfleet", "-n", "kwokfleet")["status"]["readyReplicas"] == 2
        assert versions(plane).keys() - first.keys() == {"ClusterRole/kwokfleet-viewer"}
        said = program.ok("install", "--timeout=60s", "--from", str(files))
        assert "clusterrole/kwokfleet-viewer removed" in said
        assert versions(plane).keys() == first.keys()
        program.ok("uninstall", "--delete-fleet")


@pytest.mark.faults
def test_what_was_there_before_stays(plane: ControlPlane, program: cli.Cli, files: Path, pods_run: PodsRun) -> None:
    """A namespace, kwok's definitions, nodes, pods and Stages of others; and the fleet, if it is kept."""
    with foreign_objects.assert_unchanged(plane), pods_run():
        plane.kubectl("create", "namespace", "theirs")
        waiting.until(lambda: not plane.try_kubectl("get", "serviceaccount/default", "-n", "theirs").returncode)
        before = cluster_snapshot.take_settled(plane)
        said = program.ok("install", "--timeout=60s", "--namespace=theirs", "--from", str(files))
        assert "namespace/theirs left as it is" in said
        assert "customresourcedefinition/stages.kwok.x-k8s.io left as it is" in said
        done = program.run("uninstall", "--keep-fleet")
        assert (done.returncode, "left: 3 fake nodes" in done.stderr) == (0, True), done.stderr
        assert len(nodes(plane)) == 3
        assert not plane.get("deployments,pods", "-n", "theirs")["items"]
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(plane, before)


@pytest.mark.faults
def test_kwok_in_pods_comes_and_goes_with_the_installation(
    plane: ControlPlane, program: cli.Cli, files: Path, pods_run: PodsRun
) -> None:
    """`--shards`: as many pods drive the fleet, and nothing of them is left in the end."""
    (files / "lab.yaml").write_text(FLEET.partition("---")[0])
    with pods_run():
        before = cluster_snapshot.take_settled(plane)
        program.ok("install", "--timeout=90s", "--from", str(files), "--shards=2")
        assert nodes(plane) == {f"lab-pool-{index}": "True" for index in range(3)}
        found = plane.get("pods", "-n", "kwokfleet", "--selector", "app.kubernetes.io/component=kwok")["items"]
        assert [each["metadata"]["name"] for each in found] == ["kwokfleet-kwok-0", "kwokfleet-kwok-1"]
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(plane, before)


@pytest.mark.faults
def test_a_fleet_comes_from_a_repository_and_follows_it(
    plane: ControlPlane, program: cli.Cli, tmp_path: Path, pods_run: PodsRun
) -> None:
    """`--git-url`: what is committed is there, and what is committed later comes within its interval."""
    repository = git_repository.Repository(tmp_path / "repository")
    repository.commit(fleets__lab=FLEET, parts__slow=STAGE)
    with pods_run():
        before = cluster_snapshot.take_settled(plane)
        program.ok("install", "--timeout=60s", "--git-url", repository.url, "--git-path=fleets")
        waiting.until(lambda: list(nodes(plane).values()) == ["True"] * 3)
        repository.commit(fleets__lab=FLEET.replace("replicas: 3", "replicas: 4"))
        waiting.until(lambda: list(nodes(plane).values()) == ["True"] * 4, deadline_s=120)
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(plane, before)


@pytest.mark.faults
def test_a_kwok_that_was_put_to_rest_runs_again_after_an_uninstall(
    plane: ControlPlane, program: cli.Cli, files: Path, pods_run: PodsRun
) -> None:
    """A Deployment that the files tell to scale down gets its replicas back."""
    rival = ("deployment/kwok-controller", "--namespace=kube-system")
    plane.kubectl("create", "deployment", "kwok-controller", "--image=none", "--replicas=2", rival[1])
    policy = "takeover: {deployment: kube-system/kwok-controller, policy: scaleDown}, manage: {"
    (files / "lab.yaml").write_text(FLEET.replace("manage: {", policy))
    try:
        with pods_run():
            program.ok("install", "--timeout=60s", "--from", str(files))
            assert plane.get(*rival)["spec"]["replicas"] == 0
            program.ok("uninstall", "--delete-fleet")
            found = plane.get(*rival)
            assert found["spec"]["replicas"] == 2
            assert "kwokfleet" not in str(found["metadata"].get("annotations"))
    finally:
        plane.kubectl("delete", *rival)


@pytest.mark.faults
def test_who_stops_an_installation_is_told_what_is_there(plane: ControlPlane, program: cli.Cli, files: Path) -> None:
    """Ctrl-C while pods are waited for: exit code 130; the same command would go on, and uninstall cleans up."""
    with program.start("install", "--from", str(files)) as process:
        waiting.until(lambda: not plane.try_kubectl("get", "deployment/kwokfleet", "-n", "kwokfleet").returncode)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=30)
    assert process.returncode == 130, complained
    assert "the next install continues" in said + complained
    assert "Traceback" not in complained
    program.ok("uninstall", "--delete-fleet")
    assert plane.try_kubectl("get", "namespace/kwokfleet").returncode == 1
