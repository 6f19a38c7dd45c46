"""`kwokfleet install` and `uninstall` on a separate cluster with running pods."""

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
def install_cluster() -> Iterator[ControlPlane]:
    """Run a separate control plane: the tests compare all its objects."""
    yield from control_plane.running("install", foreign_objects.QUIET)


@pytest.fixture
def program(kwokfleet: cli.Cli, install_cluster: ControlPlane) -> Iterator[cli.Cli]:
    """Return the CLI; uninstall at the end what a failed test left."""
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(install_cluster.kubeconfig)})
    yield program
    for namespace in ("kwokfleet", "theirs"):  # no kubelet runs that could end them
        install_cluster.try_kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--namespace", namespace)
    program.run("uninstall", "--delete-fleet", "--timeout=20s")
    install_cluster.kubectl("delete", "namespace", "theirs", "occupied", "--ignore-not-found")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write fleet files, one with a reference to a file in another folder."""
    folder = tmp_path / "fleets"
    for name, text in {"fleets/lab.yaml": FLEET, "parts/slow.yaml": STAGE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return folder


@pytest.fixture
def run_kubelet(install_cluster: ControlPlane, tmp_path: Path) -> PodsRun:
    """Return a function that runs a kubelet for the namespaces of these tests."""
    return lambda: kubelet.running(install_cluster, tmp_path / "kubelet", "kwokfleet", "theirs")


def versions(install_cluster: ControlPlane) -> dict[str, str]:
    """Return the resourceVersion of each installed object."""
    kinds = ",".join(f"{kind.plural}.{group}" if (group := _group(kind.api_version)) else kind.plural for kind in KINDS)
    items = install_cluster.get(kinds, "--all-namespaces", "--selector", ownership.INSTALL_LABEL)["items"]
    return {
        f"{manifest['kind']}/{manifest['metadata']['name']}": manifest["metadata"]["resourceVersion"]
        for manifest in items
    }


def settled_versions(install_cluster: ControlPlane) -> dict[str, str]:
    """Return the versions when controllers no longer change the objects, else an empty dictionary."""
    before = versions(install_cluster)
    time.sleep(cluster_snapshot.QUIET_S)
    return before if versions(install_cluster) == before else {}


KINDS = [kind for kind in ownership.KINDS if not kind.api_version.startswith("monitoring.")]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def ready_conditions(install_cluster: ControlPlane) -> dict[str, str]:
    """Return the Ready condition of each fake node."""
    items = install_cluster.get("nodes", "--selector", "kwokfleet.dev/fleet=lab")["items"]
    return {
        node["metadata"]["name"]: next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")
        for node in items
    }


def run_rejected(program: cli.Cli, code: int, *arguments: str) -> str:
    """Run a command that must exit with a code; return its standard error."""
    done = program.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_errors_in_files_are_reported_before_the_cluster_is_contacted(program: cli.Cli, files: Path) -> None:
    """Both errors are reported, the files first."""
    (files / "lab.yaml").write_text(FLEET.replace("replicas: 3", "replicas: many"))
    done = program.run("install", "--from", str(files), KUBECONFIG=str(files / "none"))
    assert done.returncode == 2, done.stderr
    assert "lab.yaml:6" in done.stderr
    (files / "lab.yaml").write_text(FLEET)
    done = program.run("install", "--from", str(files), KUBECONFIG=str(files / "none"))
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


def test_a_foreign_deployment_is_not_changed(install_cluster: ControlPlane, program: cli.Cli, files: Path) -> None:
    """Not even with --force, and nothing else is written."""
    labels = {"team": "others"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    install_cluster.kubectl("create", "namespace", "occupied")
    metadata = {"name": "kwokfleet", "namespace": "occupied"}
    install_cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    waiting.until(
        lambda: (
            install_cluster.get("deployment/kwokfleet", "-n", "occupied").get("status", {}).get("observedGeneration")
        )
    )
    before = cluster_snapshot.take_settled(install_cluster)
    output = run_rejected(program, 5, "install", "-n", "occupied", "--from", str(files), "--force")
    assert "deployment/kwokfleet in occupied already exists and does not belong to kwokfleet" in output
    assert not cluster_snapshot.differences(before, cluster_snapshot.take(install_cluster))


def test_missing_rights_are_an_error_and_nothing_is_changed(
    install_cluster: ControlPlane, program: cli.Cli, tmp_path: Path
) -> None:
    """A server dry run changes nothing either."""
    before = cluster_snapshot.take_settled(install_cluster)
    output = program.ok("install", "--dry-run=server")
    assert "deployment/kwokfleet in kwokfleet created (server dry run)" in output
    kubeconfig = install_cluster.kubeconfig_of("default", tmp_path / "nobody.json")
    output = run_rejected(program, 4, "install", "--kubeconfig", str(kubeconfig))
    assert "forbidden" in output.lower()
    assert not cluster_snapshot.differences(before, cluster_snapshot.take(install_cluster))


@pytest.mark.faults
def test_conflicts_of_an_upgrade_are_reported(install_cluster: ControlPlane, program: cli.Cli, files: Path) -> None:
    """An unscheduled pod, a field of another manager, missing files, another namespace."""
    output = run_rejected(program, 7, "install", "--from", str(files), "--timeout=3s")
    assert "is not scheduled" in output
    install_cluster.kubectl("scale", "deployment/kwokfleet", "--replicas=3", "-n", "kwokfleet")
    again = ("install", "--from", str(files), "--no-wait")
    output = run_rejected(program, 4, *again)
    assert ".spec.replicas" in output
    assert "--force" in output
    assert install_cluster.get("deployment/kwokfleet", "-n", "kwokfleet")["spec"]["replicas"] == 3
    program.ok(*again, "--force")
    assert install_cluster.get("deployment/kwokfleet", "-n", "kwokfleet")["spec"]["replicas"] == 1
    assert "name them again" in run_rejected(program, 2, "install", "--no-wait")
    output = run_rejected(program, 5, *again, "--namespace=elsewhere")
    assert "already installed in namespace kwokfleet" in output
    install_cluster.kubectl("delete", "deployment,service", "kwokfleet", "-n", "kwokfleet")  # part of it is missing
    program.ok("uninstall", "--delete-fleet")
    assert install_cluster.try_kubectl("get", "namespace/kwokfleet").returncode == 1


def test_uninstall_restores_the_cluster(
    install_cluster: ControlPlane, program: cli.Cli, files: Path, run_kubelet: PodsRun
) -> None:
    """One command installs a fleet; a second install writes nothing; uninstall removes everything."""
    with run_kubelet():
        before = cluster_snapshot.take_settled(install_cluster)
        output = program.ok("install", "--timeout=60s", "--from", str(files))
        assert "deployment/kwokfleet in kwokfleet created" in output
        assert ready_conditions(install_cluster) == {f"lab-pool-{index}": "True" for index in range(3)}
        first = waiting.until(lambda: settled_versions(install_cluster))
        program.ok("install", "--timeout=60s", "--from", str(files))
        waiting.until(lambda: len(install_cluster.get("pods", "-n", "lab-jobs")["items"]) == 2)
        assert versions(install_cluster) == first
        assert "--delete-fleet or --keep-fleet" in run_rejected(program, 2, "uninstall")
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(install_cluster, before)
        done = program.run("uninstall", "--delete-fleet")
        assert (done.returncode, "no installation found" in done.stderr) == (0, True)


@pytest.mark.faults
def test_an_install_with_other_options_is_an_upgrade(
    install_cluster: ControlPlane, program: cli.Cli, files: Path, run_kubelet: PodsRun
) -> None:
    """Only differences are written, removed options delete objects, and new files are waited for."""
    with run_kubelet():
        program.ok("install", "--timeout=60s", "--from", str(files))
        first = versions(install_cluster)
        (files / "lab.yaml").write_text(FLEET.replace("replicas: 3", "replicas: 4"))
        program.ok("install", "--timeout=60s", "--from", str(files), "--replicas=2", "--viewer")
        assert len(ready_conditions(install_cluster)) == 4
        assert install_cluster.get("deployment/kwokfleet", "-n", "kwokfleet")["status"]["readyReplicas"] == 2
        assert versions(install_cluster).keys() - first.keys() == {"ClusterRole/kwokfleet-viewer"}
        output = program.ok("install", "--timeout=60s", "--from", str(files))
        assert "clusterrole/kwokfleet-viewer removed" in output
        assert versions(install_cluster).keys() == first.keys()
        program.ok("uninstall", "--delete-fleet")


@pytest.mark.faults
def test_existing_objects_are_kept(
    install_cluster: ControlPlane, program: cli.Cli, files: Path, run_kubelet: PodsRun
) -> None:
    """A namespace, kwok's CRDs, foreign nodes, pods and Stages; and the fleet, if requested."""
    with foreign_objects.assert_unchanged(install_cluster), run_kubelet():
        install_cluster.kubectl("create", "namespace", "theirs")
        waiting.until(
            lambda: not install_cluster.try_kubectl("get", "serviceaccount/default", "-n", "theirs").returncode
        )
        before = cluster_snapshot.take_settled(install_cluster)
        output = program.ok("install", "--timeout=60s", "--namespace=theirs", "--from", str(files))
        assert "namespace/theirs left as it is" in output
        assert "customresourcedefinition/stages.kwok.x-k8s.io left as it is" in output
        done = program.run("uninstall", "--keep-fleet")
        assert (done.returncode, "left: 3 fake nodes" in done.stderr) == (0, True), done.stderr
        assert len(ready_conditions(install_cluster)) == 3
        assert not install_cluster.get("deployments,pods", "-n", "theirs")["items"]
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(install_cluster, before)


