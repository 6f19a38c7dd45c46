"""A git repository as a source, with the real git."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from kwokfleet import errors
from kwokfleet.source import files, git_repository
from kwokfleet.source.revision import Revision
from tests.harness.git_repository import Repository


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Name a folder that is not there yet."""
    return tmp_path / "state" / "git"


def followed(upstream: Repository, folder: Path, ref: str = "main", path: str = "fleets") -> git_repository.Repository:
    """Follow a repository."""
    return git_repository.Repository(upstream.url, ref, path, folder)


def text(checkout: git_repository.Checkout | None) -> str:
    """Return what `a.yaml` says."""
    assert checkout is not None
    return (checkout.path / "a.yaml").read_text()


def commits(folder: Path) -> set[str]:
    """Return the commits that are laid out in a folder."""
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()} - {"repo.git"}


# what is fetched


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("main", "main"),
        ("HEAD", "main"),
        ("refs/heads/main", "main"),
        ("light", "light"),
        ("heavy", "heavy"),
        ("side/branch", "side/branch"),
    ],
)
def test_branches_tags_and_head_are_followed(upstream: Repository, folder: Path, name: str, branch: str) -> None:
    """Each leads to the commit it stands for, a tag with a message to the one it is on."""
    upstream.git("tag", "light")
    upstream.git("tag", "--annotate", "--message=x", "heavy")
    upstream.git("branch", "side/branch")
    with followed(upstream, folder, name) as repository:
        found = repository.fetch()
    assert found.revision == Revision(upstream.git("rev-parse", "HEAD"), branch)
    assert text(found) == "a: 1\n"


def test_a_commit_is_fetched_by_its_hash(upstream: Repository, folder: Path) -> None:
    """Although no branch ends there any more."""
    first = upstream.git("rev-parse", "HEAD")
    upstream.commit(fleets__a="a: 2\n")
    with followed(upstream, folder, first) as repository:
        found = repository.fetch()
    assert (text(found), found.revision) == ("a: 1\n", Revision(first))


@pytest.mark.parametrize("path", ["", ".", "./fleets/", "fleets/a.yaml"])
def test_the_path_is_found_in_the_checkout(upstream: Repository, folder: Path, path: str) -> None:
    """The top, a folder, a file."""
    with followed(upstream, folder, path=path) as repository:
        found = repository.fetch()
    assert found.path == found.root / path
    assert [file.text for file in files.read(found.path).files] == ["a: 1\n"]


def test_only_the_newest_commit_is_fetched(upstream: Repository, folder: Path) -> None:
    """However long the history is."""
    for number in range(3):
        upstream.commit(fleets__a=f"a: {number}\n")
    with followed(upstream, folder) as repository:
        found = repository.fetch()
    assert not (found.root / ".git" / "objects").exists()
    assert (folder / "repo.git" / "shallow").read_text().strip() == found.revision.commit


def test_a_bare_repository_is_followed_by_its_plain_path(upstream: Repository, folder: Path, tmp_path: Path) -> None:
    """As `git clone` takes it."""
    upstream.git("clone", "--quiet", "--bare", str(upstream.root), str(tmp_path / "bare.git"))
    with git_repository.Repository(str(tmp_path / "bare.git"), "HEAD", "fleets", folder) as repository:
        assert text(repository.fetch()) == "a: 1\n"


# commit after commit


def test_a_new_commit_is_laid_out_beside_the_one_before(upstream: Repository, folder: Path) -> None:
    """Each in its own folder; `current` leads to the newest; those before the last one go."""
    with followed(upstream, folder) as repository:
        found = [repository.fetch()]
        for number in (2, 3):
            upstream.commit(fleets__a=f"a: {number}\n")
            found.append(repository.fetch())
            assert (folder / "current" / "fleets" / "a.yaml").read_text() == f"a: {number}\n"
        assert repository.fetch() == found[-1]
    assert [text(each) for each in found[1:]] == ["a: 2\n", "a: 3\n"]
    assert commits(folder) == {each.revision.commit for each in found[1:]}
    assert len(list((folder / "repo.git" / "worktrees").iterdir())) == 2


def test_a_forced_push_is_followed(upstream: Repository, folder: Path) -> None:
    """To a history of its own, and back to where it was."""
    first = upstream.git("rev-parse", "HEAD")
    with structlog.testing.capture_logs() as logged, followed(upstream, folder) as repository:
        repository.fetch()
        upstream.git("checkout", "--quiet", "--orphan", "other")
        upstream.commit(fleets__a="a: other\n")
        upstream.git("branch", "--force", "main")
        assert text(repository.fetch()) == "a: other\n"
        upstream.git("branch", "--force", "main", first)
        assert text(repository.fetch()) == "a: 1\n"
        assert (folder / "current").readlink() == Path(first)
    assert not logged, "it need not begin anew for that"


def test_who_reads_through_the_link_never_finds_it_missing(upstream: Repository, folder: Path) -> None:
    """It changes in one step, and what it led to stays for a while."""
    stop, seen, failed = threading.Event(), set[str](), list[OSError]()

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add((folder / "current" / "fleets" / "a.yaml").read_text())
            except OSError as error:
                failed.append(error)

    with followed(upstream, folder) as repository:
        repository.fetch()
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(2, 5):
                upstream.commit(fleets__a=f"a: {number}\n")
                repository.fetch()
        finally:
            stop.set()
            reader.join()
    assert not failed
    assert seen <= {f"a: {number}\n" for number in range(1, 5)}
    assert len(seen) > 1


