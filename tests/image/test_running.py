"""The image in a cluster: non-root, with a read-only root and only its ServiceAccount's rights."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import git_repository, in_process_sync, waiting
from tests.harness.control_plane import ControlPlane
from tests.image import conftest, containers, git_server

FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: from-image}
spec:
  nodePools: [{name: pool, replicas: 5}]
  lifecycles: [{name: short, pod: {complete: 1s}}]
  waves:
    - name: jobs
      start: {after: 1s}
      count: 3
      arrivals: {rate: 10/s}
      lifecycle: short
      template:
        apiVersion: batch/v1
        kind: Job
        spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}
"""
HEALTHCHECK = "/usr/local/libexec/kwokfleet/healthcheck.py"


Pods = Callable[..., containers.Pod]


@pytest.fixture
def pods(
    image: containers.Image, cluster: ControlPlane, in_cluster: dict[str, str], credentials: dict[str, Path]
) -> Iterator[Pods]:
    """Return a function that creates a pod, in a cluster without managed objects."""

    def pod(environment: Mapping[str, str], folders: Mapping[str, Path], **more: Any) -> containers.Pod:  # noqa: ANN401  # as Pod has it
        return containers.Pod(image, {**in_cluster, **environment}, {**credentials, **folders}, **more)

    in_process_sync.delete_managed_objects(cluster)
    yield pod
    in_process_sync.delete_managed_objects(cluster)


def test_the_image_runs_as_in_the_deployment(
    image: containers.Image, cluster: ControlPlane, pods: Pods, tmp_path: Path
) -> None:
    """It syncs a fleet, runs a wave with its kwok, passes its probes and stops on SIGTERM."""
    files = tmp_path / "fleets"
    files.mkdir()
    (files / "fleet.yaml").write_text(FLEET)
    with pods({}, {"/fleets": files}).running() as pod:
        pod.wait_synced()
        waiting.until(lambda: _completed(cluster) == 3)
        waiting.until(lambda: _ready_nodes(cluster) == 5)
        assert pod.text("/readyz")  # or it would have raised
        assert image.run(HEALTHCHECK, f"{pod.url}/healthz").returncode == 0
        _check_rights(pod)
        kwok = _kwok(pod)
        assert kwok.exe().endswith("/usr/local/bin/kwok")
        assert pod.stop() == 0
        assert not kwok.is_running()
    assert not cluster.get("lease", "kwokfleet", "--namespace=kwokfleet")["spec"].get("holderIdentity")


def test_files_come_from_a_private_git_repository(cluster: ControlPlane, pods: Pods, tmp_path: Path) -> None:
    """Over https, with user name and password from a Secret, without a shell."""
    commit = git_repository.Repository(tmp_path / "served" / "fleets").commit(fleets__lab=FLEET)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text(git_server.NAME)
    (secret / "password").write_text(git_server.PASSWORD)
    trusted = {"GIT_SSL_CAINFO": f"{conftest.CREDENTIALS}/ca.crt"}
    pki = cluster.where.pki
    with git_server.serving(tmp_path / "served", pki("admin.crt"), pki("admin.key")) as address:
        flags = {"--git-url": f"{address}/fleets/.git"}
        with pods(trusted, {"/etc/git-secret": secret}, overlay="git", flags=flags).running() as pod:
            waiting.until(lambda: _ready_nodes(cluster) == 5)
            assert pod.get("/api/v1/source")["revision"] == f"main@{commit[:7]}"


def _check_rights(pod: containers.Daemon) -> None:
    """Check that the process has no capabilities and only the required writable folders."""
    facts, pid = pod.facts(), pod.inner.pid
    assert set(facts["Uid"].split()) == set(facts["Gid"].split()) == {"65532"}
    assert facts["NSpid"].split()[-1] == "1"
    assert facts["NoNewPrivs"] == "1"
    assert {int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert all(containers.is_read_only(pid, path) for path in ("/", "/opt/kwokfleet", "/usr/local/bin", "/fleets"))
    assert not any(containers.is_read_only(pid, path) for path in ("/tmp", "/var/lib/kwokfleet"))  # noqa: S108  # of the image


def _kwok(pod: containers.Daemon) -> psutil.Process:
    [kwok] = [child for child in pod.inner.children() if child.name() == "kwok"]
    return kwok


def _completed(cluster: ControlPlane) -> int:
    jobs = cluster.get("jobs", "--all-namespaces", "--selector=kwokfleet.dev/fleet=from-image")["items"]
    return sum(job["status"].get("succeeded", 0) for job in jobs)


def _ready_nodes(cluster: ControlPlane) -> int:
    nodes = cluster.get("nodes", "--selector=kwokfleet.dev/fleet=from-image")["items"]
    held = {lease["metadata"]["name"] for lease in cluster.get("leases", "--namespace=kube-node-lease")["items"]}
    conditions = [
        condition for node in nodes for condition in node["status"]["conditions"] if node["metadata"]["name"] in held
    ]
    return sum((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)
