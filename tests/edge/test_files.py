"""Fleet files on disk."""

import itertools
import os
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.source import files


def names(snapshot: files.FileSnapshot) -> list[str]:
    """Return the names of the files."""
    return [Path(file.path).name for file in snapshot.files]


def rules(snapshot: files.FileSnapshot) -> list[tuple[str, str]]:
    """Return the problems by file name."""
    return [(Path(problem.path).name, problem.rule) for problem in snapshot.problems]


def test_a_tree_is_read_completely_and_in_order(tmp_path: Path) -> None:
    """YAML and JSON files at any depth, without hidden files."""
    for name in ("b.yaml", "a/z.yml", "a/b/c.json", ".hidden.yaml", ".git/x.yaml", "README.md", "trace.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a: 1\n")
    assert names(files.read(tmp_path)) == ["c.json", "z.yml", "b.yaml"]


def test_a_single_file_is_a_tree(tmp_path: Path) -> None:
    """With any name."""
    (tmp_path / "x.fleet").write_text("a: 1\n")
    assert names(files.read(tmp_path / "x.fleet")) == ["x.fleet"]


def test_a_config_map_volume_is_read_once(tmp_path: Path) -> None:
    """Its files are links through ..data into a hidden folder; after a swap the new files are read."""
    for version in ("..2026_01", "..2026_02"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "fleet.yaml").write_text(f"version: {version}\n")
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "fleet.yaml").symlink_to("..data/fleet.yaml")
    first = files.read(tmp_path)
    assert [file.text for file in first.files] == ["version: ..2026_01\n"]
    (tmp_path / "..data_tmp").symlink_to("..2026_02")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    second = files.read(tmp_path)
    assert [file.text for file in second.files] == ["version: ..2026_02\n"]
    assert first.digest != second.digest


@pytest.mark.parametrize("hidden", [".worktrees/abc", "rev-abc"])
def test_a_git_sync_checkout_is_read_once(tmp_path: Path, hidden: str) -> None:
    """The link and its target are the same files, for either path."""
    (tmp_path / hidden / "fleets").mkdir(parents=True)
    (tmp_path / hidden / "fleets" / "a.yaml").write_text("a: 1\n")
    (tmp_path / "current").symlink_to(hidden)
    assert names(files.read(tmp_path / "current" / "fleets")) == ["a.yaml"]
    assert names(files.read(tmp_path)) == ["a.yaml"]


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    """A committed link must not read /etc/passwd."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.yaml").write_text("a: 1\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link.yaml").symlink_to("../outside/secret.yaml")
    (tree / "folder").symlink_to("../outside")
    snapshot = files.read(tree)
    assert names(snapshot) == []
    assert rules(snapshot) == [("folder", "outside"), ("link.yaml", "outside")]


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    """Broken links, pipes, invalid UTF-8, large files; other files are read."""
    (tmp_path / "good.yaml").write_text("a: 1\n")
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "utf16.yaml").write_bytes("a: 1\n".encode("utf-16"))
    with (tmp_path / "large.yaml").open("wb") as stream:
        stream.truncate(50 * 1024 * 1024)
    snapshot = files.read(tmp_path)
    assert names(snapshot) == ["good.yaml"]
    assert rules(snapshot) == [
        ("dangling.yaml", "unreadable"),
        ("large.yaml", "file-too-large"),
        ("latin.yaml", "not-utf-8"),
        ("loop.yaml", "unreadable"),
        ("pipe.yaml", "unreadable"),
        ("utf16.yaml", "not-utf-8"),
    ]
    latin = next(problem for problem in snapshot.problems if problem.path.endswith("latin.yaml"))
    assert (latin.line, latin.column) == (2, 7)


def test_a_folder_that_contains_itself_is_read_once(tmp_path: Path) -> None:
    """A link to a parent folder must not cause an endless loop."""
    (tmp_path / "a.yaml").write_text("a: 1\n")
    (tmp_path / "again").symlink_to(".")
    assert names(files.read(tmp_path)) == ["a.yaml"]


def test_the_digest_depends_on_contents_not_times(tmp_path: Path) -> None:
    """It changes with a text, a name or an unreadable file."""
    (tmp_path / "a.yaml").write_text("a: 1\n")
    first = files.read(tmp_path).digest
    os.utime(tmp_path / "a.yaml", (0, 0))
    assert files.read(tmp_path).digest == first
    (tmp_path / "a.yaml").write_text("a: 2\n")
    second = files.read(tmp_path).digest
    (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
    third = files.read(tmp_path).digest
    (tmp_path / "c.yaml").symlink_to("nowhere")
    assert len({first, second, third, files.read(tmp_path).digest}) == 4


def test_a_missing_path_is_an_error_with_a_hint(tmp_path: Path) -> None:
    """There are no files to read."""
    with pytest.raises(errors.InputError, match="no such file") as caught:
        files.read(tmp_path / "nowhere")
    assert caught.value.hint


def test_a_tree_is_stable_when_two_reads_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is being written is not stable; afterwards its last contents are returned."""
    target = tmp_path / "a.yaml"
    target.write_text("a: 0\n")
    numbers = itertools.count(1)
    # Each wait between two reads is followed by a write, however busy the machine is.
    monkeypatch.setattr("kwokfleet.source.files.time.sleep", lambda _s: target.write_text(f"a: {next(numbers)}\n"))
    with pytest.raises(errors.DeadlineError, match="still being written"):
        files.read_stable(tmp_path, timeout_s=0.1)
    words = iter(["a: almost\n", "a: last\n", "a: last\n"])
    monkeypatch.setattr("kwokfleet.source.files.time.sleep", lambda _s: target.write_text(next(words)))
    assert [file.text for file in files.read_stable(tmp_path).files] == ["a: last\n"]
    assert list(words) == []


def test_a_reference_must_stay_in_the_folder_or_checkout(tmp_path: Path) -> None:
    """References to other paths are rejected."""
    checkout = tmp_path / "checkout"
    (checkout / "fleets").mkdir(parents=True)
    (checkout / ".git").mkdir()
    (checkout / "stages.yaml").write_text("a: 1\n")
    (tmp_path / "secret.yaml").write_text("a: 1\n")
    (checkout / "fleets" / "link.yaml").symlink_to("../../secret.yaml")
    within = files.boundary(checkout / "fleets")
    referrer = str(checkout / "fleets" / "a.yaml")
    assert within == checkout
    assert isinstance(files.read_reference(within, referrer, "../stages.yaml"), files.File)
    for name in ("../../secret.yaml", "link.yaml", str(tmp_path / "secret.yaml"), "nowhere.yaml", "..", "a\0b"):
        assert isinstance(files.read_reference(within, referrer, name), str)


def test_a_write_replaces_the_file_atomically(tmp_path: Path) -> None:
    """Mode and links are preserved; no temporary file is left."""
    target = tmp_path / "a.yaml"
    target.write_text("old\n")
    target.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to("a.yaml")
    files.write(tmp_path / "link.yaml", "new\n")
    assert target.read_text() == "new\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "link.yaml"]


def test_the_digest_does_not_depend_on_the_path(tmp_path: Path) -> None:
    """A folder with another name, a ConfigMap volume, or another path to it."""
    for name in ("here", "there/deeper"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "a.yaml").write_text("a: 1")
    first = files.read(tmp_path / "here").digest
    assert files.read(tmp_path / "there" / "deeper").digest == first
    assert files.read(tmp_path / "there" / ".." / "here").digest == first
