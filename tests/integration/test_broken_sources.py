"""Files that cannot be used: nothing is deleted for them, and it is said."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import fleet_folder

Manifest = dict[str, Any]


def test_an_empty_or_missing_folder_is_no_order(fleets: fleet_folder.FleetFolder) -> None:
    """Exit code 2, what was not done, and how a fleet is removed."""
    fleets.write(fleets.a, p=2)
    fleets.sync()
    fleets.file(fleets.a).unlink()
    before = fleets.state()
    for command in (["sync", "--yes"], ["diff"], ["status"]):
        done = fleets.run(*command)
        assert done.returncode == 2, command
        assert "nothing was changed" in done.stderr
        assert "kwokfleet delete" in done.stderr
    fleets.folder.rmdir()
    assert fleets.run("sync", "--yes").returncode == 2
    assert fleets.state() == before


def syntax(path: Path) -> None:
    """Leave a file half written."""
    path.write_text(path.read_text()[:60])


def value(path: Path) -> None:
    """Write something that is not a number of nodes."""
    path.write_text(path.read_text().replace('"replicas": 2', '"replicas": -2'))


def encoding(path: Path) -> None:
    """Write it in another encoding."""
    path.write_bytes(b"# gr\xfc\xdfe\n" + path.read_bytes())


def link(path: Path) -> None:
    """Replace it by a link to nowhere."""
    path.unlink()
    path.symlink_to("gone.yaml")


def rights(path: Path) -> None:
    """Take away the right to read it."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)


@pytest.mark.parametrize("breaking", [syntax, value, encoding, link, rights])
def test_a_broken_file_holds_back_only_what_it_owns(
    fleets: fleet_folder.FleetFolder, breaking: Callable[[Path], None]
) -> None:
    """The good one beside it goes on, nothing vanishes, and the exit code is 2."""
    fleets.write(fleets.a, p=1, q=1)
    fleets.write(fleets.b, p=2)
    fleets.sync()
    breaking(fleets.file(fleets.b))
    fleets.write(fleets.a, {"prune": {"maxPercent": 100}}, p=3)
    said = fleets.sync(code=2)
    assert fleets.file(fleets.b).name in said
    assert (fleets.count(fleets.a, "p"), fleets.count(fleets.a, "q"), fleets.count(fleets.b)) == (3, 1, 2)
    assert fleets.run("diff").returncode == 2


def test_a_broken_file_of_a_new_fleet_is_not_passed_over(fleets: fleet_folder.FleetFolder) -> None:
    """Nothing of it is in the cluster yet, and still diff and sync end with 2."""
    fleets.write(fleets.a, p=1)
    fleets.write(fleets.b, p=2)
    value(fleets.file(fleets.b))
    fleets.sync(code=2)
    assert (fleets.count(fleets.a), fleets.count(fleets.b)) == (1, 0)
    assert fleets.run("status").returncode == 1


def test_diff_does_not_say_that_nothing_differs_where_it_could_not_compare(fleets: fleet_folder.FleetFolder) -> None:
    """Beside a broken file it says what it knows nothing of, whether or not something else differs."""
    fleets.write(fleets.a, p=1)
    fleets.sync()
    fleets.write(fleets.b, p=2)
    value(fleets.file(fleets.b))
    unknown = f"not compared, because of errors: {fleets.file(fleets.b)}"
    same = fleets.run("diff")
    assert (same.returncode, "no differences" in same.stderr) == (2, False)
    assert f"no other differences; {unknown}" in same.stderr
    fleets.write(fleets.a, p=2)
    other = fleets.run("diff")
    assert (other.returncode, unknown in other.stderr) == (2, True)
    assert "1 to create" in other.stderr


def test_while_it_is_unclear_how_kwok_runs_nothing_is_done(fleets: fleet_folder.FleetFolder) -> None:
    """A KwokController document with an error holds back everything."""
    fleets.write(fleets.a, p=1)
    fleets.sync()
    (fleets.folder / "kwok.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: k}\nspec: {shards: -1}\n"
    )
    fleets.write(fleets.a, p=2)
    assert "kwok.yaml" in fleets.sync(code=2)
    assert fleets.count(fleets.a) == 1
