"""Which revision a file or folder here has: asked of git, read from its files, or from git-sync's link."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from kwokfleet import settings
from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

GIT_TIMEOUT_S = 10.0


def find_revision(path: Path, digest: str = "") -> Revision:
    """Return the commit of a file or folder; if it has none, *digest*, that of its contents."""
    try:
        found = _asked(path) if _git_folder(path) else None  # git takes its time to say that there is none
    except _UntoldError:
        found = _read(path)
    return found or _linked(path) or Revision(digest=digest)


def git_state_files(path: Path) -> tuple[Path, ...]:
    """Return the files that change when a checkout around *path* gets another commit: to be watched."""
    folder = _git_folder(path)
    return (folder / "HEAD", folder / "logs" / "HEAD") if folder else ()


class _UntoldError(Exception):
    """git is not there, refuses to look, or takes too long."""


def _asked(path: Path) -> Revision | None:
    """Ask git; None if the files are of no commit."""
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name)
    # A folder in a checkout may still be none of its commit's: ignored, or not added yet.
    code, _, said = _run(folder, "rev-parse", "--verify", f"HEAD:./{name}")
    if code:
        if "dubious ownership" in said:
            raise _UntoldError
        return None
    code, out, _ = _run(folder, "status", "--porcelain=v2", "--branch", "--ignore-submodules=dirty", "--", f"./{name}")
    if code:
        raise _UntoldError
    return revision.parse_status(out)


def _run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    program = shutil.which("git")
    if program is None:
        raise _UntoldError
    try:
        done = subprocess.run(
            git_command.command(program, *arguments),
            cwd=folder,
            env=git_command.environment(settings.child_environment()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            start_new_session=True,  # no terminal to ask at
        )
    except (OSError, subprocess.TimeoutExpired):
        raise _UntoldError from None
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _read(path: Path) -> Revision | None:
    """Read what git's files say; whether the files differ from the commit stays open."""
    folder = _git_folder(path)
    if folder is None:
        return None
    commit, ref = revision.parse_head(_text(folder / "HEAD"))
    if ref:
        common = folder / (_text(folder / "commondir").strip() or ".")
        loose = _text(common / ref).strip()
        commit = loose if revision.is_commit(loose) else revision.parse_packed_refs(_text(common / "packed-refs"), ref)
    return Revision(commit, revision.short_ref(ref), dirty=None) if commit else None


def _linked(path: Path) -> Revision | None:
    """Return the commit that a link on the way is named after: git-sync's."""
    whole = path.absolute()
    for each in (whole, *whole.parents):
        with suppress(OSError):
            if each.is_symlink() and (commit := revision.commit_of_folder(each.readlink().name)):
                return Revision(commit, dirty=None)
    return None


def _git_folder(path: Path) -> Path | None:
    """Return git's own folder of the checkout around *path*."""
    with suppress(OSError, RuntimeError):
        real = path.resolve()
        for each in (real, *real.parents):
            mark = each / ".git"
            if mark.is_dir():
                return mark
            if mark.is_file():
                named = _text(mark).strip()
                return each / named.removeprefix("gitdir: ") if named.startswith("gitdir: ") else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
