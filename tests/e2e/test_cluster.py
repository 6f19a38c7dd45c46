"""`kwokfleet cluster`: up, down, and recovery from crashes."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import psutil
import pytest

from kwokfleet.embedded import processes, state, versions
from tests.harness import cli, waiting
from tests.harness.cli import Cli

HEALTHY = dict.fromkeys(versions.COMPONENTS, True)


def pids(kwokfleet: Cli, name: str = "default") -> dict[str, int]:
    """Return the process id of each component."""
    return {process.component: process.pid for process in processes.find_processes(kwokfleet.where(name))}


def health(kwokfleet: Cli, name: str = "default") -> dict[str, bool]:
    """Return the health of each component; the exit code must agree."""
    done = kwokfleet.run("cluster", "status", "--name", name, "--json")
    (status,) = json.loads(done.stdout)
    components = {component["name"]: component["healthy"] for component in status["components"]}
    assert done.returncode == (0 if all(components.values()) else 1)
    return components


def kubectl(kwokfleet: Cli, *arguments: str) -> str:
    """Run the cluster's kubectl."""
    return kwokfleet.ok("cluster", "kubectl", *arguments)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Return one cluster for all tests that do not change it permanently."""
    yield from cli.isolated(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def running_cluster(shared_cluster: Cli) -> Cli:
    """Return the shared cluster with all components running."""
    shared_cluster.ok("cluster", "up")
    return shared_cluster


@pytest.fixture
def foreign_process() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that no command may stop."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def test_up_is_idempotent_and_down_leaves_nothing(kwokfleet: Cli) -> None:
    """A second `up` changes nothing; after `down` no process and no file is left."""
    kwokfleet.ok("cluster", "up")
    assert health(kwokfleet) == HEALTHY
    before = pids(kwokfleet)
    assert "default" in kubectl(kwokfleet, "get", "namespaces")

    kwokfleet.ok("cluster", "up")
    assert pids(kwokfleet) == before

    kwokfleet.ok("cluster", "down")
    assert pids(kwokfleet) == {}
    assert not kwokfleet.data_dir.exists()
    home = Path(kwokfleet.environment["HOME"])
    assert list(home.iterdir()) == []

    again = kwokfleet.run("cluster", "down")
    assert (again.returncode, again.stderr) == (0, "cluster default not found\n")


def test_kubeconfig_works_with_any_client(running_cluster: Cli) -> None:
    """Printed or by path, for the pinned kubectl and other clients."""
    path = running_cluster.ok("cluster", "kubeconfig", "--path").strip()
    assert running_cluster.ok("cluster", "kubeconfig") == Path(path).read_text()
    with kubernetes.config.new_client_from_config(path) as client:  # type: ignore[no-untyped-call]  # it has no types
        assert kubernetes.client.VersionApi(client).get_code().git_version == versions.KUBERNETES


def test_two_clusters_are_independent(kwokfleet: Cli) -> None:
    """Started at the same time: separate ports and contents, and one `down` each."""
    with (
        kwokfleet.start("cluster", "up", "--name", "one") as one,
        kwokfleet.start("cluster", "up", "--name", "two") as two,
    ):
        messages = [process.communicate(timeout=120)[1] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), messages
    kubectl(kwokfleet, "--name", "one", "create", "namespace", "only-here")
    assert "only-here" not in kubectl(kwokfleet, "--name", "two", "get", "namespaces")
    assert kwokfleet.run("cluster", "status").returncode == 0

    kwokfleet.ok("cluster", "down", "--name", "one")
    assert health(kwokfleet, "two") == HEALTHY


@pytest.mark.parametrize("victim", versions.COMPONENTS)
def test_up_restarts_a_killed_component(running_cluster: Cli, victim: str) -> None:
    """`status` reports it, `up` restarts only this component, and no data is lost."""
    kubectl(running_cluster, "create", "configmap", f"kept-{victim}", "--from-literal=a=b")
    before = pids(running_cluster)
    process = psutil.Process(before[victim])
    process.kill()
    process.wait(10)

    assert health(running_cluster)[victim] is False
    running_cluster.ok("cluster", "up")

    assert health(running_cluster) == HEALTHY
    assert running_cluster.ok("cluster", "logs", victim, "--previous")
    assert "b" in kubectl(running_cluster, "get", "configmap", f"kept-{victim}", "-o", "jsonpath={.data.a}")
    after = pids(running_cluster)
    assert after[victim] != before[victim]


def test_up_after_a_power_cut(kwokfleet: Cli, foreign_process: subprocess.Popen[bytes]) -> None:
    """All components are dead and a pid file has the pid of a foreign process: it survives, and the data is kept."""
    kwokfleet.ok("cluster", "up")
    kubectl(kwokfleet, "create", "namespace", "kept")
    processes.stop(kwokfleet.where(), processes.find_processes(kwokfleet.where()))
    for component in versions.COMPONENTS:
        kwokfleet.where().pid_file(component).write_text(str(foreign_process.pid))

    assert kwokfleet.run("cluster", "status").returncode == 1
    kwokfleet.ok("cluster", "up")
    assert "kept" in kubectl(kwokfleet, "get", "namespaces")

    for component in versions.COMPONENTS:
        kwokfleet.where().pid_file(component).write_text(str(foreign_process.pid))
    kwokfleet.ok("cluster", "down")
    assert foreign_process.poll() is None


@pytest.mark.parametrize("after_s", [0.4, 0.9, 1.8, 3.0])
def test_up_after_up_was_killed(kwokfleet: Cli, after_s: float) -> None:
    """At any time: the next `up` works, and `down` finds every process."""
    with kwokfleet.start("cluster", "up") as process:
        time.sleep(after_s)
        process.kill()
        process.communicate()
    kwokfleet.ok("cluster", "up")
    assert health(kwokfleet) == HEALTHY
    kwokfleet.ok("cluster", "down")
    assert pids(kwokfleet) == {}
    assert not kwokfleet.data_dir.exists()


def test_interrupting_up_leaves_nothing(kwokfleet: Cli) -> None:
    """Ctrl-C during the start: no process, no file, exit code 130."""
    with kwokfleet.start("cluster", "up") as process:
        waiting.until(lambda: pids(kwokfleet))
        assert "default: starting" in kwokfleet.run("cluster", "status").stdout
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert pids(kwokfleet) == {}
    assert not kwokfleet.data_dir.exists()


def test_interrupting_up_does_not_harm_a_running_cluster(running_cluster: Cli) -> None:
    """Only components that this `up` started are stopped."""
    before = pids(running_cluster)
    stuck = psutil.Process(before["kube-controller-manager"])
    stuck.suspend()
    psutil.Process(before.pop("kube-scheduler")).kill()
    with running_cluster.start("cluster", "up") as process:
        waiting.until(lambda: "kube-scheduler" in pids(running_cluster))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    stuck.resume()
    assert process.returncode == 130
    assert pids(running_cluster) == before
    running_cluster.ok("cluster", "up")
    assert pids(running_cluster).items() >= before.items()


def test_a_second_ctrl_c_does_not_stop_the_clean_up(kwokfleet: Cli) -> None:
    """Nor does SIGHUP."""
    with kwokfleet.start("cluster", "up") as process:
        waiting.until(lambda: pids(kwokfleet))
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(0.05)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert pids(kwokfleet) == {}
    assert not kwokfleet.data_dir.exists()


def test_up_keeps_a_cluster_with_an_unreadable_configuration(running_cluster: Cli) -> None:
    """Kwokctl would treat it as missing."""
    kubectl(running_cluster, "create", "namespace", "kept")
    good = running_cluster.where().saved_config.read_text()
    running_cluster.where().saved_config.write_text("components: [")
    psutil.Process(pids(running_cluster)["kube-scheduler"]).kill()
    failed = running_cluster.run("cluster", "up")
    assert failed.returncode == 6
    running_cluster.where().saved_config.write_text(good)
    running_cluster.ok("cluster", "up")
    assert "kept" in kubectl(running_cluster, "get", "namespaces")


def test_logs_show_every_component_or_one(running_cluster: Cli) -> None:
    """All with a name prefix, one without; a wrong name is an error with the valid ones."""
    every = running_cluster.ok("cluster", "logs", "--tail", "2").splitlines()
    assert {line.split("|")[0].strip() for line in every} == set(versions.COMPONENTS)
    assert len(every) == 8
    assert len(running_cluster.ok("cluster", "logs", "etcd", "--tail", "3").splitlines()) == 3
    wrong = running_cluster.run("cluster", "logs", "kubelet")
    assert (wrong.returncode, "kube-scheduler" in wrong.stderr) == (2, True)


def test_scheduler_configuration_and_flags_are_used(kwokfleet: Cli, tmp_path: Path) -> None:
    """A second scheduler binds pods, a component gets an extra flag, and a later `up` keeps both."""
    config = tmp_path / "scheduler.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: my-scheduler}]\n"
    )
    options = ("--kube-scheduler-config", str(config), "--extra-args", "kube-apiserver=max-requests-inflight=1234")
    kwokfleet.ok("cluster", "up", *options)
    (apiserver,) = (
        process for process in processes.find_processes(kwokfleet.where()) if process.component == "kube-apiserver"
    )
    assert psutil.Process(apiserver.pid).cmdline()[-1] == "--max-requests-inflight=1234"
    assert _bound_by(kwokfleet, "my-scheduler") == "n"

    kwokfleet.ok("cluster", "up", *options)
    kwokfleet.ok("cluster", "up")
    config.write_text(config.read_text().replace("my-scheduler", "other"))
    changed = kwokfleet.run("cluster", "up", *options)
    assert (changed.returncode, "scheduler.yaml has changed since the creation" in changed.stderr) == (5, True)


def test_a_custom_scheduler_is_restarted_after_a_rebuild(kwokfleet: Cli, tmp_path: Path) -> None:
    """Also behind a wrapper: `restart` runs the new build, and `down` ends it."""
    own = tmp_path / "own"
    own.mkdir()
    listed = {name: path for name, _source, path in map(str.split, kwokfleet.ok("cluster", "binaries").splitlines())}
    original = listed.pop("kube-scheduler")
    for name, path in listed.items():  # wherever they come from, nobody has to build them for this
        (own / name).symlink_to(path)
    scheduler = own / "kube-scheduler"
    scheduler.write_text(f'#!/bin/sh\nexec {original} --v=1 "$@"\n')
    scheduler.chmod(0o755)
    kwokfleet.ok("cluster", "up", "--bin-dir", str(own))
    before = pids(kwokfleet)

    scheduler.write_text(scheduler.read_text().replace("--v=1", "--v=2"))
    kwokfleet.ok("cluster", "restart", "kube-scheduler", KWOKFLEET_BIN_DIR="")  # the path is stored with the cluster
    after = pids(kwokfleet)
    assert "--v=2" in psutil.Process(after["kube-scheduler"]).cmdline()
    assert {name for name in before if before[name] != after[name]} == {"kube-scheduler"}

    kwokfleet.ok("cluster", "down")
    waiting.until(lambda: not psutil.pid_exists(after["kube-scheduler"]))


def _bound_by(kwokfleet: Cli, scheduler: str) -> str:
    """Create a Ready node and a pod for *scheduler*; return the node it is bound to."""
    resources = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    ready = [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": resources, "conditions": ready}}
    spec = {"schedulerName": scheduler, "containers": [{"name": "c", "image": "none"}]}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    file = kwokfleet.data_dir.parent / "objects.json"
    items = [{"apiVersion": "v1", **manifest} for manifest in (node, pod)]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    kubectl(kwokfleet, "create", "--filename", str(file))
    return waiting.until(lambda: kubectl(kwokfleet, "get", "pod", "p", "--output", "jsonpath={.spec.nodeName}"))


def test_a_component_that_cannot_start_is_an_error_with_its_log(kwokfleet: Cli) -> None:
    """An unknown flag: the error names the component, and nothing is left."""
    failed = kwokfleet.run("cluster", "up", "--extra-args", "kube-scheduler=no-such-flag=1")
    assert failed.returncode == 2
    assert "kube-scheduler ended unexpectedly: a flag or a configuration file is invalid" in failed.stderr
    assert "unknown flag: --no-such-flag" in failed.stderr
    assert not kwokfleet.data_dir.exists()
    assert pids(kwokfleet) == {}


def test_foreign_and_damaged_folders_are_errors(kwokfleet: Cli) -> None:
    """A foreign folder is never changed; `down` deletes a damaged cluster."""
    foreign = kwokfleet.where("foreign").root
    foreign.mkdir(parents=True)
    (foreign / "precious").write_text("mine")
    for command in ("up", "down"):
        refused = kwokfleet.run("cluster", command, "--name", "foreign")
        assert refused.returncode == 5
        assert f"{foreign} was not created by kwokfleet" in refused.stderr
    assert (foreign / "precious").read_text() == "mine"

    kwokfleet.ok("cluster", "up")
    kwokfleet.where().saved_config.unlink()
    damaged = kwokfleet.run("cluster", "up")
    assert damaged.returncode == 5
    assert "missing or empty: kwok.yaml" in damaged.stderr
    assert "kwokfleet cluster down --name default" in damaged.stderr
    kwokfleet.ok("cluster", "down")
    assert not kwokfleet.where().root.exists()
    assert (foreign / "precious").read_text() == "mine"


def test_a_port_in_use_is_an_error_with_its_owner(kwokfleet: Cli) -> None:
    """For a new and for a stopped cluster; nothing is left half-started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = kwokfleet.run("cluster", "up", "--port", str(port))
    assert refused.returncode == 6
    assert f"port {port}, needed by kube-apiserver, is in use by" in refused.stderr
    assert not kwokfleet.data_dir.exists()

    kwokfleet.ok("cluster", "up", "--port", str(port))
    assert state.read_record(kwokfleet.where()).ports.kube_apiserver == port
    processes.stop(kwokfleet.where(), processes.find_processes(kwokfleet.where()))
    with socket.create_server(("127.0.0.1", port)):
        refused = kwokfleet.run("cluster", "up", "--port", str(port))
    assert refused.returncode == 6
    assert pids(kwokfleet) == {}
    kwokfleet.ok("cluster", "up", "--port", str(port))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 8 MB; needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=False, timeout=30)
    if done.returncode != 0:
        pytest.skip("this user may not mount a small disk to fill")
    yield disk
    subprocess.run(["/bin/umount", str(disk)], check=True, timeout=30)


