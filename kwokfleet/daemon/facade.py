"""What a running daemon shows and lets others ask: the HTTP API and `kwokfleet status` see it through this."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

import kwokfleet
from kwokfleet.daemon import daemon, listing, next_wakeup, overview, snapshot
from kwokfleet.daemon.trigger import Why
from kwokfleet.kube import objects
from kwokfleet.measure import result_store
from kwokfleet.reconcile import plan_formats, status_writer

HUNG_S = 180.0
"""A worker that has not come round for so long hangs."""
_SHORT = (
    "fleet",
    "wave",
    "run",
    "start",
    "end",
    "state",
    "templateKind",
    "revision",
    "objects",
    "pods",
    "gaps",
    "gates",
)
"""What a list of Results shows of each."""


class Face:
    """Looks at a daemon from other threads; changes nothing but by asking."""

    def __init__(self, shown: daemon.Daemon) -> None:
        self._daemon = shown
        self._digest, self._since = "", datetime.now(UTC)
        self._succeeded: datetime | None = None

    # looking

    def picture(self) -> snapshot.Picture:
        """Return the present state."""
        shown = self._daemon
        view = shown.mirror.view()
        statuses = {name: shown.recorder.status(name) for name in tuple(shown.recorder.there)}
        counts: dict[tuple[str, str], int] = {}
        for each in view.objects.values():
            state = "deleting" if each.deleting else "ready" if each.ready else "unready"
            counts[each.key.kind, state] = counts.get((each.key.kind, state), 0) + 1
        return snapshot.Picture(
            kwokfleet.__version__,
            shown.how.me,
            shown.began,
            shown.leads,
            shown.leader,
            shown.suspended,
            shown.synced,
            self._source(),
            shown.journal.passes,
            shown.trigger.waiting(),
            snapshot.fleets(shown.sync.rules, view.objects, statuses, self._due()),
            self._kwok(),
            counts,
            shown.journal.newest,
            shown.runs.measured(),
        )

    def _source(self) -> snapshot.Source:
        loaded, told = self._daemon.loaded, self._daemon.feed.told()
        frozen = loaded.frozen if loaded else "nothing has been read yet"
        if told["digest"] != self._digest:
            self._digest, self._since = told["digest"], datetime.now(UTC)
        if loaded is not None and loaded.usable and not frozen:
            self._succeeded = self._daemon.read_at
        return snapshot.Source(
            told["kind"],
            told["where"],
            told["revision"],
            told["digest"],
            self._since,
            self._succeeded,
            loaded.problems if loaded else (),
            frozen or self._daemon.feed.trouble,
        )

    def _due(self) -> dict[str, list[snapshot.Due]]:
        loaded, now = self._daemon.loaded, datetime.now(UTC)
        found: dict[str, list[snapshot.Due]] = {}
        for fleet in loaded.tree.fleets if loaded else ():
            moment = next_wakeup.next_moment([fleet], now)
            if moment is not None:
                found[fleet.name] = [snapshot.Due(moment, "a pool's schedule or a window")]
        return found

    def _kwok(self) -> tuple[snapshot.Shard, ...]:
        keeping = self._daemon.caretaker
        return tuple(
            snapshot.Shard(
                each.shard,
                each.state.value,
                each.pid,
                each.port,
                each.restarts,
                each.why,
                each.memory,
                each.lag_s,
                each.pod,
            )
            for each in (keeping.statuses() if keeping else ())
        )

    def plan(self) -> str:
        """Return what differs as JSON."""
        return plan_formats.to_json(self._daemon.left, whole=False)

    def listed(self, thing: str, fleet: str) -> list[dict[str, Any]]:
        """Return the nodes, stages, waves or runs there are."""
        if thing in listing.LISTS:
            found = self._daemon.mirror.view().objects.values()
            return listing.LISTS[thing]([each for each in found if not fleet or each.fleet == fleet])
        told = [each for name, each in sorted(self._daemon.recorder.there.items()) if not fleet or name == fleet]
        return list(overview.waves(told) if thing == "waves" else overview.runs(told))

    def results(self, fleet: str, wave: str, limit: int) -> list[dict[str, Any]]:
        """Return the Results there are, in short, the latest first."""
        shown = self._kept(fleet, wave)[:limit]
        return [short for each in shown if (short := _short(each)) is not None]

    def result_file(self, fleet: str, wave: str, run: str, file: str) -> str:
        """Return where a Run's Result, or its pods, are kept; empty if there are none."""
        found = (each.folder / file for each in self._kept(fleet, wave, run))
        return next((str(each) for each in found if each.is_file()), "")

    def _kept(self, *names: str) -> list[result_store.StoredResult]:
        where = self._daemon.how.results
        return result_store.ResultStore(where).find(*names) if where is not None else []

    def events(self, after: int, timeout_s: float) -> list[snapshot.Event]:
        """Return what has happened since."""
        return self._daemon.journal.after(after, timeout_s)

    def ready(self) -> tuple[bool, list[str]]:
        """Return whether what we are here for is being done, and a sentence about each part of it."""
        shown = self._daemon
        if not shown.leads:
            return True, [f"standing by: {shown.leader or 'nobody'} leads"]
        lacking = shown.caretaker.lacking() if shown.caretaker else ""
        sentences = [
            f"leading, but blind: {shown.blind}" if shown.blind else "leading",
            "synced once" if shown.synced else "not synced yet",
            lacking or ("kwok drives the nodes" if shown.caretaker else "kwok is not looked after here"),
        ]
        return shown.synced and not lacking and not shown.blind, sentences

    def live(self) -> tuple[bool, str]:
        """Return whether the worker still works."""
        if not self._daemon.worker.is_alive():
            return False, "the worker has ended"
        since = time.monotonic() - self._daemon.turned
        return since < HUNG_S, f"the worker has not come round for {since:.0f} s" if since >= HUNG_S else ""

    # asking

    def ask(self, why: Why) -> None:
        """Ask for a pass."""
        self._daemon.ask(why)

    def pushed(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Take a git host's word."""
        return self._daemon.feed.pushed(headers, body)

    def suspend(self, fleet: str, on: bool) -> None:  # noqa: FBT001  # the state that is asked for
        """Leave a Fleet, or everything, as it is; or go on."""
        word = "suspended" if on else "resumed"
        if fleet:
            status_writer.annotate(self._daemon.sync.sender, fleet, {objects.SUSPEND: "true" if on else None})
        else:
            self._daemon.suspended = on
        self._daemon.journal.tell("suspended", f"{fleet or 'everything'} is {word}", fleet=fleet, on=on)
        self._daemon.ask(Why.ASKED)

    def approve(self, digest: str) -> bool:
        """Release a withheld plan."""
        for each in self._daemon.left.withheld:
            if digest and each.digest == digest:
                status_writer.annotate(self._daemon.sync.sender, each.fleet, {objects.APPROVED: digest})
                self._daemon.journal.tell("approved", f"{digest} was approved", fleet=each.fleet)
                self._daemon.ask(Why.ASKED)
                return True
        return False


def _short(each: result_store.StoredResult) -> dict[str, Any] | None:
    """Return what a list shows of a Result, read without making a value of all of it."""
    try:
        whole = orjson.loads((each.folder / result_store.RESULT).read_bytes())
        return {name: whole[name] for name in _SHORT}
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or another program's
        return None
