"""A git repository as a source: what others may not do to us, and what is left when somebody dies."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import structlog

from kwokfleet import errors
from kwokfleet.source import files, git_repository
from tests.harness import waiting
from tests.harness.git_repository import Repository


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Name a folder that is not there yet."""
    return tmp_path / "state" / "git"


def gits(folder: Path) -> list[psutil.Process]:
    """Return the processes that work on a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GIT_DIR", "").startswith(str(folder)):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def slow_git(folder: Path, started: Path, monkeypatch: pytest.MonkeyPatch, hang: str = "sleep 600 & wait") -> None:
    """Let `git ls-remote` hang, with a child that hangs too."""
    folder.mkdir()
    program = folder / "git"
    case = f'case "$*" in *ls-remote*) touch {started}; {hang};; esac'
    program.write_text(f'#!/bin/sh\n{case}\nPATH={os.environ["PATH"]}\nexec git "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# what is in the repository


def test_links_out_of_the_checkout_are_not_followed(upstream: Repository, folder: Path) -> None:
    """Neither by reading the tree nor by referring to a file: what is beside the checkout is out of reach."""
    (upstream.root / "fleets" / "link.yaml").symlink_to("/etc/passwd")
    (upstream.root / "fleets" / "folder").symlink_to("../..")
    upstream.commit()
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        found = repository.fetch()
        top = git_repository.Checkout(found.root, found.root, found.revision)
    snapshot = files.read(found.path)
    assert [file.text for file in snapshot.files] == ["a: 1\n"]
    assert [problem.rule for problem in snapshot.problems] == ["outside", "outside"]
    for each in (found, top):
        assert files.boundary(each.path) == found.root.resolve()
    answer = files.read_reference(files.boundary(top.path), str(top.path / "a.yaml"), "../repo.git/HEAD")
    assert isinstance(answer, str)
    assert "outside" in answer


def test_no_hook_is_run(upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one of the user's own configuration."""
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[core]\n\thooksPath = {hook.parent}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    with git_repository.Repository(upstream.url, "main", "", folder) as repository:
        repository.fetch()
    assert not (tmp_path / "ran").exists()
    environment = os.environ | {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig")}
    subprocess.run(["git", "checkout", "-q", "-b", "x"], cwd=upstream.root, env=environment, check=True)  # noqa: S607
    assert (tmp_path / "ran").exists(), "the hook would have run"


def test_submodules_are_left_empty(upstream: Repository, folder: Path) -> None:
    """What they point to is somebody else's."""
    (upstream.root / ".gitmodules").write_text(f'[submodule "sub"]\n\tpath = sub\n\turl = {upstream.url}\n')
    upstream.git("add", ".gitmodules")
    upstream.git("update-index", "--add", "--cacheinfo", f"160000,{upstream.git('rev-parse', 'HEAD')},sub")
    upstream.git("commit", "--quiet", "--message=sub")
    with git_repository.Repository(upstream.url, "main", "", folder) as repository:
        found = repository.fetch()
    assert list((found.root / "sub").iterdir()) == []


# whose folder it is


def test_a_folder_with_other_files_is_not_touched(upstream: Repository, folder: Path) -> None:
    """Somebody may have named it by mistake."""
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    with git_repository.Repository(upstream.url, "main", "", folder) as repository, pytest.raises(errors.NotOursError):
        repository.fetch()
    assert [path.name for path in folder.iterdir()] == ["precious"]


@pytest.mark.parametrize("changed", ["url", "ref"])
def test_another_source_begins_anew(upstream: Repository, folder: Path, tmp_path: Path, changed: str) -> None:
    """The last checkout of one is none of the other's."""
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        repository.fetch()
    other = upstream
    if changed == "url":
        other = Repository(tmp_path / "other")
        other.commit(fleets__a="a: other\n")
    ref = "HEAD" if changed == "ref" else "main"
    with git_repository.Repository(other.url, ref, "fleets", folder) as repository:
        assert repository.current() is None
        repository.fetch()
        assert repository.current() is not None


def test_who_is_interrupted_while_clearing_finds_the_folder_still_its_own(
    upstream: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever that was."""
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        repository.fetch()
    real, allowed = git_repository._remove, 0  # noqa: SLF001 - to die in the middle

    def remove(path: Path) -> None:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise OSError(5, "Input/output error")
        real(path)

    monkeypatch.setattr(git_repository, "_remove", remove)
    for allowed in range(2):  # noqa: B007 - read by the stand-in
        with (
            git_repository.Repository(upstream.url, "HEAD", "fleets", folder) as repository,
            pytest.raises(errors.HostError),
        ):
            repository.fetch()
    allowed = 100
    with git_repository.Repository(upstream.url, "HEAD", "fleets", folder) as repository:
        assert (repository.fetch().path / "a.yaml").read_text() == "a: 1\n"


def test_a_password_that_changes_is_no_other_source(folder: Path, upstream: Repository) -> None:
    """And nothing of it is on the disk."""
    with git_repository.Repository(f"file://me:hunter2@{upstream.root}", "main", "", folder) as repository:
        assert repository.current() is None
    mark = (folder / "source").read_text()
    with git_repository.Repository(f"file://me:hunter3@{upstream.root}", "main", "", folder) as repository:
        assert repository.current() is None
    assert (folder / "source").read_text() == mark
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_do_not_share_a_folder(upstream: Repository, folder: Path) -> None:
    """The second is told, and may have it when the first is done."""
    with git_repository.Repository(upstream.url, "main", "", folder) as first:
        first.fetch()
        with (
            git_repository.Repository(upstream.url, "main", "", folder) as second,
            pytest.raises(errors.HostError, match="another kwokfleet"),
        ):
            second.fetch()
    with git_repository.Repository(upstream.url, "main", "", folder) as second:
        second.fetch()


# ends


def test_a_git_that_hangs_is_ended_with_its_children(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the deadline; the next one may succeed."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch)
    monkeypatch.setattr(git_repository, "LS_REMOTE_TIMEOUT_S", 1.0)
    with git_repository.Repository(upstream.url, "main", "", folder) as repository:
        with pytest.raises(errors.DeadlineError, match="git ls-remote"):
            repository.fetch()
        assert (tmp_path / "started").exists()
        waiting.until(lambda: not gits(folder), deadline_s=20)
        (tmp_path / "bin" / "git").unlink()
        monkeypatch.setattr(git_repository, "LS_REMOTE_TIMEOUT_S", 30.0)
        repository.fetch()


def test_closing_ends_a_fetch_under_way(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its processes, and it does not begin another."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch)
    monkeypatch.setattr(git_repository, "LS_REMOTE_TIMEOUT_S", 300.0)
    repository = git_repository.Repository(upstream.url, "main", "", folder)
    failed: list[errors.KwokfleetError] = []

    def fetch() -> None:
        try:
            repository.fetch()
        except errors.KwokfleetError as error:
            failed.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    waiting.until((tmp_path / "started").exists)
    repository.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "stopped" in str(failed[0])
    waiting.until(lambda: not gits(folder), deadline_s=20)
    with pytest.raises(errors.HostError, match="stopped"):
        repository.fetch()
    repository.close()


def test_what_a_killed_git_left_is_no_hindrance(upstream: Repository, folder: Path) -> None:
    """Locks, halves of packs, halves of checkouts, links that were not swapped."""
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        repository.fetch()
    commit = upstream.commit(fleets__a="a: 2\n")
    bare = folder / "repo.git"
    for name in ("shallow.lock", "HEAD.lock", "packed-refs.lock", "refs/kwokfleet/wanted.lock", "objects/tmp_pack_x"):
        path = bare / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    notes = {"locked": "initializing\n", "gitdir": f"{folder}/{commit}/.git\n", "HEAD": f"{commit}\n",
             "commondir": "../..\n"}  # fmt: skip
    (bare / "worktrees" / commit).mkdir()
    for name, text in notes.items():
        (bare / "worktrees" / commit / name).write_text(text)
    (folder / commit / "fleets").mkdir(parents=True)
    (folder / commit / "fleets" / "half.yaml").write_text("half")
    (folder / ".current.part").symlink_to(commit)
    with (
        structlog.testing.capture_logs() as logged,
        git_repository.Repository(upstream.url, "main", "fleets", folder) as repository,
    ):
        found = repository.fetch()
    assert not logged, "it need not begin anew for that"
    assert [path.name for path in found.path.iterdir()] == ["a.yaml"]
    assert not list(bare.rglob("*.lock"))
    assert not list(bare.rglob("tmp_*"))
    assert not (folder / ".current.part").is_symlink()


PROGRAM = (
    "import sys, pathlib; from kwokfleet.source import git_repository\n"
    "repository = git_repository.Repository(sys.argv[1], 'main', 'fleets', pathlib.Path(sys.argv[2]))\n"
    "print('begun', flush=True); repository.fetch(); print('done', flush=True); sys.stdin.read()\n"
)


def fetching(upstream: Repository, folder: Path) -> "subprocess.Popen[bytes]":
    """Fetch in a process of its own, which has begun."""
    command = [sys.executable, "-c", PROGRAM, upstream.url, str(folder)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties processes on Linux only")
def test_no_git_outlives_who_started_it(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on writing where the next one begins."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch, "exec sleep 600")
    with fetching(upstream, folder) as child:
        waiting.until((tmp_path / "started").exists)
        child.send_signal(signal.SIGKILL)
    try:
        waiting.until(lambda: not gits(folder), deadline_s=20)
    finally:
        for each in gits(folder):
            each.kill()


def test_kill_9_at_any_moment_leaves_nothing_that_the_next_cannot_mend(upstream: Repository, folder: Path) -> None:
    """No git outlives its parent, `current` is whole at all times, and in the end the newest commit is there."""
    for number in range(8):
        upstream.commit(fleets__a=f"a: {number}\n", **{f"fleets__b{each}": "b: 1\n" for each in range(50)})
        with fetching(upstream, folder) as child:
            time.sleep(0.06 * number)
            child.send_signal(signal.SIGKILL)
        waiting.until(lambda: not gits(folder), deadline_s=20)
        if (folder / "current").is_symlink():
            assert len(list((folder / "current" / "fleets").iterdir())) == 51
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        found = repository.fetch()
    assert (found.path / "a.yaml").read_text() == "a: 7\n"
    assert len(list(found.path.iterdir())) == 51


FIRST_PROCESS = """
import ctypes, pathlib, sys
import psutil
from kwokfleet import errors
from kwokfleet.source import git_repository

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whom nobody waits for becomes our child
git_repository.LS_REMOTE_TIMEOUT_S = 1.0
repository = git_repository.Repository(sys.argv[1], "main", "", pathlib.Path(sys.argv[2]))
try:
    repository.fetch()
except errors.DeadlineError:
    print(*(child.name() for child in psutil.Process().children()), sep=",")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux")
def test_as_the_first_process_of_a_container_it_leaves_no_dead_ones(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a hanging git has started would fill the process table, one more for each interval."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch)
    command = [sys.executable, "-c", FIRST_PROCESS, upstream.url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (tmp_path / "started").exists()
    assert done.stdout == "\n"