def test_a_full_disk_is_an_error_and_nothing_is_left(kwokfleet: Cli, small_disk: Path) -> None:
    """With the required and free space, the path, and the variable that changes it."""
    failed = kwokfleet.run("cluster", "up", KWOKFLEET_DATA_DIR=str(small_disk / "data"))
    assert failed.returncode == 6
    assert "a cluster needs 256 MB" in failed.stderr
    assert "KWOKFLEET_DATA_DIR" in failed.stderr
    assert list(small_disk.iterdir()) == []


def test_a_component_that_dies_of_a_full_disk_is_explained(kwokfleet: Cli, small_disk: Path) -> None:
    """The cause is extracted from a long stack trace."""
    full = f"etcd=wal-dir={small_disk}/wal"
    failed = kwokfleet.run("cluster", "up", "--extra-args", full)
    assert failed.returncode == 6
    assert "etcd ended unexpectedly: the disk is full" in failed.stderr
    assert not kwokfleet.data_dir.exists()


def test_a_slow_start_is_tolerated(kwokfleet: Cli) -> None:
    """The API server needs half a minute and the controller manager exits; `up` starts it again."""
    with kwokfleet.start("cluster", "up") as process:
        apiserver = _started(kwokfleet, "kube-apiserver")
        apiserver.suspend()
        _started(kwokfleet, "kube-controller-manager").wait(60)
        apiserver.resume()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert health(kwokfleet) == HEALTHY


def _started(kwokfleet: Cli, component: str) -> psutil.Process:
    """Wait until kwokctl has written the pid file of *component*."""
    file = kwokfleet.where().pid_file(component)
    return psutil.Process(int(waiting.until(lambda: file.exists() and file.read_text())))
