"""Git repository as a source: untrusted contents, locks, and killed processes."""

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
    """Return the path of a folder that does not exist."""
    return tmp_path / "state" / "git"


def git_processes(folder: Path) -> list[psutil.Process]:
    """Return the git processes that use a folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GIT_DIR", "").startswith(str(folder)):
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return processes


def slow_git(folder: Path, started: Path, monkeypatch: pytest.MonkeyPatch, hang: str = "sleep 600 & wait") -> None:
    """Make `git ls-remote` hang, with a child process that hangs too."""
    folder.mkdir()
    program = folder / "git"
    case = f'case "$*" in *ls-remote*) touch {started}; {hang};; esac'
    program.write_text(f'#!/bin/sh\n{case}\nPATH={os.environ["PATH"]}\nexec git "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# repository contents


def test_links_out_of_the_checkout_are_not_followed(upstream: Repository, folder: Path) -> None:
    """Neither in the tree nor in a reference to a file."""
    (upstream.root / "fleets" / "link.yaml").symlink_to("/etc/passwd")
    (upstream.root / "fleets" / "folder").symlink_to("../..")
    upstream.commit()
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        checkout = repository.fetch()
        top = git_repository.Checkout(checkout.root, checkout.root, checkout.revision)
    snapshot = files.read(checkout.path)
    assert [file.text for file in snapshot.files] == ["a: 1\n"]
    assert [problem.rule for problem in snapshot.problems] == ["outside", "outside"]
    for source in (checkout, top):
        assert files.boundary(source.path) == checkout.root.resolve()
    message = files.read_reference(files.boundary(top.path), str(top.path / "a.yaml"), "../repo.git/HEAD")
    assert isinstance(message, str)
    assert "outside" in message


def test_no_hook_is_run(upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even from the user's configuration."""
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
    """Their repositories are not fetched."""
    (upstream.root / ".gitmodules").write_text(f'[submodule "sub"]\n\tpath = sub\n\turl = {upstream.url}\n')
    upstream.git("add", ".gitmodules")
    upstream.git("update-index", "--add", "--cacheinfo", f"160000,{upstream.git('rev-parse', 'HEAD')},sub")
    upstream.git("commit", "--quiet", "--message=sub")
    with git_repository.Repository(upstream.url, "main", "", folder) as repository:
        checkout = repository.fetch()
    assert list((checkout.root / "sub").iterdir()) == []


# ownership of the folder


def test_a_folder_with_other_files_is_not_touched(upstream: Repository, folder: Path) -> None:
    """It may have been named by mistake."""
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    with git_repository.Repository(upstream.url, "main", "", folder) as repository, pytest.raises(errors.NotOursError):
        repository.fetch()
    assert [path.name for path in folder.iterdir()] == ["precious"]


@pytest.mark.parametrize("changed", ["url", "ref"])
def test_another_source_starts_with_an_empty_folder(
    upstream: Repository, folder: Path, tmp_path: Path, changed: str
) -> None:
    """The last checkout of another source is not used."""
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


