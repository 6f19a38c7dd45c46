"""The git program: a repository elsewhere, kept as a folder here.

A Repository's folder holds `repo.git`, one folder for each commit, and the link `current`, which
is replaced in one step when a commit is there as a whole. Whatever no link leads to was left by
somebody who died, and is removed by the next who comes.

Credentials are git's own affair: nobody is asked, and addresses are shown without them.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

import structlog

from kwokfleet import errors, settings
from kwokfleet.kwok import parent_death
from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

log = structlog.get_logger()

ASK_S = 30.0
"""For questions to a server."""
FETCH_S = 300.0
TICK_S = 0.1
"""How often a running git is looked after."""
BURY_S = 1.0
"""For killed processes to be gone."""
_MOST_WORDS = 1 << 20
_WANTED = "refs/kwokfleet/wanted"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit's files."""

    path: Path
    """The Fleet files; they stay as they are until two more commits have come."""
    root: Path
    """The whole of it."""
    revision: Revision


@dataclass(frozen=True, slots=True)
class _Done:
    code: int
    out: str
    err: str


class Repository:
    """A branch, tag or commit of a repository elsewhere, kept in a folder of its own here.

    *path* is the Fleet files' place in it. One thread at a time fetches; `close` ends it from any other.
    """

    def __init__(self, url: str, ref: str, path: str, folder: Path, *, fetch_s: float = FETCH_S) -> None:
        for name, value, wrong in (
            ("url", git_command.redact(url), git_command.url_error(url)),
            ("ref", ref, git_command.ref_error(ref)),
            ("path", path, git_command.path_error(path)),
        ):
            if wrong:
                raise errors.InputError(f"the git {name} {value!r} {wrong}", hint=f"mend --git-{name}")
        self.display_url = git_command.redact(url)
        """The address, fit to be shown."""
        self._url, self._ref, self._path, self._fetch_s = url, ref, git_command.normalize_path(path), fetch_s
        self.folder = folder.absolute()
        self._bare = self.folder / "repo.git"
        self._git = _Git(self.folder, {"GIT_DIR": str(self._bare)})
        self._lock: int | None = None
        self._busy = threading.Lock()

    def current(self) -> Checkout | None:
        """Return the last checkout, which may be of an earlier life; None if there is none."""
        with self._busy, self._on_disk():
            self._open()
            commit = self._target("current")
            return self._checkout(commit, "") if commit else None

    def fetch(self) -> Checkout:
        """Get the newest commit and return it; if that fails, the last checkout stays as it was."""
        with self._busy, self._on_disk():
            self._open()
            self._tidy()
            remote = self._remote()
            if remote.commit != self._target("current"):
                remote = replace(remote, commit=self._got_anyhow(remote))
                self._swap(remote.commit)
                self._tidy()
            return self._checkout(remote.commit, remote.branch)

    def close(self) -> None:
        """End what is under way, and let go of the folder."""
        self._git.stop()
        with self._busy:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checkout(self, commit: str, branch: str) -> Checkout:
        root = self.folder / commit
        return Checkout(root / self._path, root, Revision(commit, branch))

    # asking and fetching

    def _remote(self) -> git_command.RemoteRef:
        if revision.is_commit(self._ref):
            return git_command.RemoteRef(self._ref, self._ref, "")
        done = self._git.run(
            "ls-remote",
            "--symref",
            "--quiet",
            "--",
            self._url,
            *git_command.ls_remote_patterns(self._ref),
            timeout_s=ASK_S,
        )
        if done.code:
            raise self._failed("cannot be asked", done)
        found = git_command.parse_ls_remote(done.out, self._ref)
        if found is None:
            raise errors.InputError(
                f"there is no branch or tag {self._ref!r} in {self.display_url}",
                hint="name a branch, a tag, or all 40 digits of a commit in --git-ref",
            )
        return found

    def _got_anyhow(self, remote: git_command.RemoteRef) -> str:
        try:
            return self._got(remote)
        except errors.HostError as error:
            whole = self._git.run(
                "fsck", "--connectivity-only", "--no-dangling", "--no-progress", timeout_s=self._fetch_s
            )
            if not whole.code:
                raise
            # What we hold is damaged, as after a power failure.
            log.warning("git_began_anew", url=self.display_url, why=str(error))
            shutil.rmtree(self._bare, ignore_errors=True)
            self._open()
            return self._got(remote)

    def _got(self, remote: git_command.RemoteRef) -> str:
        """Fetch a commit and lay out its files; return which it is."""
        done = self._git.run(
            "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
            "--", self._url, f"+{remote.ref}:{_WANTED}", timeout_s=self._fetch_s,
        )  # fmt: skip
        if done.code:
            raise self._failed("cannot be fetched", done)
        commit = self._must("rev-parse", "--verify", f"{_WANTED}^{{commit}}").out.strip()
        self._must_hold(commit)
        if commit not in {self._target("current"), self._target("previous")}:  # those are whole
            self._must("worktree", "add", "--force", "--detach", "--quiet", str(self.folder / commit), commit)
        return commit

    def _must_hold(self, commit: str) -> None:
        """Refuse a commit in which the path is missing, or a link that might lead anywhere."""
        if not self._path:
            return
        mode = self._must("ls-tree", commit, "--", self._path).out.partition(" ")[0]
        if mode not in {"040000", "100644", "100755"}:
            what = "is not there" if not mode else "is a link or a submodule"
            raise errors.InputError(
                f"{self._path} {what} in commit {commit[: revision.SHORT]} of {self.display_url}",
                hint="put it back, or mend --git-path",
            )

    def _must(self, *arguments: str) -> _Done:
        done = self._git.run(*arguments, timeout_s=self._fetch_s)
        if done.code:
            raise self._failed(f"cannot be laid out in {self.folder} (git {arguments[0]})", done)
        return done

    def _failed(self, what: str, done: _Done) -> errors.KwokfleetError:
        return errors.HostError(
            f"{self.display_url} {what}: {git_command.error_summary(done.err)}", hint=git_command.error_hint(done.err)
        )

    # the folder

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.HostError(
                f"{self.folder} cannot be used: {(error.strerror or str(error)).lower()}",
                hint="see its rights and the room on its disk",
            ) from error

    def _open(self) -> None:
        """Take the folder, clear away what is of another source, make what is missing."""
        if self._lock is None:
            self._take()
        if not (self._bare / "HEAD").exists():
            shutil.rmtree(self._bare, ignore_errors=True)
            self._must("init", "--quiet", "--bare", "--template=", str(self._bare))

    def _take(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.folder / "source"
        if not mark.exists() and any(each.name not in {"lock", ".source.part"} for each in self.folder.iterdir()):
            raise errors.NotOursError(
                f"{self.folder} holds files that are not ours", hint="name an empty or a new folder"
            )
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise errors.HostError(
                f"another kwokfleet keeps its checkout in {self.folder}", hint="stop it, or use another folder"
            ) from None
        self._lock = lock
        source = hashlib.sha256(f"{self.display_url}\0{self._ref}".encode()).hexdigest()
        if _text(mark) != source:
            self._clear(keep={"lock", mark.name})  # the mark last: without it, what is left would not be ours
            part = self.folder / ".source.part"
            part.write_text(source)
            part.replace(mark)

    def _clear(self, keep: set[str]) -> None:
        for each in self.folder.iterdir():
            if each.name not in keep:
                _remove(each)

    def _target(self, link: str) -> str:
        """Return the commit that a link leads to; empty if it leads nowhere."""
        with suppress(OSError):
            name = (self.folder / link).readlink().name
            if revision.is_commit(name) and (self.folder / name / self._path).exists():
                return name
        return ""

    def _swap(self, commit: str) -> None:
        """Let `current` lead to another commit, in one step, and `previous` to the one before."""
        for link, to in (("previous", self._target("current")), ("current", commit)):
            if to:
                part = self.folder / f".{link}.part"
                part.unlink(missing_ok=True)
                part.symlink_to(to)
                part.replace(self.folder / link)

    def _tidy(self) -> None:
        """Remove what no link leads to, and what a git that was killed has left: none is running, the lock is ours."""
        for left in [*self._bare.rglob("*.lock"), *(self._bare / "objects").rglob("tmp_*")]:
            left.unlink(missing_ok=True)
        kept = {self._target("current"), self._target("previous"), "repo.git", "current", "previous", "lock", "source"}
        # Its notes on a worktree too: one that git was killed over is locked, and would not let itself be made again.
        gone = [
            each
            for folder in (self.folder, self._bare / "worktrees")
            if folder.is_dir()
            for each in folder.iterdir()
            if each.name not in kept
        ]
        for each in gone:
            _remove(each)
        if gone:
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
    """Runs git: quietly, asking nobody, with a deadline, and not beyond a call to `stop`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self.stopped = False

    def run(self, *arguments: str, timeout_s: float) -> _Done:
        """Run a command of git and return how it ended."""
        program = shutil.which("git")
        if program is None:
            raise errors.HostError("the git program is not there", hint="install git")
        # Files, not pipes: an ssh or a credential helper that stays behind would hold a pipe open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._must_go_on()
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    parent_death.__file__,
                    str(os.getpid()),
                    *git_command.command(program, *arguments),
                ],
                cwd=self._folder,
                env=git_command.environment(settings.child_environment(), self._environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # no terminal to ask at, and one group to end
            )
            if not self._ended(process, time.monotonic() + timeout_s):
                self._must_go_on()
                raise errors.DeadlineError(
                    f"git {arguments[0]} took longer than {timeout_s:g} s", hint="see the network and the server"
                )
            self._must_go_on()
            return _Done(process.returncode, _words(out), _words(err))

    def _ended(self, process: "subprocess.Popen[bytes]", deadline: float) -> bool:
        """Wait for a process; if that takes too long or is no longer wanted, end its group and return False."""
        try:
            while time.monotonic() < deadline and not self.stopped:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
                    return True
            return False
        finally:
            if process.returncode is None:  # not waited for yet, so its number is still its own
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _bury(process.pid)

    def _must_go_on(self) -> None:
        if self.stopped:
            raise errors.HostError("git was stopped", hint="start again")

    def stop(self) -> None:
        """End what is running; nothing is run any more."""
        self.stopped = True


def _bury(group: int) -> None:
    """Take leave of what git had started and was killed with it: the first process of a container is its parent now."""
    deadline = time.monotonic() + BURY_S
    with suppress(ChildProcessError):  # none is left, or none is ours
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _words(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(_MOST_WORDS).decode(errors="replace")
