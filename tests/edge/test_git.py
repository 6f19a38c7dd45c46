"""Git repository as a source, with the real git."""

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
    """Return the path of a folder that does not exist."""
    return tmp_path / "state" / "git"


def followed(upstream: Repository, folder: Path, ref: str = "main", path: str = "fleets") -> git_repository.Repository:
    """Open a repository as a source."""
    return git_repository.Repository(upstream.url, ref, path, folder)


def text(checkout: git_repository.Checkout | None) -> str:
    """Return the contents of `a.yaml`."""
    assert checkout is not None
    return (checkout.path / "a.yaml").read_text()


def commits(folder: Path) -> set[str]:
    """Return the commits that are checked out in a folder."""
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()} - {"repo.git"}


# fetched refs


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
    """Each resolves to its commit, also an annotated tag."""
    upstream.git("tag", "light")
    upstream.git("tag", "--annotate", "--message=x", "heavy")
    upstream.git("branch", "side/branch")
    with followed(upstream, folder, name) as repository:
        checkout = repository.fetch()
    assert checkout.revision == Revision(upstream.git("rev-parse", "HEAD"), branch)
    assert text(checkout) == "a: 1\n"


def test_a_commit_is_fetched_by_its_hash(upstream: Repository, folder: Path) -> None:
    """Also if no branch points to it."""
    first = upstream.git("rev-parse", "HEAD")
    upstream.commit(fleets__a="a: 2\n")
    with followed(upstream, folder, first) as repository:
        checkout = repository.fetch()
    assert (text(checkout), checkout.revision) == ("a: 1\n", Revision(first))


@pytest.mark.parametrize("path", ["", ".", "./fleets/", "fleets/a.yaml"])
def test_the_path_is_resolved_in_the_checkout(upstream: Repository, folder: Path, path: str) -> None:
    """The root, a folder, a file."""
    with followed(upstream, folder, path=path) as repository:
        checkout = repository.fetch()
    assert checkout.path == checkout.root / path
    assert [file.text for file in files.read(checkout.path).files] == ["a: 1\n"]


def test_only_the_newest_commit_is_fetched(upstream: Repository, folder: Path) -> None:
    """With a history of any length."""
    for number in range(3):
        upstream.commit(fleets__a=f"a: {number}\n")
    with followed(upstream, folder) as repository:
        checkout = repository.fetch()
    assert not (checkout.root / ".git" / "objects").exists()
    assert (folder / "repo.git" / "shallow").read_text().strip() == checkout.revision.commit


def test_a_bare_repository_can_be_a_local_path(upstream: Repository, folder: Path, tmp_path: Path) -> None:
    """As for `git clone`."""
    upstream.git("clone", "--quiet", "--bare", str(upstream.root), str(tmp_path / "bare.git"))
    with git_repository.Repository(str(tmp_path / "bare.git"), "HEAD", "fleets", folder) as repository:
        assert text(repository.fetch()) == "a: 1\n"


# new commits


def test_a_new_commit_is_checked_out_into_a_new_folder(upstream: Repository, folder: Path) -> None:
    """`current` links to the newest; only the previous checkout is kept."""
    with followed(upstream, folder) as repository:
        checkouts = [repository.fetch()]
        for number in (2, 3):
            upstream.commit(fleets__a=f"a: {number}\n")
            checkouts.append(repository.fetch())
            assert (folder / "current" / "fleets" / "a.yaml").read_text() == f"a: {number}\n"
        assert repository.fetch() == checkouts[-1]
    assert [text(checkout) for checkout in checkouts[1:]] == ["a: 2\n", "a: 3\n"]
    assert commits(folder) == {checkout.revision.commit for checkout in checkouts[1:]}
    assert len(list((folder / "repo.git" / "worktrees").iterdir())) == 2


def test_a_forced_push_is_followed(upstream: Repository, folder: Path) -> None:
    """To an unrelated history, and back."""
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
    assert not logged, "the store was created again"


