"""Which revision a folder has, with the real git."""

import os
import stat
from pathlib import Path

import pytest

from kwokfleet.source import revision_lookup
from kwokfleet.source.revision import Revision
from tests.harness.git_repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Make a repository with one commit: `fleets/a.yaml`."""
    made = Repository(tmp_path / "work")
    made.commit(fleets__a="a: 1\n")
    return made


def test_a_checkout_shows_its_commit_and_branch(repository: Repository) -> None:
    """For its top, a folder in it and a file in it."""
    wanted = Revision(repository.git("rev-parse", "HEAD"), "main")
    for path in ("", "fleets", "fleets/a.yaml"):
        assert revision_lookup.find_revision(repository.root / path, "d") == wanted


@pytest.mark.parametrize("change", ["changed", "staged", "untracked", "deleted"])
def test_files_that_differ_from_the_commit_show(repository: Repository, change: str) -> None:
    """Changed, staged, new, gone; and what differs elsewhere in the checkout does not count."""
    repository.write(**({"fleets__new": "n: 1\n"} if change == "untracked" else {"fleets__a": "a: 2\n"}))
    if change == "staged":
        repository.git("add", "--all")
    if change == "deleted":
        (repository.root / "fleets" / "a.yaml").unlink()
    assert revision_lookup.find_revision(repository.root / "fleets").dirty is True
    repository.commit()
    repository.write(elsewhere="e: 1\n")
    assert revision_lookup.find_revision(repository.root / "fleets").dirty is False


def test_a_detached_head_and_a_linked_worktree_show_their_commit(repository: Repository, tmp_path: Path) -> None:
    """Without a branch there is none to show."""
    first = repository.git("rev-parse", "HEAD")
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    repository.commit(fleets__a="a: 2\n")
    assert revision_lookup.find_revision(tmp_path / "linked" / "fleets") == Revision(first)


def test_a_folder_that_is_none_of_the_commit_s_shows_its_contents(repository: Repository, tmp_path: Path) -> None:
    """Ignored or not added, although in a checkout; or in none; or in one without a commit."""
    (repository.root / ".gitignore").write_text("build\n")
    repository.commit()
    for name in ("build", "new"):
        repository.write(**{f"{name}__a": "a: 1\n"})
        assert revision_lookup.find_revision(repository.root / name, "0123456789abcdef") == Revision(
            digest="0123456789abcdef"
        )
    (tmp_path / "plain").mkdir()
    assert str(revision_lookup.find_revision(tmp_path / "plain", "0123456789abcdef")) == "sha256:0123456789ab"
    assert revision_lookup.find_revision(Repository(tmp_path / "empty").root, "d") == Revision(digest="d")
    assert revision_lookup.find_revision(tmp_path / "nowhere" / "at all", "d") == Revision(digest="d")


def test_asking_writes_nothing(repository: Repository) -> None:
    """Who watches the folder would be woken by it, for ever."""
    (repository.root / "fleets" / "a.yaml").touch()  # git would like to note that nothing changed
    before = {path: path.stat().st_mtime_ns for path in repository.root.rglob("*")}
    revision_lookup.find_revision(repository.root / "fleets")
    assert {path: path.stat().st_mtime_ns for path in repository.root.rglob("*")} == before


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `git` be a script."""
    program = folder / "git"
    folder.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        "echo \"fatal: detected dubious ownership in repository at '/x'\" >&2; exit 128",
        "exec sleep 60",
    ],
)
def test_where_git_does_not_tell_its_files_do(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, packed: bool
) -> None:
    """It refuses files of another user, or takes too long: the commit is known, not whether files differ."""
    head = repository.git("rev-parse", "HEAD")
    if packed:
        repository.git("pack-refs", "--all")
    fake_git(tmp_path / "bin", script, monkeypatch)
    monkeypatch.setattr(revision_lookup, "GIT_TIMEOUT_S", 0.2)
    assert revision_lookup.find_revision(repository.root / "fleets", "d") == Revision(head, "main", dirty=None)


def test_without_git_a_worktree_s_files_tell(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its branch is kept with the repository that it is linked to."""
    repository.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "linked"))
    head = repository.git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision_lookup.find_revision(tmp_path / "linked" / "fleets", "d") == Revision(head, "side", dirty=None)


def test_git_sync_s_link_shows_its_commit(tmp_path: Path) -> None:
    """Its target is named after it, whether or not there is a repository behind."""
    commit = "c" * 40
    (tmp_path / ".worktrees" / commit / "fleets").mkdir(parents=True)
    (tmp_path / "current").symlink_to(f".worktrees/{commit}")
    for path in ("current", "current/fleets"):
        assert revision_lookup.find_revision(tmp_path / path, "d") == Revision(commit, dirty=None)


def test_landmarks_change_with_the_commit(repository: Repository, tmp_path: Path) -> None:
    """A commit, another branch: each changes one of the files to watch."""

    def state() -> list[str]:
        return [path.read_text() for path in revision_lookup.git_state_files(repository.root / "fleets")]

    states = [state()]
    repository.commit()
    states.append(state())
    repository.git("switch", "--quiet", "--create", "side")
    states.append(state())
    assert len({str(each) for each in states}) == 3
    assert revision_lookup.git_state_files(tmp_path) == ()
