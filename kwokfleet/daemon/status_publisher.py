"""Writes Fleet.status, at most twice a second, and reports changes of the Ready condition.

The Ledger of Runs is part of Fleet.status, so a publication also persists it.
"""

import time
from collections.abc import Mapping, Sequence

from kwokfleet.daemon import event_log
from kwokfleet.kube import events
from kwokfleet.kube.informer import informer
from kwokfleet.reconcile import fleet_status, status_writer, sync
from kwokfleet.reconcile.changes import Plan
from kwokfleet.reconcile.outcomes import Outcome
from kwokfleet.source import loader

INTERVAL_S = 0.5


class StatusPublisher:
    """Publishes the status of all Fleets. Used by the worker thread, except `requested`."""

    def __init__(
        self,
        writer: status_writer.StatusWriter,
        session: sync.Sync,
        managed: informer.Informer,
        log: event_log.EventLog,
    ) -> None:
        self._writer, self._sync, self._managed, self._event_log = writer, session, managed, log
        self._published_at = 0.0
        self._published: tuple[object, str] = (None, "")
        """Objects and kwok problem at the last publication."""
        self.requested = False
        """Whether to publish at the next opportunity."""

    @property
    def due_at(self) -> float:
        """Earliest time of the next publication, on the monotonic clock."""
        return self._published_at + INTERVAL_S

    def is_due(self, kwok_problem: str, *, requested: bool) -> bool:
        """Return whether the status has to be published now; a throttled request stays pending."""
        if time.monotonic() < self.due_at:
            self.requested = True
            return False
        objects, problem = self._published
        unchanged = objects is self._managed.view().objects and problem == kwok_problem
        return requested or self.requested or not unchanged

    def publish(
        self,
        loaded: loader.Loaded,
        effective: loader.Loaded,
        plan: Plan,
        failed: Sequence[Outcome],
        details: fleet_status.StatusContext,
    ) -> None:
        """Write the status of every Fleet; what is unchanged is not written."""
        self._published_at, self.requested = time.monotonic(), False
        objects = self._managed.view().objects
        statuses = self._sync.fleet_statuses(effective, plan, failed, details)
        unread = loaded.broken | ((statuses.keys() - self._sync.policies.keys()) if not loaded.whole else set())
        for name in statuses.keys() & unread:
            statuses[name] = fleet_status.with_last_desired(statuses[name], self._writer.status_of(name))
        before = {name: _ready_condition(self._writer.status_of(name)) for name in statuses}
        existing = {observed.fleet for observed in objects.values()} if loaded.whole else None
        written = self._writer.write(statuses, existing)
        self._published = (objects, details.degraded) if written else (None, "")
        for name, status in statuses.items():
            self._report_change(name, before[name], _ready_condition(status))

    def _report_change(self, fleet: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Log and emit an Event when the Ready condition changed; progress alone is not reported."""
        unchanged = (before.get("status"), before.get("reason")) == (after["status"], after["reason"])
        if unchanged or after["reason"] == "Progressing":
            return
        ready = after["status"] == "True"
        self._event_log.record("fleet", after["message"], fleet=fleet, warning=not ready, reason=after["reason"])
        kind = events.NORMAL if ready else events.WARNING
        self._writer.emit_event(fleet, after["reason"], after["message"], kind=kind)


def _ready_condition(status: Mapping[str, object]) -> Mapping[str, str]:
    conditions = status.get("conditions")
    listed: list[dict[str, str]] = conditions if isinstance(conditions, list) else []
    return next((condition for condition in listed if condition["type"] == "Ready"), {})
