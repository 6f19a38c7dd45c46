"""Looks up the revision of a local path: with git, from git's files, or from the name of a git-sync folder."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from kwokfleet import settings
from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

GIT_TIMEOUT_S = 10.0


def find_revision(path: Path, digest: str = "") -> Revision:
    """Return the commit of a file or folder, or else *digest*, the digest of its contents."""
    try:
        known = _ask_git(path) if _git_folder(path) else None  # without the check, git is slow to answer
    except _GitUnavailableError:
        known = _read_git_files(path)
    return known or _git_sync_revision(path) or Revision(digest=digest)


def git_state_files(path: Path) -> tuple[Path, ...]:
    """Return git's files that change with the commit of a checkout, to be watched."""
    folder = _git_folder(path)
    return (folder / "HEAD", folder / "logs" / "HEAD") if folder else ()


class _GitUnavailableError(Exception):
    """git is not installed, refuses to read the checkout, or takes too long."""


def _ask_git(path: Path) -> Revision | None:
    """Run git; None if the files are not in a commit."""
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name)
    # A folder in a checkout may be ignored or not added yet.
    code, _, error = _run(folder, "rev-parse", "--verify", f"HEAD:./{name}")
    if code:
        if "dubious ownership" in error:
            raise _GitUnavailableError
        return None
    code, out, _ = _run(folder, "status", "--porcelain=v2", "--branch", "--ignore-submodules=dirty", "--", f"./{name}")
    if code:
        raise _GitUnavailableError
    return revision.parse_status(out)


def _run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    program = shutil.which("git")
    if program is None:
        raise _GitUnavailableError
    try:
        process = subprocess.run(
            git_command.command(program, *arguments),
            cwd=folder,
            env=git_command.environment(settings.child_environment()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            start_new_session=True,  # no terminal for prompts
        )
    except (OSError, subprocess.TimeoutExpired):
        raise _GitUnavailableError from None
    return process.returncode, process.stdout.decode(errors="replace"), process.stderr.decode(errors="replace")


def _read_git_files(path: Path) -> Revision | None:
    """Read git's files; whether the tree differs from the commit is not known then."""
    folder = _git_folder(path)
    if folder is None:
        return None
    commit, ref = revision.parse_head(_text(folder / "HEAD"))
    if ref:
        common = folder / (_text(folder / "commondir").strip() or ".")
        loose = _text(common / ref).strip()
        commit = loose if revision.is_commit(loose) else revision.parse_packed_refs(_text(common / "packed-refs"), ref)
    return Revision(commit, revision.short_ref(ref), dirty=None) if commit else None


def _git_sync_revision(path: Path) -> Revision | None:
    """Return the commit in the target's name of a git-sync symlink."""
    absolute = path.absolute()
    for parent in (absolute, *absolute.parents):
        with suppress(OSError):
            if parent.is_symlink() and (commit := revision.commit_of_folder(parent.readlink().name)):
                return Revision(commit, dirty=None)
    return None


def _git_folder(path: Path) -> Path | None:
    """Return the .git folder of the checkout that contains *path*."""
    with suppress(OSError, RuntimeError):
        real = path.resolve()
        for parent in (real, *real.parents):
            git = parent / ".git"
            if git.is_dir():
                return git
            if git.is_file():
                line = _text(git).strip()
                return parent / line.removeprefix("gitdir: ") if line.startswith("gitdir: ") else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
