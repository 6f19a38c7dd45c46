"""Garbage collection while the daemon is idle."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from kwokfleet.daemon import gc_tuning


class Cycle:
    """Reference cycle: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _restore_collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_an_idle_collection_frees_reference_cycles() -> None:
    """Reference counts do not free them."""
    collector = gc_tuning.IdleCollector()
    reference = weakref.ref(Cycle())
    assert reference() is not None
    collector.idle()
    assert reference() is None


def test_an_object_that_survived_a_collection_is_freed_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen in between."""
    collector = gc_tuning.IdleCollector()
    cycle = Cycle()
    reference = weakref.ref(cycle)
    collector.idle()
    del cycle
    gc.collect()
    assert reference() is not None, "a frozen object is not visited by other collections"
    monkeypatch.setattr(gc_tuning, "INTERVAL_S", 0.0)
    collector.idle()
    assert reference() is None


def test_frequent_idle_calls_do_not_collect() -> None:
    """A full collection runs at most every ten minutes."""
    collector = gc_tuning.IdleCollector()
    collector.idle()
    cycles = weakref.WeakSet({Cycle(), Cycle()})
    collector.idle()
    assert len(cycles) == 2
