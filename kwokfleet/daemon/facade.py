"""Thread-safe view of a running daemon: the HTTP API, `kwokfleet status` and `kwokfleet test` use it."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import orjson

import kwokfleet
from kwokfleet.daemon import daemon, listing, next_wakeup, overview
from kwokfleet.daemon.snapshot import Event, ScheduledTime, ShardSnapshot, Snapshot, SourceSnapshot, fleet_snapshots
from kwokfleet.daemon.trigger import PassReason
from kwokfleet.kube import objects
from kwokfleet.kwok import shard
from kwokfleet.measure import result_store
from kwokfleet.reconcile import plan_formats, status_writer

HUNG_S = 180.0
"""A worker without an iteration for this long counts as hung."""
_RESULT_FIELDS = (
    "fleet", "wave", "run", "start", "end", "state", "templateKind", "revision", "objects", "pods", "gaps", "gates",
)  # fmt: skip
"""Fields of a Result that a list shows."""


class DaemonFacade:
    """Reads a daemon from other threads; it changes the daemon only by requests."""

    def __init__(self, running: daemon.Daemon) -> None:
        self._daemon = running
        self._digest, self._digest_since = "", datetime.now(UTC)
        self._last_good_load: datetime | None = None

    # reads

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        running = self._daemon
        view, writer = running.managed.view(), running.status_writer
        statuses = {name: writer.status_of(name) for name in tuple(writer.fleets)}
        counts: dict[str, Counter[str]] = {}
        for observed in view.objects.values():
            state = "deleting" if observed.deleting else "ready" if observed.ready else "unready"
            counts.setdefault(observed.key.kind, Counter())[state] += 1
        return Snapshot(
            version=kwokfleet.__version__,
            identity=running.options.identity,
            started=running.started_at,
            leading=running.client.leads,
            leader=running.client.leader,
            suspended=running.suspended,
            synced=running.synced,
            source=self._source(),
            passes=running.event_log.passes,
            waiting=running.trigger.pending(),
            fleets=fleet_snapshots(running.sync.policies, view.objects, statuses, self._scheduled()),
            kwok=tuple(map(_shard_snapshot, running.kwok.statuses() if running.kwok else ())),
            objects={kind: dict(sorted(states.items())) for kind, states in sorted(counts.items())},
            newest_event=running.event_log.newest,
            measured=running.runs.measured(),
        )

    def _source(self) -> SourceSnapshot:
        files, description = self._daemon.files, self._daemon.source.description()
        loaded = files.loaded
        frozen = loaded.frozen if loaded else "the files have not been loaded yet"
        if description["digest"] != self._digest:
            self._digest, self._digest_since = description["digest"], datetime.now(UTC)
        if loaded is not None and loaded.usable and not frozen:
            self._last_good_load = files.loaded_at
        return SourceSnapshot(
            **description,
            since=self._digest_since,
            succeeded=self._last_good_load,
            problems=loaded.problems if loaded else (),
            frozen=frozen or self._daemon.source.error,
        )

    def _scheduled(self) -> dict[str, list[ScheduledTime]]:
        loaded, now = self._daemon.files.loaded, datetime.now(UTC)
        scheduled: dict[str, list[ScheduledTime]] = {}
        for fleet in loaded.tree.fleets if loaded else ():
            due = next_wakeup.next_change([fleet], now)
            if due is not None:
                scheduled[fleet.name] = [ScheduledTime(due, "pool schedule or window")]
        return scheduled

    def plan(self) -> str:
        """Return the last Plan as JSON."""
        return plan_formats.to_json(self._daemon.plan, whole=False)

    def list_objects(self, resource: str, fleet: str) -> list[dict[str, Any]]:
        """Return nodes, stages, waves or runs, of one Fleet or of all."""
        if resource in listing.LISTS:
            inventory = self._daemon.managed.view().objects.values()
            return listing.LISTS[resource]([item for item in inventory if not fleet or item.fleet == fleet])
        fleets = sorted(self._daemon.status_writer.fleets.items())
        selected = [manifest for name, manifest in fleets if not fleet or name == fleet]
        return list(overview.waves(selected) if resource == "waves" else overview.runs(selected))

    def results(self, fleet: str, wave: str, limit: int) -> list[dict[str, Any]]:
        """Return summaries of Results, the latest first."""
        stored = self._stored_results(fleet, wave)[:limit]
        return [summary for result in stored if (summary := _summary(result)) is not None]

    def result_file(self, fleet: str, wave: str, run: str, file: str) -> str:
        """Return the path of a file of a Result; empty if there is none."""
        paths = (result.folder / file for result in self._stored_results(fleet, wave, run))
        return next((str(path) for path in paths if path.is_file()), "")

    def _stored_results(self, *names: str) -> list[result_store.StoredResult]:
        return result_store.ResultStore(self._daemon.options.results).find(*names)

    def events(self, after: int, timeout_s: float) -> list[Event]:
        """Return the events after a number; wait for one if there are none."""
        return self._daemon.event_log.after(after, timeout_s)

    def readiness(self) -> tuple[bool, list[str]]:
        """Return whether the daemon does its work, and a sentence for each part."""
        running = self._daemon
        if not running.client.leads:
            return True, [f"standby; leader: {running.client.leader or 'none'}"]
        problem = running.kwok_problem
        sentences = [
            f"leader; cluster cache is stale: {running.stale}" if running.stale else "leader",
            "synced" if running.synced else "not synced yet",
            problem or ("kwok drives the nodes" if running.kwok else "kwok is not managed by this daemon"),
        ]
        return running.synced and not problem and not running.stale, sentences

    def liveness(self) -> tuple[bool, str]:
        """Return whether the worker makes progress, and why not."""
        if not self._daemon.worker.is_alive():
            return False, "the worker thread has ended"
        idle_s = time.monotonic() - self._daemon.worker_active_at
        return idle_s < HUNG_S, f"the worker thread has not progressed for {idle_s:.0f} s" if idle_s >= HUNG_S else ""

    # requests

    def request_pass(self, reason: PassReason) -> None:
        """Request a pass."""
        self._daemon.trigger.request(reason)

    def handle_push(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Handle a webhook of a git host."""
        return self._daemon.source.handle_webhook(headers, body)

    def suspend(self, fleet: str, on: bool) -> None:  # noqa: FBT001  # the requested state
        """Suspend or resume a Fleet; without a name, the whole daemon."""
        if fleet:
            status_writer.annotate(self._daemon.sync.sender, fleet, {objects.SUSPEND: "true" if on else None})
        else:
            self._daemon.suspended = on
        state = "suspended" if on else "resumed"
        self._daemon.event_log.record("suspended", f"{fleet or 'the daemon'} is {state}", fleet=fleet, on=on)
        self._daemon.trigger.request(PassReason.ASKED)

    def approve(self, digest: str) -> bool:
        """Approve a withheld Plan; return whether there is one with that digest."""
        for withheld in self._daemon.plan.withheld:
            if digest and withheld.digest == digest:
                status_writer.annotate(self._daemon.sync.sender, withheld.fleet, {objects.APPROVED: digest})
                self._daemon.event_log.record("approved", f"plan {digest} was approved", fleet=withheld.fleet)
                self._daemon.trigger.request(PassReason.ASKED)
                return True
        return False


def _shard_snapshot(status: shard.ShardStatus) -> ShardSnapshot:
    return ShardSnapshot(*(getattr(status, field.name) for field in fields(ShardSnapshot)))


def _summary(stored: result_store.StoredResult) -> dict[str, Any] | None:
    """Return the fields that a list shows, read without parsing the whole Result."""
    try:
        fields = orjson.loads((stored.folder / result_store.RESULT).read_bytes())
        return {name: fields[name] for name in _RESULT_FIELDS}
    except (OSError, ValueError, KeyError, TypeError):  # not written yet, or of another version
        return None
