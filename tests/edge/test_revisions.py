"""Revision of a folder, with the real git."""

import os
import stat
from pathlib import Path

import pytest

from kwokfleet.source import revision_lookup
from kwokfleet.source.revision import Revision
from tests.harness.git_repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Create a repository with one commit: `fleets/a.yaml`."""
    repository = Repository(tmp_path / "work")
    repository.commit(fleets__a="a: 1\n")
    return repository


def test_a_checkout_has_its_commit_and_branch(repository: Repository) -> None:
    """For its root, a folder and a file in it."""
    expected = Revision(repository.git("rev-parse", "HEAD"), "main")
    for path in ("", "fleets", "fleets/a.yaml"):
        assert revision_lookup.find_revision(repository.root / path, "d") == expected


@pytest.mark.parametrize("change", ["changed", "staged", "untracked", "deleted"])
def test_files_that_differ_from_the_commit_make_it_dirty(repository: Repository, change: str) -> None:
    """Changed, staged, new or deleted; changes outside the folder do not count."""
    repository.write(**({"fleets__new": "n: 1\n"} if change == "untracked" else {"fleets__a": "a: 2\n"}))
    if change == "staged":
        repository.git("add", "--all")
    if change == "deleted":
        (repository.root / "fleets" / "a.yaml").unlink()
    assert revision_lookup.find_revision(repository.root / "fleets").dirty is True
    repository.commit()
    repository.write(elsewhere="e: 1\n")
    assert revision_lookup.find_revision(repository.root / "fleets").dirty is False


def test_a_detached_head_and_a_linked_worktree_have_their_commit(repository: Repository, tmp_path: Path) -> None:
    """A detached HEAD has no branch."""
    first = repository.git("rev-parse", "HEAD")
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    repository.commit(fleets__a="a: 2\n")
    assert revision_lookup.find_revision(tmp_path / "linked" / "fleets") == Revision(first)


def test_an_untracked_folder_has_its_digest_as_revision(repository: Repository, tmp_path: Path) -> None:
    """Ignored, not added, outside a checkout, or in one without a commit."""
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


def test_the_lookup_writes_nothing(repository: Repository) -> None:
    """A write would wake the file watcher in a loop."""
    (repository.root / "fleets" / "a.yaml").touch()  # git would update its index
    before = {path: path.stat().st_mtime_ns for path in repository.root.rglob("*")}
    revision_lookup.find_revision(repository.root / "fleets")
    assert {path: path.stat().st_mtime_ns for path in repository.root.rglob("*")} == before


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `git` by a script."""
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
def test_without_an_answer_of_git_its_files_are_read(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, packed: bool
) -> None:
    """For files of another user or at a timeout: the commit is known, but not whether files differ."""
    head = repository.git("rev-parse", "HEAD")
    if packed:
        repository.git("pack-refs", "--all")
    fake_git(tmp_path / "bin", script, monkeypatch)
    monkeypatch.setattr(revision_lookup, "GIT_TIMEOUT_S", 0.2)
    assert revision_lookup.find_revision(repository.root / "fleets", "d") == Revision(head, "main", dirty=None)


def test_without_git_the_files_of_a_worktree_are_read(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its branch is in the repository that it is linked to."""
    repository.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "linked"))
    head = repository.git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision_lookup.find_revision(tmp_path / "linked" / "fleets", "d") == Revision(head, "side", dirty=None)


def test_the_link_of_git_sync_has_its_commit(tmp_path: Path) -> None:
    """The name of its target is the commit, also without a repository."""
    commit = "c" * 40
    (tmp_path / ".worktrees" / commit / "fleets").mkdir(parents=True)
    (tmp_path / "current").symlink_to(f".worktrees/{commit}")
    for path in ("current", "current/fleets"):
        assert revision_lookup.find_revision(tmp_path / path, "d") == Revision(commit, dirty=None)


def test_landmarks_change_with_the_commit(repository: Repository, tmp_path: Path) -> None:
    """A commit or another branch changes one of the watched files."""

    def state() -> list[str]:
        return [path.read_text() for path in revision_lookup.git_state_files(repository.root / "fleets")]

    states = [state()]
    repository.commit()
    states.append(state())
    repository.git("switch", "--quiet", "--create", "side")
    states.append(state())
    assert len({str(state) for state in states}) == 3
    assert revision_lookup.git_state_files(tmp_path) == ()