@pytest.mark.faults
def test_kwok_pods_are_installed_and_uninstalled(
    install_cluster: ControlPlane, program: cli.Cli, files: Path, run_kubelet: PodsRun
) -> None:
    """`--shards` sets the number of pods."""
    (files / "lab.yaml").write_text(FLEET.partition("---")[0])
    with run_kubelet():
        before = cluster_snapshot.take_settled(install_cluster)
        program.ok("install", "--timeout=90s", "--from", str(files), "--shards=2")
        assert ready_conditions(install_cluster) == {f"lab-pool-{index}": "True" for index in range(3)}
        pods = install_cluster.get("pods", "-n", "kwokfleet", "--selector", "app.kubernetes.io/component=kwok")["items"]
        assert [pod["metadata"]["name"] for pod in pods] == ["kwokfleet-kwok-0", "kwokfleet-kwok-1"]
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(install_cluster, before)


@pytest.mark.faults
def test_a_fleet_from_a_git_repository_follows_its_commits(
    install_cluster: ControlPlane, program: cli.Cli, tmp_path: Path, run_kubelet: PodsRun
) -> None:
    """`--git-url`: a later commit is applied within its interval."""
    repository = git_repository.Repository(tmp_path / "repository")
    repository.commit(fleets__lab=FLEET, parts__slow=STAGE)
    with run_kubelet():
        before = cluster_snapshot.take_settled(install_cluster)
        program.ok("install", "--timeout=60s", "--git-url", repository.url, "--git-path=fleets")
        waiting.until(lambda: list(ready_conditions(install_cluster).values()) == ["True"] * 3)
        repository.commit(fleets__lab=FLEET.replace("replicas: 3", "replicas: 4"))
        waiting.until(lambda: list(ready_conditions(install_cluster).values()) == ["True"] * 4, deadline_s=120)
        program.ok("uninstall", "--delete-fleet")
        cluster_snapshot.wait_until_equal(install_cluster, before)


