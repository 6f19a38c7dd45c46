"""Worker thread that applies the changes of one Fleet, so that a slow Fleet delays no other."""

import threading
from collections.abc import Callable, Sequence

import structlog

from kwokfleet import errors
from kwokfleet.reconcile import sync
from kwokfleet.reconcile.changes import Change
from kwokfleet.reconcile.outcomes import Outcome
from kwokfleet.source import loader

log = structlog.get_logger()


class FleetWorker(threading.Thread):
    """Applies the changes of one Fleet. It can be cancelled."""

    def __init__(
        self,
        session: sync.Sync,
        loaded: loader.Loaded,
        fleet: str,
        changes: Sequence[Change],
        on_finish: Callable[["FleetWorker"], None],
    ) -> None:
        super().__init__(name=f"fleet-worker-{fleet}", daemon=True)
        self._sync, self.loaded, self.fleet, self.changes, self._on_finish = session, loaded, fleet, changes, on_finish
        self._cancel_requested = threading.Event()
        self.outcomes = list[Outcome]()
        self.error = ""
        """Why the worker stopped early; empty if it did not."""

    @property
    def cancelled(self) -> bool:
        """Whether the worker was cancelled; changes that it did not make are not failures."""
        return self._cancel_requested.is_set()

    def cancel(self) -> None:
        """Stop: the file has changed, or the leader lease is lost."""
        self._cancel_requested.set()

    def run(self) -> None:
        """Apply the changes."""
        try:
            client = self._sync.sender.with_stop(self._cancel_requested)
            self.outcomes = self._sync.apply_changes(self.loaded, self.changes, client)
        except errors.KwokfleetError as error:
            self.error = str(error)
        except Exception as error:  # a bug must not block later passes of this Fleet
            log.exception("fleet_worker_failed", fleet=self.fleet)
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._on_finish(self)
