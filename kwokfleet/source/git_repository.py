"""A remote git repository, checked out into a local folder.

The folder contains `repo.git`, one folder for each commit, and the symlink `current`, which is replaced
atomically after a complete checkout. Folders without a symlink are leftovers of a killed process, and are removed
before the next fetch.

git handles credentials; it never prompts, and displayed URLs contain none.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import structlog

from kwokfleet import errors, settings
from kwokfleet.kwok import parent_death
from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

log = structlog.get_logger()

LS_REMOTE_TIMEOUT_S = 30.0
"""Timeout of ls-remote."""
FETCH_TIMEOUT_S = 300.0
TICK_S = 0.1
"""Interval in which a running git is checked."""
REAP_S = 1.0
"""Time for killed processes to exit."""
_MAX_OUTPUT_BYTES = 1 << 20
_FETCHED_REF = "refs/kwokfleet/wanted"


@dataclass(frozen=True, slots=True)
class Checkout:
    """The files of a commit."""

    path: Path
    """The fleet files; unchanged until two further commits were fetched."""
    root: Path
    """The root of the checkout."""
    revision: Revision


_GitResult = subprocess.CompletedProcess[str]


class Repository(AbstractContextManager["Repository"]):
    """A branch, tag or commit of a remote repository, with a local folder for its checkouts.

    *path* is the folder of the fleet files in the repository. One thread fetches; any thread may call `close`.
    """

    def __init__(self, url: str, ref: str, path: str, folder: Path, *, fetch_s: float = FETCH_TIMEOUT_S) -> None:
        for name, value, error in (
            ("url", git_command.redact(url), git_command.url_error(url)),
            ("ref", ref, git_command.ref_error(ref)),
            ("path", path, git_command.path_error(path)),
        ):
            if error:
                raise errors.InputError(f"the git {name} {value!r} {error}", hint=f"correct --git-{name}")
        self.display_url = git_command.redact(url)
        """The URL without credentials."""
        self._url, self._ref, self._path, self._fetch_s = url, ref, git_command.normalize_path(path), fetch_s
        self.folder = folder.absolute()
        self._bare = self.folder / "repo.git"
        self._git = _Git(self.folder, {"GIT_DIR": str(self._bare)})
        self._lock: int | None = None
        self._busy = threading.Lock()

    def current(self) -> Checkout | None:
        """Return the last checkout, also of an earlier process; None if there is none."""
        with self._busy, self._on_disk():
            self._open()
            commit = self._target("current")
            return self._checkout(commit, "") if commit else None

    def fetch(self) -> Checkout:
        """Fetch the newest commit; on failure the last checkout stays."""
        with self._busy, self._on_disk():
            self._open()
            self._remove_leftovers()
            remote = self._remote()
            if remote.commit != self._target("current"):
                remote = replace(remote, commit=self._check_out_or_repair(remote))
                self._swap(remote.commit)
                self._remove_leftovers()
            return self._checkout(remote.commit, remote.branch)

    def close(self) -> None:
        """Stop a running git and unlock the folder."""
        self._git.stopped = True
        with self._busy:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checkout(self, commit: str, branch: str) -> Checkout:
        root = self.folder / commit
        return Checkout(root / self._path, root, Revision(commit, branch))

    # fetching

    def _remote(self) -> git_command.RemoteRef:
        if revision.is_commit(self._ref):
            return git_command.RemoteRef(self._ref, self._ref, "")
        patterns = git_command.ls_remote_patterns(self._ref)
        done = self._git.run(
            "ls-remote", "--symref", "--quiet", "--", self._url, *patterns, timeout_s=LS_REMOTE_TIMEOUT_S
        )
        if done.returncode:
            raise self._error("cannot list refs of", done)
        remote = git_command.parse_ls_remote(done.stdout, self._ref)
        if remote is None:
            raise errors.InputError(
                f"no branch or tag {self._ref!r} in {self.display_url}",
                hint="set --git-ref to a branch, a tag, or a full commit hash",
            )
        return remote

    def _check_out_or_repair(self, remote: git_command.RemoteRef) -> str:
        try:
            return self._check_out(remote)
        except errors.HostError as error:
            fsck = ("fsck", "--connectivity-only", "--no-dangling", "--no-progress")
            if not self._git.run(*fsck, timeout_s=self._fetch_s).returncode:
                raise
            # The local repository is damaged, as after a power failure.
            log.warning("git_repository_recreated", url=self.display_url, reason=str(error))
            shutil.rmtree(self._bare, ignore_errors=True)
            self._open()
            return self._check_out(remote)

    def _check_out(self, remote: git_command.RemoteRef) -> str:
        """Fetch a commit and check out its files; return the commit."""
        done = self._git.run(
            "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
            "--", self._url, f"+{remote.ref}:{_FETCHED_REF}", timeout_s=self._fetch_s,
        )  # fmt: skip
        if done.returncode:
            raise self._error("cannot fetch", done)
        commit = self._run("rev-parse", "--verify", f"{_FETCHED_REF}^{{commit}}").strip()
        self._require_path(commit)
        if commit not in {self._target("current"), self._target("previous")}:  # those are complete
            self._run("worktree", "add", "--force", "--detach", "--quiet", str(self.folder / commit), commit)
        return commit

    def _require_path(self, commit: str) -> None:
        """Reject a commit in which the path is missing, a symlink or a submodule."""
        if not self._path:
            return
        mode = self._run("ls-tree", commit, "--", self._path).partition(" ")[0]
        if mode not in {"040000", "100644", "100755"}:
            what = "is a symlink or a submodule" if mode else "does not exist"
            raise errors.InputError(
                f"{self._path} {what} in commit {commit[: revision.SHORT]} of {self.display_url}",
                hint="restore it, or correct --git-path",
            )

    def _run(self, *arguments: str) -> str:
        """Run a git command; return its output."""
        done = self._git.run(*arguments, timeout_s=self._fetch_s)
        if done.returncode:
            raise self._error(f"git {arguments[0]} failed in {self.folder} for", done)
        return done.stdout

    def _error(self, what: str, done: _GitResult) -> errors.KwokfleetError:
        summary = git_command.error_summary(done.stderr)
        return errors.HostError(f"{what} {self.display_url}: {summary}", hint=git_command.error_hint(done.stderr))

    # the folder

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.HostError(
                f"cannot use {self.folder}: {(error.strerror or str(error)).lower()}",
                hint="check its permissions and the free disk space",
            ) from error

    def _open(self) -> None:
        """Lock the folder, remove the files of another source, create the bare repository."""
        if self._lock is None:
            self._lock_folder()
        if not (self._bare / "HEAD").exists():
            shutil.rmtree(self._bare, ignore_errors=True)
            self._run("init", "--quiet", "--bare", "--template=", str(self._bare))

    def _lock_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker = self.folder / "source"
        if not marker.exists() and any(entry.name not in {"lock", ".source.part"} for entry in self.folder.iterdir()):
            raise errors.NotOursError(
                f"{self.folder} contains files of another program", hint="name an empty or a new folder"
            )
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise errors.HostError(
                f"another kwokfleet process uses {self.folder}", hint="stop it, or use another folder"
            ) from None
        self._lock = lock
        source = hashlib.sha256(f"{self.display_url}\0{self._ref}".encode()).hexdigest()
        if _text(marker) != source:
            for entry in self.folder.iterdir():
                if entry.name not in {"lock", marker.name}:  # without the marker, the files would count as foreign
                    _remove(entry)
            part = self.folder / ".source.part"
            part.write_text(source)
            part.replace(marker)

    def _target(self, link: str) -> str:
        """Return the commit of a symlink; empty if it is dangling."""
        with suppress(OSError):
            name = (self.folder / link).readlink().name
            if revision.is_commit(name) and (self.folder / name / self._path).exists():
                return name
        return ""

    def _swap(self, commit: str) -> None:
        """Point `current` at another commit atomically, and `previous` at the one before."""
        for link, to in (("previous", self._target("current")), ("current", commit)):
            if to:
                part = self.folder / f".{link}.part"
                part.unlink(missing_ok=True)
                part.symlink_to(to)
                part.replace(self.folder / link)

    def _remove_leftovers(self) -> None:
        """Remove folders without a symlink, and files of a killed git. We hold the lock, so no git is running."""
        for leftover in [*self._bare.rglob("*.lock"), *(self._bare / "objects").rglob("tmp_*")]:
            leftover.unlink(missing_ok=True)
        used = {self._target("current"), self._target("previous"), "repo.git", "current", "previous", "lock", "source"}
        # Worktree metadata too: after a kill it is locked, and git could not create the worktree again.
        leftovers = [
            entry
            for folder in (self.folder, self._bare / "worktrees")
            if folder.is_dir()
            for entry in folder.iterdir()
            if entry.name not in used
        ]
        for entry in leftovers:
            _remove(entry)
        if leftovers:
            self._git.run("gc", "--auto", "--quiet", "--prune=now", timeout_s=self._fetch_s)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class _Git:
    """Runs git without prompts and with a timeout."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self.stopped = False
        """Set it to kill the running command; further ones are rejected."""

    def run(self, *arguments: str, timeout_s: float) -> _GitResult:
        """Run a git command."""
        program = shutil.which("git")
        if program is None:
            raise errors.HostError("git is not installed", hint="install git")
        # Files, not pipes: a remaining ssh or credential helper would keep a pipe open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._require_running()
            process = subprocess.Popen(
                parent_death.command(git_command.command(program, *arguments)),
                cwd=self._folder,
                env=git_command.environment(settings.child_environment(), self._environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # no terminal for prompts, and one process group to kill
            )
            if not self._wait(process, time.monotonic() + timeout_s):
                self._require_running()
                raise errors.DeadlineError(
                    f"git {arguments[0]} took longer than {timeout_s:g} s", hint="check the network and the server"
                )
            self._require_running()
            return _GitResult(arguments, process.returncode, _output(out), _output(err))

    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> bool:
        """Wait for a process; after the deadline or if stopped, kill its group and return False."""
        try:
            while time.monotonic() < deadline and not self.stopped:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
                    return True
            return False
        finally:
            if process.returncode is None:  # not waited for yet, so its pid is still valid
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _reap(process.pid)

    def _require_running(self) -> None:
        if self.stopped:
            raise errors.HostError("git was stopped", hint="start again")


def _reap(group: int) -> None:
    """Wait for git's killed children: as pid 1 of a container we are their parent now."""
    deadline = time.monotonic() + REAP_S
    with suppress(ChildProcessError):  # none is left, or none is ours
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _output(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
