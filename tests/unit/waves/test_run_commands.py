"""Orders about Runs, as they are written on a Fleet in the cluster."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.kube import objects
from kwokfleet.waves import run_commands
from kwokfleet.waves.run_commands import RunAction, RunCommand


def test_orders_are_added_with_growing_numbers() -> None:
    """Also when the Ledger has heeded one that is no longer written there."""
    text = run_commands.with_command("", RunAction.CANCEL, "load", "0")
    assert run_commands.parse(text) == [RunCommand(1, RunAction.CANCEL, "load", "0")]
    text = run_commands.with_command(text, RunAction.RUN, "load", above=7)
    assert run_commands.parse(text)[-1] == RunCommand(8, RunAction.RUN, "load")


def test_only_the_last_ones_are_kept() -> None:
    """An annotation must not grow for ever; its numbers do."""
    text = ""
    for _ in range(100):
        text = run_commands.with_command(text, RunAction.RUN, "load")
    assert [each.number for each in run_commands.parse(text)] == list(range(81, 101))


@given(st.text())
def test_what_is_no_order_is_left_out(text: str) -> None:
    """Somebody may have written it by hand."""
    added = run_commands.with_command(text, RunAction.RETRY, "load", "0")
    assert run_commands.parse(added)[-1].wave == "load"


def test_orders_are_found_on_their_fleets() -> None:
    """A Fleet without any has none."""
    annotated = {
        "metadata": {"name": "a", "annotations": {objects.RUN_COMMANDS: "2 run load,1 cancel load 0, nonsense"}}
    }
    found = run_commands.by_fleet([annotated, {"metadata": {"name": "b"}}])
    assert found == {"a": [RunCommand(1, RunAction.CANCEL, "load", "0"), RunCommand(2, RunAction.RUN, "load")]}
