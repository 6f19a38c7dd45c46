"""Orders about Runs, as they are written on a Fleet in the cluster."""

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.core import orders
from kwokfleet.core.orders import Order, What
from kwokfleet.kube import objects


def test_orders_are_added_with_growing_numbers() -> None:
    """Also when the Ledger has heeded one that is no longer written there."""
    text = orders.added("", What.CANCEL, "load", "0")
    assert orders.read(text) == [Order(1, What.CANCEL, "load", "0")]
    text = orders.added(text, What.RUN, "load", above=7)
    assert orders.read(text)[-1] == Order(8, What.RUN, "load")


def test_only_the_last_ones_are_kept() -> None:
    """An annotation must not grow for ever; its numbers do."""
    text = ""
    for _ in range(100):
        text = orders.added(text, What.RUN, "load")
    assert [each.number for each in orders.read(text)] == list(range(81, 101))


@given(st.text())
def test_what_is_no_order_is_left_out(text: str) -> None:
    """Somebody may have written it by hand."""
    added = orders.added(text, What.RETRY, "load", "0")
    assert orders.read(added)[-1].wave == "load"


def test_orders_are_found_on_their_fleets() -> None:
    """A Fleet without any has none."""
    annotated = {"metadata": {"name": "a", "annotations": {objects.ORDERS: "2 run load,1 cancel load 0, nonsense"}}}
    found = orders.of([annotated, {"metadata": {"name": "b"}}])
    assert found == {"a": [Order(1, What.CANCEL, "load", "0"), Order(2, What.RUN, "load")]}
