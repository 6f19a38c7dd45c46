import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwokfleet.embedded import processes, state
from tests.harness import waiting


@pytest.fixture
def where(tmp_path: Path) -> state.ClusterFolder:
    """Create a cluster folder with a folder for pid files."""
    folder = state.cluster_folder(tmp_path, "demo")
    folder.pid_file("etcd").parent.mkdir(parents=True)
    return folder


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that belongs to no cluster."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def start(program: Path) -> subprocess.Popen[bytes]:
    """Run `sleep` under the name of a component, as kwokctl starts them: by a link in the cluster's folder."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.symlink_to("/bin/sleep")
    return subprocess.Popen([str(program), "600"])


def test_components_are_found_by_program_and_folder(
    where: state.ClusterFolder, stranger: subprocess.Popen[bytes]
) -> None:
    """Only a process of the folder's link is a component; pid files do not matter."""
    neighbour = state.cluster_folder(where.data_dir, "demo2")
    nested = state.cluster_folder(Path(f"{where.data_dir}/mnt{where.data_dir}"), "demo")
    etcd = start(where.program("etcd"))
    others = [
        start(neighbour.program("etcd")),
        start(nested.program("etcd")),  # its path contains our path
        start(where.program("vim")),
    ]
    where.pid_file("etcd").write_text(str(stranger.pid))
    try:
        (component,) = processes.find_processes(where)
        assert (component.component, component.pid) == ("etcd", etcd.pid)
        processes.stop(where, [component])
        assert etcd.wait(10) == -signal.SIGKILL
        assert [process.poll() for process in (*others, stranger)] == [None] * 4
    finally:
        for process in (etcd, *others):
            process.kill()
            process.wait()


def test_a_reused_pid_is_not_killed(where: state.ClusterFolder, stranger: subprocess.Popen[bytes]) -> None:
    """The pid may be reused between the search and the kill."""
    stale = processes.RunningProcess("etcd", stranger.pid, started=1.0, memory=0)
    processes.stop(where, [stale])
    assert stranger.poll() is None


def test_pid_files_are_corrected(where: state.ClusterFolder, stranger: subprocess.Popen[bytes]) -> None:
    """Kwokctl trusts them: stale ones are deleted, missing ones written."""
    where.pid_file("etcd").write_text(str(stranger.pid))
    running = [processes.RunningProcess("kube-apiserver", os.getpid(), started=1.0, memory=0)]
    processes.correct_pid_files(where, running)
    assert not where.pid_file("etcd").exists()
    assert where.pid_file("kube-apiserver").read_text() == str(os.getpid())


def test_components_started_during_the_stop_are_stopped(where: state.ClusterFolder) -> None:
    """A kwokctl of a killed `up` continues to start components."""
    (where.root / "bin").mkdir()
    (where.root / "bin/etcd").symlink_to("/bin/sleep")
    script = f"for i in 1 2 3 4 5 6 7 8 9 10; do {where.root}/bin/etcd 600 & done; wait"
    kwokctl = [f"{where.root}/bin/kwokctl", "-c", script, f"{where.root}/kwokctl.yaml"]
    with subprocess.Popen(kwokctl, executable="/bin/sh"):
        waiting.until(lambda: processes.find_processes(where))
        assert processes.stop_all(where)
    assert processes.find_processes(where) == ()
    assert not processes.stop_all(where)
