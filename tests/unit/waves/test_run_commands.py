"""RunCommands in the annotation of a Fleet."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.kube import objects
from kwokfleet.waves import run_commands
from kwokfleet.waves.run_commands import RunAction, RunCommand


def test_command_numbers_grow() -> None:
    """Also above the last number in the Ledger."""
    text = run_commands.with_command("", RunAction.CANCEL, "load", "0")
    assert run_commands.parse(text) == [RunCommand(1, RunAction.CANCEL, "load", "0")]
    text = run_commands.with_command(text, RunAction.RUN, "load", above=7)
    assert run_commands.parse(text)[-1] == RunCommand(8, RunAction.RUN, "load")


def test_the_annotation_keeps_the_latest_commands() -> None:
    """Its size is bounded; the numbers grow."""
    text = ""
    for _ in range(100):
        text = run_commands.with_command(text, RunAction.RUN, "load")
    assert [command.number for command in run_commands.parse(text)] == list(range(81, 101))


@given(st.text())
def test_invalid_commands_are_skipped(text: str) -> None:
    """The annotation can be edited by hand."""
    added = run_commands.with_command(text, RunAction.RETRY, "load", "0")
    assert run_commands.parse(added)[-1].wave == "load"


def test_commands_are_read_by_fleet() -> None:
    """A Fleet without the annotation has none."""
    annotated = {
        "metadata": {"name": "a", "annotations": {objects.RUN_COMMANDS: "2 run load,1 cancel load 0, nonsense"}}
    }
    commands = run_commands.by_fleet([annotated, {"metadata": {"name": "b"}}])
    assert commands == {"a": [RunCommand(1, RunAction.CANCEL, "load", "0"), RunCommand(2, RunAction.RUN, "load")]}
