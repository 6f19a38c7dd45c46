"""Removes the objects of one Run: each when its ttl has passed, finally all of them and their namespaces.

The only state is in the Ledger. Objects are found by the labels of exactly one Run, and deleted by UID, so a
foreign object with the same name is never deleted.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, discovery, objects, requests
from kwokfleet.render import workloads
from kwokfleet.waves import churn, run_executor
from kwokfleet.waves.churn import RunObject
from kwokfleet.waves.ledger import CleanupState, RunState, WaveLedger

log = structlog.get_logger()

MIN_INTERVAL_S, MAX_INTERVAL_S = 1.0, 30.0
"""Between two checks."""
MAX_BUSY_SHARE = 0.05
"""At most this share of the time is spent on checks."""
NAMESPACE_TIMEOUT_S = 10.0
"""A namespace that is not empty after this time is kept."""


class RunCleanup(run_executor.RunThread):
    """Removes the objects of one Run until none is left."""

    def __init__(
        self,
        services: run_executor.RunServices,
        context: workloads.RunContext,
        wave_ledger: Callable[[], WaveLedger | None],
    ) -> None:
        super().__init__("cleanup", services, context)
        self._wave_ledger, self._ends = wave_ledger, workloads.completes(context)
        self._selector = churn.run_selector(*self._key)
        self.state = CleanupState.DUE

    def run(self) -> None:
        """Check for expired objects and remove them, until none is left."""
        while not self._stop_event.is_set() and self.state is CleanupState.DUE:
            started = time.monotonic()
            try:
                self._check()
            except errors.NotLeadingError:
                return
            except errors.ClusterError as error:
                log.debug("cleanup_delayed", wave=self._key[1], run=self._key[2], error=str(error))
            except Exception:  # no other thread would remove the rest
                log.exception("cleanup_failed", wave=self._key[1], run=self._key[2])
            self._stop_event.wait(max(self._interval_s(), (time.monotonic() - started) / MAX_BUSY_SHARE))
        self._services.deadlines.remove(self._tasks)

    def _interval_s(self) -> float:
        wave = self._context.wave
        shortest = min(limit.total_seconds() for limit in (wave.ttl, wave.cleanup) if limit is not None)
        return min(max(shortest / 4, MIN_INTERVAL_S), MAX_INTERVAL_S)

    def _check(self) -> None:
        wave, now, wave_ledger = self._context.wave, datetime.now(UTC), self._wave_ledger()
        record = wave_ledger.run(self._context.run) if wave_ledger else None
        if record is None or (wave.ttl is None and record.ended_at is None):
            return
        kind = self._services.kinds.of_manifest(wave.template)
        manifests = client.list_objects(self._sender, kind, self._selector, metadata_only=not self._ends)
        run_objects = [
            churn.run_object(manifest, ends=self._ends)
            for manifest in manifests
            if objects.is_managed({**manifest, "kind": kind.kind})
        ]
        self._delete_all(kind, churn.expired(run_objects, wave.ttl, now))
        if record.state is RunState.RUNNING or record.ended_at is None:
            return
        is_cancelled = record.state is RunState.CANCELLED
        ended_at = record.ended_at if is_cancelled else churn.all_ended_at(run_objects, record.ended_at)
        if wave.cleanup is None:
            if not run_objects:
                self._finish()
        elif ended_at is not None and ended_at + wave.cleanup <= now:
            self._remove_all(kind, run_objects)

    def _remove_all(self, kind: requests.Kind, run_objects: Sequence[RunObject]) -> None:
        self._delete_all(kind, [item for item in run_objects if not item.deleting])
        remaining = client.list_objects(self._sender, kind, self._selector, metadata_only=True)
        if self._stop_event.is_set() or any(remaining):
            return  # the next check continues
        kept = self._remove_namespaces()
        if not self._stop_event.is_set():
            self._services.listener.timeline_mark(self._key, "; ".join(("cleaned up", *kept)))
            self._finish()

    def _finish(self) -> None:
        if not self._stop_event.is_set():
            self.state = CleanupState.DONE
            self._services.on_change()

    # deletion

    def _delete_all(self, kind: requests.Kind, run_objects: Sequence[RunObject]) -> None:
        self._run_all([partial(self._delete_object, kind, item) for item in run_objects])

    def _delete_object(self, kind: requests.Kind, item: RunObject) -> None:
        """Delete an object. After a failure, the next check finds it again."""
        if self._stop_event.is_set():
            return
        metadata = {"name": item.name} | ({"namespace": item.namespace} if item.namespace else {})
        try:
            self._sender.send(requests.delete_any(kind, {"metadata": metadata}, item.uid))
        except errors.ClusterError as error:
            log.debug("object_not_deleted", name=item.name, namespace=item.namespace, error=str(error))
        self._finish_pending()

    def _remove_namespaces(self) -> list[str]:
        """Delete empty namespaces of finished Runs; return a sentence for each one that is kept."""
        wave_ledger, selector = self._wave_ledger(), churn.wave_selector(*self._key[:2])
        running = {record.name for record in wave_ledger.running} if wave_ledger else set[str]()
        namespaces = {
            manifest["metadata"]["name"]: churn.run_object(manifest, ends=False)
            for manifest in client.list_objects(self._sender, requests.NAMESPACE, selector, metadata_only=True)
            if objects.labels(manifest).get(objects.RUN) not in running
        }
        deadline, occupants = time.monotonic() + NAMESPACE_TIMEOUT_S, dict[str, str]()
        while namespaces and not self._stop_event.is_set():
            occupants = discovery.occupied_namespaces(self._sender, namespaces.keys())
            empty = [namespace for name, namespace in namespaces.items() if name not in occupants]
            self._delete_all(requests.NAMESPACE, empty)
            namespaces = {name: namespace for name, namespace in namespaces.items() if name in occupants}
            if namespaces and (time.monotonic() > deadline or self._stop_event.wait(MIN_INTERVAL_S)):
                break
        return [f"namespace {name} is kept: it contains {occupants[name]}" for name in sorted(namespaces)]
