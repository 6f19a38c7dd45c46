"""Hands: each carries out what one Fleet's plan asks for, so that a Fleet that takes long delays no other."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from kwokfleet import errors
from kwokfleet.reconcile import sync
from kwokfleet.reconcile.changes import Change
from kwokfleet.source import loader

if TYPE_CHECKING:
    from kwokfleet.reconcile.outcomes import Outcome

log = structlog.get_logger()


class Hand(threading.Thread):
    """Makes the changes of one Fleet, in a thread of its own, and can be told to leave off."""

    def __init__(
        self,
        sync: sync.Sync,
        loaded: loader.Loaded,
        fleet: str,
        changes: Sequence[Change],
        finished: Callable[["Hand"], None],
    ) -> None:
        super().__init__(name=f"hand-{fleet}", daemon=True)
        self._sync, self.loaded, self.fleet, self.changes, self._finished = sync, loaded, fleet, changes, finished
        self._stop_asked = threading.Event()
        self.outcomes: list[Outcome] = []
        self.trouble = ""
        """Why it did not come to its end; empty if it did."""

    @property
    def cancelled(self) -> bool:
        """Whether it was told to leave off: what it did not do is nobody's fault."""
        return self._stop_asked.is_set()

    def cancel(self) -> None:
        """Leave off: what was asked for is no longer wanted, or we may not write any more."""
        self._stop_asked.set()

    def run(self) -> None:
        """Do it."""
        try:
            self.outcomes = self._sync.make(self.loaded, self.changes, self._sync.sender.lane(self._stop_asked))
        except errors.KwokfleetError as error:
            self.trouble = str(error)
        except Exception as error:  # a bug must not take the Fleet's later passes with it
            log.exception("hand_failed", fleet=self.fleet)
            self.trouble = f"{type(error).__name__}: {error}"
        finally:
            self._finished(self)
