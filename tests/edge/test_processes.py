import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kwokfleet.embedded import processes, state


@pytest.fixture
def where(tmp_path: Path) -> state.Folder:
    """Make a cluster's folder, with room for pid files."""
    folder = state.folder(tmp_path, "demo")
    folder.pid_file("etcd").parent.mkdir(parents=True)
    return folder


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that has nothing to do with any cluster."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def start(program: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Run `sleep` under the name and with the command line of a component."""
    program.parent.mkdir(parents=True, exist_ok=True)
    command = [str(program), "-c", "sleep 600; true", *arguments]
    return subprocess.Popen(command, executable="/bin/sh")


def test_components_are_found_by_program_and_folder(where: state.Folder, stranger: subprocess.Popen[bytes]) -> None:
    """Only a known program that names a file in the folder counts, whatever the pid files say."""
    neighbour = state.folder(where.data_dir, "demo2")
    mine = start(where.root / "bin/etcd", f"--data-dir={where.root}/etcd")
    others = [
        start(neighbour.root / "bin/etcd", f"--data-dir={neighbour.root}/etcd"),
        start(where.root / "bin/vim", f"{where.root}/kwok.yaml"),
    ]
    where.pid_file("etcd").write_text(str(stranger.pid))
    try:
        (found,) = processes.find(where)
        assert (found.component, found.pid) == ("etcd", mine.pid)
        processes.stop(where, [found])
        assert not psutil.pid_exists(mine.pid)
        assert [each.poll() for each in (*others, stranger)] == [None, None, None]
    finally:
        for each in (mine, *others):
            each.kill()
            each.wait()


def test_a_number_that_changed_hands_is_not_killed(where: state.Folder, stranger: subprocess.Popen[bytes]) -> None:
    """Between looking and killing, a process may end and its number go to another."""
    stale = processes.Running("etcd", stranger.pid, started=1.0, memory=0)
    processes.stop(where, [stale])
    assert stranger.poll() is None


def test_pid_files_are_made_true(where: state.Folder, stranger: subprocess.Popen[bytes]) -> None:
    """Kwokctl believes these files: a stale number goes, a missing one comes."""
    where.pid_file("etcd").write_text(str(stranger.pid))
    running = [processes.Running("kube-apiserver", os.getpid(), started=1.0, memory=0)]
    processes.correct_pid_files(where, running)
    assert not where.pid_file("etcd").exists()
    assert where.pid_file("kube-apiserver").read_text() == str(os.getpid())
