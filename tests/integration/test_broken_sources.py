"""Invalid files: nothing is deleted for them, and the error is reported."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import fleet_folder

Manifest = dict[str, Any]


def test_an_empty_or_missing_folder_deletes_nothing(fleets: fleet_folder.FleetFolder) -> None:
    """Exit code 2; the error names `kwokfleet delete`."""
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


def truncate(path: Path) -> None:
    """Truncate the file."""
    path.write_text(path.read_text()[:60])


def set_invalid_value(path: Path) -> None:
    """Write a negative number of replicas."""
    path.write_text(path.read_text().replace('"replicas": 2', '"replicas": -2'))


def set_invalid_encoding(path: Path) -> None:
    """Write invalid UTF-8."""
    path.write_bytes(b"# gr\xfc\xdfe\n" + path.read_bytes())


def replace_by_dangling_link(path: Path) -> None:
    """Replace the file by a dangling symlink."""
    path.unlink()
    path.symlink_to("gone.yaml")


def make_unreadable(path: Path) -> None:
    """Remove the right to read the file."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)


@pytest.mark.parametrize(
    "break_file", [truncate, set_invalid_value, set_invalid_encoding, replace_by_dangling_link, make_unreadable]
)
def test_an_invalid_file_withholds_only_its_fleet(
    fleets: fleet_folder.FleetFolder, break_file: Callable[[Path], None]
) -> None:
    """The other fleet is synced, nothing is deleted, and the exit code is 2."""
    fleets.write(fleets.a, p=1, q=1)
    fleets.write(fleets.b, p=2)
    fleets.sync()
    break_file(fleets.file(fleets.b))
    fleets.write(fleets.a, {"prune": {"maxPercent": 100}}, p=3)
    output = fleets.sync(code=2)
    assert fleets.file(fleets.b).name in output
    assert (fleets.count(fleets.a, "p"), fleets.count(fleets.a, "q"), fleets.count(fleets.b)) == (3, 1, 2)
    assert fleets.run("diff").returncode == 2


def test_an_invalid_file_of_a_new_fleet_is_an_error(fleets: fleet_folder.FleetFolder) -> None:
    """Sync exits with 2, although the cluster has no object of the fleet."""
    fleets.write(fleets.a, p=1)
    fleets.write(fleets.b, p=2)
    set_invalid_value(fleets.file(fleets.b))
    fleets.sync(code=2)
    assert (fleets.count(fleets.a), fleets.count(fleets.b)) == (1, 0)
    assert fleets.run("status").returncode == 1


def test_diff_names_invalid_files_as_not_compared(fleets: fleet_folder.FleetFolder) -> None:
    """With and without other differences."""
    fleets.write(fleets.a, p=1)
    fleets.sync()
    fleets.write(fleets.b, p=2)
    set_invalid_value(fleets.file(fleets.b))
    unknown = f"not compared, because of errors: {fleets.file(fleets.b)}"
    same = fleets.run("diff")
    assert (same.returncode, "no differences" in same.stderr) == (2, False)
    assert f"no other differences; {unknown}" in same.stderr
    fleets.write(fleets.a, p=2)
    other = fleets.run("diff")
    assert (other.returncode, unknown in other.stderr) == (2, True)
    assert "1 to create" in other.stderr


def test_an_invalid_kwok_controller_withholds_everything(fleets: fleet_folder.FleetFolder) -> None:
    """It is unknown how kwok must run."""
    fleets.write(fleets.a, p=1)
    fleets.sync()
    (fleets.folder / "kwok.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: k}\nspec: {shards: -1}\n"
    )
    fleets.write(fleets.a, p=2)
    assert "kwok.yaml" in fleets.sync(code=2)
    assert fleets.count(fleets.a) == 1