def test_an_interrupted_clear_keeps_the_folder_ours(
    upstream: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption at any step."""
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        repository.fetch()
    real, allowed = git_repository._remove, 0  # noqa: SLF001 - to fail in the middle

    def remove(path: Path) -> None:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise OSError(5, "Input/output error")
        real(path)

    monkeypatch.setattr(git_repository, "_remove", remove)
    for allowed in range(2):  # noqa: B007 - read by the fake
        with (
            git_repository.Repository(upstream.url, "HEAD", "fleets", folder) as repository,
            pytest.raises(errors.HostError),
        ):
            repository.fetch()
    allowed = 100
    with git_repository.Repository(upstream.url, "HEAD", "fleets", folder) as repository:
        assert (repository.fetch().path / "a.yaml").read_text() == "a: 1\n"


def test_a_changed_password_is_the_same_source(folder: Path, upstream: Repository) -> None:
    """The password is not stored on disk."""
    with git_repository.Repository(f"file://me:hunter2@{upstream.root}", "main", "", folder) as repository:
        assert repository.current() is None
    mark = (folder / "source").read_text()
    with git_repository.Repository(f"file://me:hunter3@{upstream.root}", "main", "", folder) as repository:
        assert repository.current() is None
    assert (folder / "source").read_text() == mark
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_repositories_cannot_share_a_folder(upstream: Repository, folder: Path) -> None:
    """The second gets an error until the first is closed."""
    with git_repository.Repository(upstream.url, "main", "", folder) as first:
        first.fetch()
        with (
            git_repository.Repository(upstream.url, "main", "", folder) as second,
            pytest.raises(errors.HostError, match="another kwokfleet"),
        ):
            second.fetch()
    with git_repository.Repository(upstream.url, "main", "", folder) as second:
        second.fetch()


# end of processes


def test_a_hanging_git_is_killed_with_its_children(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the deadline; the next fetch may succeed."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch)
    monkeypatch.setattr(git_repository, "LS_REMOTE_TIMEOUT_S", 1.0)
    with git_repository.Repository(upstream.url, "main", "", folder) as repository:
        with pytest.raises(errors.DeadlineError, match="git ls-remote"):
            repository.fetch()
        assert (tmp_path / "started").exists()
        waiting.until(lambda: not git_processes(folder), deadline_s=20)
        (tmp_path / "bin" / "git").unlink()
        monkeypatch.setattr(git_repository, "LS_REMOTE_TIMEOUT_S", 30.0)
        repository.fetch()


def test_close_ends_a_running_fetch(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kills the processes and starts no other."""
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
    waiting.until(lambda: not git_processes(folder), deadline_s=20)
    with pytest.raises(errors.HostError, match="stopped"):
        repository.fetch()
    repository.close()


def test_files_of_a_killed_git_do_not_prevent_a_fetch(upstream: Repository, folder: Path) -> None:
    """Locks, incomplete packs and checkouts, temporary links."""
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
        checkout = repository.fetch()
    assert not logged, "the store was created again"
    assert [path.name for path in checkout.path.iterdir()] == ["a.yaml"]
    assert not list(bare.rglob("*.lock"))
    assert not list(bare.rglob("tmp_*"))
    assert not (folder / ".current.part").is_symlink()


PROGRAM = (
    "import sys, pathlib; from kwokfleet.source import git_repository\n"
    "repository = git_repository.Repository(sys.argv[1], 'main', 'fleets', pathlib.Path(sys.argv[2]))\n"
    "print('begun', flush=True); repository.fetch(); print('done', flush=True); sys.stdin.read()\n"
)


def fetching(upstream: Repository, folder: Path) -> "subprocess.Popen[bytes]":
    """Fetch in another process; return when it has started."""
    command = [sys.executable, "-c", PROGRAM, upstream.url, str(folder)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties processes on Linux only")
def test_git_ends_with_its_parent(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into the folder of the next fetch."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch, "exec sleep 600")
    with fetching(upstream, folder) as child:
        waiting.until((tmp_path / "started").exists)
        child.send_signal(signal.SIGKILL)
    try:
        waiting.until(lambda: not git_processes(folder), deadline_s=20)
    finally:
        for process in git_processes(folder):
            process.kill()


def test_a_fetch_succeeds_after_kill_9_at_any_moment(upstream: Repository, folder: Path) -> None:
    """No git outlives its parent, `current` is always complete, and the last fetch gets the newest commit."""
    for number in range(8):
        upstream.commit(fleets__a=f"a: {number}\n", **{f"fleets__b{index}": "b: 1\n" for index in range(50)})
        with fetching(upstream, folder) as child:
            time.sleep(0.06 * number)
            child.send_signal(signal.SIGKILL)
        waiting.until(lambda: not git_processes(folder), deadline_s=20)
        if (folder / "current").is_symlink():
            assert len(list((folder / "current" / "fleets").iterdir())) == 51
    with git_repository.Repository(upstream.url, "main", "fleets", folder) as repository:
        checkout = repository.fetch()
    assert (checkout.path / "a.yaml").read_text() == "a: 7\n"
    assert len(list(checkout.path.iterdir())) == 51


FIRST_PROCESS = """
import ctypes, pathlib, sys
import psutil
from kwokfleet import errors
from kwokfleet.source import git_repository

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become our children
git_repository.LS_REMOTE_TIMEOUT_S = 1.0
repository = git_repository.Repository(sys.argv[1], "main", "", pathlib.Path(sys.argv[2]))
try:
    repository.fetch()
except errors.DeadlineError:
    print(*(child.name() for child in psutil.Process().children()), sep=",")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux")
def test_no_zombies_are_left_as_process_1(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each interval would add one zombie of a hanging git."""
    slow_git(tmp_path / "bin", tmp_path / "started", monkeypatch)
    command = [sys.executable, "-c", FIRST_PROCESS, upstream.url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (tmp_path / "started").exists()
    assert done.stdout == "\n"