def test_the_link_to_the_checkout_always_exists(upstream: Repository, folder: Path) -> None:
    """It is replaced atomically, and its previous target is kept for a while."""
    stop, texts, failed = threading.Event(), set[str](), list[OSError]()

    def read() -> None:
        while not stop.is_set():
            try:
                texts.add((folder / "current" / "fleets" / "a.yaml").read_text())
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
    assert texts <= {f"a: {number}\n" for number in range(1, 5)}
    assert len(texts) > 1


def test_the_last_checkout_is_known_after_a_restart(upstream: Repository, folder: Path) -> None:
    """Also if the repository is unreachable."""
    with followed(upstream, folder) as repository:
        assert repository.current() is None
        commit = repository.fetch().revision.commit
    upstream.root.rename(upstream.root.with_name("away"))
    with followed(upstream, folder) as repository:
        last = repository.current()
        assert last is not None
        assert (text(last), last.revision.commit) == ("a: 1\n", commit)


# failures


def rename_repository(upstream: Repository) -> None:
    """Rename the repository."""
    upstream.root.rename(upstream.root.with_name("away"))


def delete_branch(upstream: Repository) -> None:
    """Delete the branch."""
    upstream.git("switch", "--quiet", "--create", "other")
    upstream.git("branch", "--quiet", "-D", "main")


def move_folder(upstream: Repository) -> None:
    """Commit the deletion of the folder."""
    upstream.git("mv", "fleets", "moved")
    upstream.commit()


def replace_folder_by_link(upstream: Repository) -> None:
    """Commit a link to another path in place of the folder."""
    upstream.git("mv", "fleets", "moved")
    (upstream.root / "fleets").symlink_to("/etc")
    upstream.commit()


@pytest.mark.parametrize(
    ("trouble", "kind", "match"),
    [
        (rename_repository, errors.HostError, "cannot list refs of"),
        (delete_branch, errors.InputError, "no branch or tag 'main'"),
        (move_folder, errors.InputError, "fleets does not exist in commit"),
        (replace_folder_by_link, errors.InputError, "fleets is a symlink"),
    ],
)
def test_a_failed_fetch_keeps_the_last_checkout(
    upstream: Repository,
    folder: Path,
    trouble: Callable[[Repository], None],
    kind: type[errors.KwokfleetError],
    match: str,
) -> None:
    """Each attempt reports the error, the repository and a hint."""
    with followed(upstream, folder) as repository:
        first = repository.fetch()
        trouble(upstream)
        for _ in range(2):
            with pytest.raises(kind, match=match) as caught:
                repository.fetch()
            assert caught.value.hint
        assert text(repository.current()) == "a: 1\n"
        assert commits(folder) == {first.revision.commit}


def test_a_fetch_succeeds_when_the_repository_is_back(upstream: Repository, folder: Path) -> None:
    """The failure leaves no state."""
    with followed(upstream, folder) as repository:
        repository.fetch()
        rename_repository(upstream)
        with pytest.raises(errors.HostError):
            repository.fetch()
        upstream.root.with_name("away").rename(upstream.root)
        upstream.commit(fleets__a="a: 2\n")
        assert text(repository.fetch()) == "a: 2\n"


def test_a_missing_commit_is_reported(upstream: Repository, folder: Path) -> None:
    """The error quotes git; the local store is not treated as damaged."""
    with structlog.testing.capture_logs() as logged, followed(upstream, folder, "1" * 40) as repository:
        for _ in range(2):
            with pytest.raises(errors.HostError, match="not our ref"):
                repository.fetch()
    assert not logged


def test_a_damaged_store_is_created_again(upstream: Repository, folder: Path) -> None:
    """Objects may be empty after a power failure; the last checkout stays until then."""
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
def test_arguments_that_git_could_misread_are_rejected(folder: Path, url: str, ref: str, path: str) -> None:
    """Before git runs and before a folder is created."""
    with pytest.raises(errors.InputError) as caught:
        git_repository.Repository(url, ref, path, folder)
    assert caught.value.hint
    assert not folder.exists()


def test_no_password_is_reported(folder: Path) -> None:
    """Not in the error, its hint or the log, also for an invalid URL."""
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


def test_a_missing_git_is_reported(
    upstream: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        followed(upstream, folder) as repository,
        pytest.raises(errors.HostError, match="git is not installed") as caught,
    ):
        repository.fetch()
    assert "install" in caught.value.hint
