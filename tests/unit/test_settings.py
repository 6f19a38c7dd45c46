import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import kwokfleet
from kwokfleet import errors, settings

PACKAGE = Path(kwokfleet.__file__).parent
CHART = PACKAGE.parent / "deploy/chart/kwokfleet/values.yaml"


def test_defaults_follow_the_xdg_base_directories() -> None:
    """With nothing set, state and cache are where other command-line tools keep theirs."""
    read = settings.from_environment({"HOME": "/home/ada"})
    assert read.data_dir == Path("/home/ada/.local/share/kwokfleet")
    assert read.cache_dir == Path("/home/ada/.cache/kwokfleet")
    assert read.bin_dir is None


def test_xdg_variables_are_honoured_when_absolute() -> None:
    """The XDG specification says that a relative path is to be ignored."""
    environ = {"HOME": "/home/ada", "XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "relative"}
    read = settings.from_environment(environ)
    assert read.data_dir == Path("/data/kwokfleet")
    assert read.cache_dir == Path("/home/ada/.cache/kwokfleet")


def test_own_variables_beat_all_others() -> None:
    """KWOKFLEET_* is exact: nothing is appended to it."""
    environ = {"HOME": "/h", "XDG_DATA_HOME": "/d", "KWOKFLEET_DATA_DIR": "/mine", "KWOKFLEET_BIN_DIR": "/bins"}
    read = settings.from_environment(environ)
    assert (read.data_dir, read.bin_dir) == (Path("/mine"), Path("/bins"))


def test_a_wrong_choice_names_the_right_ones() -> None:
    """A typo in a variable is an error with the known values, not a silent default."""
    with pytest.raises(errors.InputError, match="KWOKFLEET_LOG_LEVEL=loud") as caught:
        settings.from_environment({"KWOKFLEET_LOG_LEVEL": "loud"})
    assert "debug, info, warning, error" in caught.value.hint


def test_choices_are_read_without_regard_to_case() -> None:
    """INFO is info."""
    assert settings.from_environment({"KWOKFLEET_LOG_LEVEL": "DEBUG"}).log_level is settings.LogLevel.DEBUG


def test_an_unset_log_level_is_none() -> None:
    """Commands choose their level then."""
    assert settings.from_environment({}).log_level is None


def test_only_settings_reads_the_environment() -> None:
    """A variable that another module reads is in no list of variables."""
    reads = re.compile(r"\bos\.(environ|getenv)\b")
    readers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if reads.search(path.read_text())}
    assert readers == {"settings.py"}


def test_a_child_process_gets_the_chosen_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice it gets all of them."""
    monkeypatch.setenv("ADA", "1")
    monkeypatch.setenv("BOB", "2")
    assert settings.child_environment()["ADA"] == "1"
    assert settings.child_environment(lambda name: name in ("BOB", "EVE")) == {"BOB": "2"}


def test_the_chart_has_the_same_defaults() -> None:
    """Its values repeat the git interval."""
    values = YAML(typ="safe").load(CHART)
    assert values["source"]["git"]["interval"] == f"{settings.GIT_INTERVAL.seconds // 60}m"
