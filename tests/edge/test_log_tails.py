import itertools
from pathlib import Path

from kwokfleet.embedded import logs


def test_the_last_lines_are_returned_in_order(tmp_path: Path) -> None:
    """Also for files larger than one block, and for missing files."""
    large, small = tmp_path / "large.log", tmp_path / "small.log"
    large.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(5000)))
    small.write_text("only\n")
    got = list(logs.lines([large, small, tmp_path / "none.log"], tail=3, follow=False))
    assert [(file.name, line.split(" x")[0]) for file, line in got] == [
        ("large.log", "line 4997"),
        ("large.log", "line 4998"),
        ("large.log", "line 4999"),
        ("small.log", "only"),
    ]


def test_a_tail_of_zero_returns_no_lines(tmp_path: Path) -> None:
    """`--tail 0` is used with --follow."""
    (tmp_path / "a.log").write_text("old\n")
    assert list(logs.lines([tmp_path / "a.log"], tail=0, follow=False)) == []


def test_following_yields_complete_lines_also_of_a_new_file(tmp_path: Path) -> None:
    """A recreated log is read from its beginning."""
    file = tmp_path / "a.log"
    file.write_text("first\nsec")
    following = logs.lines([file], tail=1, follow=True)
    assert next(following) == (file, "first")
    with file.open("a") as stream:
        stream.write("ond\nthi")
    assert next(following) == (file, "second")
    with file.open("a") as stream:
        stream.write("rd\n")
    assert next(following) == (file, "third")
    file.write_text("new\n")
    assert list(itertools.islice(following, 1)) == [(file, "new")]
