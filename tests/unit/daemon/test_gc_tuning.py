"""Garbage is looked for in quiet moments, and then all of it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from kwokfleet.daemon import gc_tuning


class Knot:
    """Something that holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_a_quiet_moment_frees_what_only_holds_itself() -> None:
    """What no count of references frees is freed then."""
    tidy = gc_tuning.IdleCollector()
    gone = weakref.ref(Knot())
    assert gone() is not None
    tidy.idle()
    assert gone() is None


def test_what_was_kept_once_is_freed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lived through one quiet moment and is dropped then is freed in another."""
    tidy = gc_tuning.IdleCollector()
    knot = Knot()
    gone = weakref.ref(knot)
    tidy.idle()
    del knot
    gc.collect()
    assert gone() is not None, "what has lived through a quiet moment is not looked at by the way"
    monkeypatch.setattr(gc_tuning, "INTERVAL_S", 0.0)
    tidy.idle()
    assert gone() is None


def test_one_quiet_moment_after_the_other_costs_nothing() -> None:
    """Not every quiet moment is one to look at everything."""
    tidy = gc_tuning.IdleCollector()
    tidy.idle()
    knots = weakref.WeakSet({Knot(), Knot()})
    tidy.idle()
    assert len(knots) == 2
