"""The shelf: what is put there is found again, and nothing else is ever read, written or removed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kwokfleet.measure import result_store
from kwokfleet.measure.result import PodTimes, Result
from kwokfleet.measure.result_store import Notes, ResultStore

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def made(run: str, start: datetime = NOON, fleet: str = "lab", revision: str = "") -> Result:
    """Return a Result."""
    return Result(fleet=fleet, wave="load", run=run, start=start, revision=revision)


def test_what_was_put_is_found_the_latest_first(tmp_path: Path) -> None:
    """By Fleet, Wave, the name of the Run, or that of its folder; a second one takes the place of the first."""
    kept = ResultStore(tmp_path)
    for number in range(3):
        kept.put(made(str(number), NOON + timedelta(hours=number)), [PodTimes(name=f"p{number}", namespace="lab")])
    kept.put(made("2", NOON + timedelta(hours=2), revision="abc"))
    kept.put(made("0", fleet="other"))
    assert [(each.fleet, each.run) for each in kept.find("lab")] == [("lab", "2"), ("lab", "1"), ("lab", "0")]
    [latest] = kept.find("lab", "load", "20260302T140000Z-2")
    assert (latest.result().revision, [pod.name for pod in latest.pods()]) == ("abc", ["p2"])


@pytest.mark.parametrize("name", ["..", ".", "*", "?", "[a-z]*", "a/b", "../lab", "/etc", "lab\n", "lab\0", "~", "-x"])
def test_no_name_leads_out_of_the_shelf_or_means_several(tmp_path: Path, name: str) -> None:
    """Whatever somebody writes into an address."""
    kept = ResultStore(tmp_path / "lab" / "results")
    kept.put(made("1"))
    ResultStore(tmp_path).put(made("1"))
    for names in ((name, "load", "1"), ("lab", name, "1"), ("lab", "load", name)):
        assert kept.find(*names) == []


def test_the_oldest_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    """A folder with a file that somebody else put there is kept, however old."""
    kept = ResultStore(tmp_path)
    folders = [kept.put(made(str(number), NOON + timedelta(hours=number)), []) for number in range(6)]
    (folders[0] / "remarks.txt").write_text("keep this")
    (tmp_path / "lab" / "load" / "my-plots").mkdir()
    kept.remove_oldest("lab", "load", keep=3)
    assert [folder.exists() for folder in folders] == [True, False, False, True, True, True]
    assert (tmp_path / "lab" / "load" / "my-plots").is_dir()


def test_notes_survive_a_crash_but_for_a_torn_line(tmp_path: Path) -> None:
    """Who goes on writes after the last whole line."""
    first = Notes(tmp_path / "run")
    assert list(first) == []
    first.add([b"one", b"two"])
    with (tmp_path / "run" / result_store.NOTES).open("ab") as file:
        file.write(b"thr")  # and dies
    first.close()
    second = Notes(tmp_path / "run")
    assert list(second) == [b"one\n", b"two\n", b"thr"]
    second.add([b"four"])
    assert list(second) == [b"one\n", b"two\n", b"four\n"]
    second.close()


def test_half_a_result_is_never_seen(tmp_path: Path) -> None:
    """A file is replaced whole; nothing else is left in the folder."""
    kept = ResultStore(tmp_path)
    folder = kept.put(made("1"), [])
    kept.put(made("1", revision="abc"), [])
    assert sorted(file.name for file in folder.iterdir()) == [result_store.PODS, result_store.RESULT]
