"""Orders about Runs, as they are written on a Fleet in the cluster."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.kube import objects
from kwokfleet.waves import run_commands
from kwokfleet.waves.run_commands import Order, What


def test_orders_are_added_with_growing_numbers() -> None:
    """Also when the Ledger has heeded one that is no longer written there."""
    text = run_commands.added("", What.CANCEL, "load", "0")
    assert run_commands.read(text) == [Order(1, What.CANCEL, "load", "0")]
    text = run_commands.added(text, What.RUN, "load", above=7)
    assert run_commands.read(text)[-1] == Order(8, What.RUN, "load")


def test_only_the_last_ones_are_kept() -> None:
    """An annotation must not grow for ever; its numbers do."""
    text = ""
    for _ in range(100):
        text = run_commands.added(text, What.RUN, "load")
    assert [each.number for each in run_commands.read(text)] == list(range(81, 101))


@given(st.text())
def test_what_is_no_order_is_left_out(text: str) -> None:
    """Somebody may have written it by hand."""
    added = run_commands.added(text, What.RETRY, "load", "0")
    assert run_commands.read(added)[-1].wave == "load"


def test_orders_are_found_on_their_fleets() -> None:
    """A Fleet without any has none."""
    annotated = {"metadata": {"name": "a", "annotations": {objects.ORDERS: "2 run load,1 cancel load 0, nonsense"}}}
    found = run_commands.of([annotated, {"metadata": {"name": "b"}}])
    assert found == {"a": [Order(1, What.CANCEL, "load", "0"), Order(2, What.RUN, "load")]}
