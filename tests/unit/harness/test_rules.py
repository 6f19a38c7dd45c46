"""What `make test` runs."""

from pathlib import Path

from tests import __main__ as everything

TESTS = Path(__file__).parents[2]


def test_no_folder_of_tests_is_left_out() -> None:
    """A new one must be named; faults and the image have commands of their own."""
    there = {folder.name for folder in TESTS.iterdir() if folder.is_dir() and list(folder.glob("test_*.py"))}
    assert there == {everything.SHARED.name, *(each.name for each in everything.OTHERS), "faults", "image"}