@pytest.mark.faults
def test_uninstall_restores_a_scaled_down_kwok(
    install_cluster: ControlPlane, program: cli.Cli, files: Path, run_kubelet: PodsRun
) -> None:
    """The foreign Deployment gets its replicas back."""
    rival = ("deployment/kwok-controller", "--namespace=kube-system")
    install_cluster.kubectl("create", "deployment", "kwok-controller", "--image=none", "--replicas=2", rival[1])
    policy = "takeover: {deployment: kube-system/kwok-controller, policy: scaleDown}, manage: {"
    (files / "lab.yaml").write_text(FLEET.replace("manage: {", policy))
    try:
        with run_kubelet():
            program.ok("install", "--timeout=60s", "--from", str(files))
            assert install_cluster.get(*rival)["spec"]["replicas"] == 0
            program.ok("uninstall", "--delete-fleet")
            deployment = install_cluster.get(*rival)
            assert deployment["spec"]["replicas"] == 2
            assert "kwokfleet" not in str(deployment["metadata"].get("annotations"))
    finally:
        install_cluster.kubectl("delete", *rival)


@pytest.mark.faults
def test_an_interrupted_installation_is_reported(install_cluster: ControlPlane, program: cli.Cli, files: Path) -> None:
    """Ctrl-C while it waits for pods: exit code 130; install continues, and uninstall cleans up."""
    with program.start("install", "--from", str(files)) as process:
        waiting.until(
            lambda: not install_cluster.try_kubectl("get", "deployment/kwokfleet", "-n", "kwokfleet").returncode
        )
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "the next install continues" in stdout + stderr
    assert "Traceback" not in stderr
    program.ok("uninstall", "--delete-fleet")
    assert install_cluster.try_kubectl("get", "namespace/kwokfleet").returncode == 1
