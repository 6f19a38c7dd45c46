"""ResultStore: stored results are found, and no other file is read, written or deleted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kwokfleet.measure import result_store
from kwokfleet.measure.result import PodTimes, Result
from kwokfleet.measure.result_store import Notes, ResultStore

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def make_result(run: str, start: datetime = NOON, fleet: str = "lab", revision: str = "") -> Result:
    """Return a Result."""
    return Result(fleet=fleet, wave="load", run=run, start=start, revision=revision)


def test_results_are_found_newest_first(tmp_path: Path) -> None:
    """By Fleet, Wave, Run or folder name; a second result of a Run replaces the first."""
    store = ResultStore(tmp_path)
    for number in range(3):
        store.put(
            make_result(str(number), NOON + timedelta(hours=number)), [PodTimes(name=f"p{number}", namespace="lab")]
        )
    store.put(make_result("2", NOON + timedelta(hours=2), revision="abc"))
    store.put(make_result("0", fleet="other"))
    assert [(stored.fleet, stored.run) for stored in store.find("lab")] == [("lab", "2"), ("lab", "1"), ("lab", "0")]
    [latest] = store.find("lab", "load", "20260302T140000Z-2")
    assert (latest.result().revision, [pod.name for pod in latest.pods()]) == ("abc", ["p2"])


@pytest.mark.parametrize("name", ["..", ".", "*", "?", "[a-z]*", "a/b", "../lab", "/etc", "lab\n", "lab\0", "~", "-x"])
def test_a_name_cannot_leave_the_store_or_match_several_results(tmp_path: Path, name: str) -> None:
    """Names come from URLs."""
    store = ResultStore(tmp_path / "lab" / "results")
    store.put(make_result("1"))
    ResultStore(tmp_path).put(make_result("1"))
    for names in ((name, "load", "1"), ("lab", name, "1"), ("lab", "load", name)):
        assert store.find(*names) == []


def test_the_oldest_results_are_deleted_without_foreign_files(tmp_path: Path) -> None:
    """A folder with a foreign file is kept at any age."""
    store = ResultStore(tmp_path)
    folders = [store.put(make_result(str(number), NOON + timedelta(hours=number)), []) for number in range(6)]
    (folders[0] / "remarks.txt").write_text("keep this")
    (tmp_path / "lab" / "load" / "my-plots").mkdir()
    store.remove_oldest("lab", "load", keep=3)
    assert [folder.exists() for folder in folders] == [True, False, False, True, True, True]
    assert (tmp_path / "lab" / "load" / "my-plots").is_dir()


def test_notes_survive_a_crash_except_an_incomplete_line(tmp_path: Path) -> None:
    """Writing continues after the last complete line."""
    first = Notes(tmp_path / "run")
    assert list(first) == []
    first.add([b"one", b"two"])
    with (tmp_path / "run" / result_store.NOTES).open("ab") as file:
        file.write(b"thr")  # crash
    first.close()
    second = Notes(tmp_path / "run")
    assert list(second) == [b"one\n", b"two\n", b"thr"]
    second.add([b"four"])
    assert list(second) == [b"one\n", b"two\n", b"four\n"]
    second.close()


def test_an_incomplete_result_is_never_visible(tmp_path: Path) -> None:
    """Files are replaced atomically; no temporary file is left."""
    store = ResultStore(tmp_path)
    folder = store.put(make_result("1"), [])
    store.put(make_result("1", revision="abc"), [])
    assert sorted(file.name for file in folder.iterdir()) == [result_store.PODS, result_store.RESULT]