def test_the_last_checkout_is_known_after_a_restart(upstream: Repository, folder: Path) -> None:
    """Also while the repository is out of reach."""
    with followed(upstream, folder) as repository:
        assert repository.current() is None
        commit = repository.fetch().revision.commit
    upstream.root.rename(upstream.root.with_name("away"))
    with followed(upstream, folder) as repository:
        last = repository.current()
        assert last is not None
        assert (text(last), last.revision.commit) == ("a: 1\n", commit)


# what goes wrong


def away(upstream: Repository) -> None:
    """Let the repository vanish."""
    upstream.root.rename(upstream.root.with_name("away"))


def unbranched(upstream: Repository) -> None:
    """Let the branch vanish."""
    upstream.git("switch", "--quiet", "--create", "other")
    upstream.git("branch", "--quiet", "-D", "main")


def unfoldered(upstream: Repository) -> None:
    """Let a commit take the folder away."""
    upstream.git("mv", "fleets", "moved")
    upstream.commit()


def linked(upstream: Repository) -> None:
    """Let a commit put a link to elsewhere in the folder's place."""
    upstream.git("mv", "fleets", "moved")
    (upstream.root / "fleets").symlink_to("/etc")
    upstream.commit()


@pytest.mark.parametrize(
    ("trouble", "kind", "match"),
    [
        (away, errors.HostError, "cannot list refs of"),
        (unbranched, errors.InputError, "no branch or tag 'main'"),
        (unfoldered, errors.InputError, "fleets does not exist in commit"),
        (linked, errors.InputError, "fleets is a symlink"),
    ],
)
def test_a_fetch_that_fails_keeps_the_last_checkout(
    upstream: Repository,
    folder: Path,
    trouble: Callable[[Repository], None],
    kind: type[errors.KwokfleetError],
    match: str,
) -> None:
    """It says what, where and what next, as often as it is tried."""
    with followed(upstream, folder) as repository:
        first = repository.fetch()
        trouble(upstream)
        for _ in range(2):
            with pytest.raises(kind, match=match) as caught:
                repository.fetch()
            assert caught.value.hint
        assert text(repository.current()) == "a: 1\n"
        assert commits(folder) == {first.revision.commit}


def test_it_heals_when_the_repository_is_back(upstream: Repository, folder: Path) -> None:
    """Nothing is remembered of the failure."""
    with followed(upstream, folder) as repository:
        repository.fetch()
        away(upstream)
        with pytest.raises(errors.HostError):
            repository.fetch()
        upstream.root.with_name("away").rename(upstream.root)
        upstream.commit(fleets__a="a: 2\n")
        assert text(repository.fetch()) == "a: 2\n"


def test_a_commit_that_is_not_there_is_said(upstream: Repository, folder: Path) -> None:
    """By what git says of it; nothing of ours is taken for damaged."""
    with structlog.testing.capture_logs() as logged, followed(upstream, folder, "1" * 40) as repository:
        for _ in range(2):
            with pytest.raises(errors.HostError, match="not our ref"):
                repository.fetch()
    assert not logged


def test_a_damaged_store_is_made_anew(upstream: Repository, folder: Path) -> None:
    """As after a power failure: objects are empty; the last checkout is still there meanwhile."""
    with followed(upstream, folder) as repository:
        repository.fetch()
    for path in (folder / "repo.git" / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"")
    upstream.commit(fleets__a="a: 2\n")
    with followed(upstream, folder) as repository:
        assert text(repository.current()) == "a: 1\n"
        assert text(repository.fetch()) == "a: 2\n"


@pytest.mark.parametrize(
    ("url", "ref", "path"),
    [
        ("--upload-pack=x", "main", ""),
        ("ext::sh -c x", "main", ""),
        ("https://host/a", "-x", ""),
        ("https://host/a", "main", "../x"),
        ("https://host/a", "main", "/etc"),
    ],
)
def test_what_git_might_misunderstand_is_refused_at_once(folder: Path, url: str, ref: str, path: str) -> None:
    """Before anything is run or made."""
    with pytest.raises(errors.InputError) as caught:
        git_repository.Repository(url, ref, path, folder)
    assert caught.value.hint
    assert not folder.exists()


def test_no_password_is_said(folder: Path) -> None:
    """Not in the error, its hint or the log: of no address, not even a wrong one."""
    url = "http://me:hunter2@127.0.0.1:1/a.git"
    with (
        structlog.testing.capture_logs() as logged,
        git_repository.Repository(url, "main", "", folder) as repository,
        pytest.raises(errors.HostError) as caught,
    ):
        repository.fetch()
    with pytest.raises(errors.InputError) as refused:
        git_repository.Repository("ftp://me:hunter2@127.0.0.1/a.git", "main", "", folder)
    assert "http://127.0.0.1:1/a.git" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {refused.value} {refused.value.hint} {logged}"


def test_without_the_program_it_is_said(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        followed(upstream, folder) as repository,
        pytest.raises(errors.HostError, match="git is not installed") as caught,
    ):
        repository.fetch()
    assert "install" in caught.value.hint
