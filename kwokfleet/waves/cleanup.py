"""What a Run leaves behind, removed: each object when its time is over, in the end all of it, and its namespaces.

Nothing is remembered but in the Ledger: the objects are found by their labels, those of exactly one Run, and
each is deleted by its UID, so that a namesake of somebody else's is never touched.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, discovery, objects, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import workloads
from kwokfleet.waves import churn, run_executor
from kwokfleet.waves.churn import RunObject
from kwokfleet.waves.ledger import CleanupState, RunState, WaveLedger

log = structlog.get_logger()

SHORTEST_S, LONGEST_S = 1.0, 30.0
"""Between two looks at what is there."""
SHARE = 0.05
"""Of the time, at most so much is spent looking."""
PATIENCE_S = 10.0
"""How long a namespace may take to become empty before it is left."""


class RunCleanup(threading.Thread):
    """Removes what is over of one Run, until there is nothing left to remove."""

    def __init__(
        self, tools: run_executor.RunServices, context: workloads.RunContext, page: Callable[[], WaveLedger | None]
    ) -> None:
        super().__init__(name=f"sweeper-{context.wave.name}-{context.run}", daemon=True)
        self._stop_asked = threading.Event()
        self._tools, self._context, self._page = tools, context, page
        self._name: run_executor.RunKey = (context.fleet.name, context.wave.name, context.run)
        self._selector = churn.run_selector(*self._name)
        self._sender = tools.sender.lane(self._stop_asked)
        self._line = tools.pacer.line()
        self._ends = workloads.completes(context)
        self._changed = threading.Condition()
        self._under_way = 0
        self.state = CleanupState.DUE

    def cancel(self) -> None:
        """Leave off."""
        self._stop_asked.set()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Look what is over, again and again, and remove it."""
        while not self._stop_asked.is_set() and self.state is CleanupState.DUE:
            began = time.monotonic()
            try:
                self._look()
            except errors.NotLeadingError:
                return
            except errors.ClusterError as error:
                log.debug("not_swept", wave=self._name[1], run=self._name[2], error=str(error))
            except Exception:  # it must not end here: nobody would remove what is left
                log.exception("sweep_failed", wave=self._name[1], run=self._name[2])
            self._stop_asked.wait(max(self._pause_s(), (time.monotonic() - began) / SHARE))
        self._line.close()

    def _pause_s(self) -> float:
        wave = self._context.wave
        shortest = min(each.total_seconds() for each in (wave.ttl, wave.cleanup) if each is not None)
        return min(max(shortest / 4, SHORTEST_S), LONGEST_S)

    def _look(self) -> None:
        wave, now, page = self._context.wave, datetime.now(UTC), self._page()
        entry = page.run(self._context.run) if page else None
        if entry is None or (wave.ttl is None and entry.ended is None):
            return
        kind = self._tools.kinds.kind(wave.template)
        found = client.list_objects(self._sender, kind, self._selector, metadata_only=not self._ends)
        mine = (each for each in found if objects.is_managed({**each, "kind": kind.kind}))
        things = [churn.run_object(each, ends=self._ends) for each in mine]
        self._remove(kind, churn.expired(things, wave.ttl, now))
        if entry.state is RunState.RUNNING or entry.ended is None:
            return
        over = entry.ended if entry.state is RunState.CANCELLED else churn.all_ended_at(things, entry.ended)
        if wave.cleanup is None:
            self._finish(done=not things)
        elif over is not None and over + wave.cleanup <= now:
            self._clean_up(kind, things)

    def _clean_up(self, kind: requests.Kind, things: Sequence[RunObject]) -> None:
        self._remove(kind, [each for each in things if not each.deleting])
        if self._stop_asked.is_set() or any(True for _ in self._listed(kind)):
            return  # not all are gone yet: they are looked at again
        kept = self._remove_namespaces()
        if not self._stop_asked.is_set():
            left = f", but not {'; '.join(kept)}" if kept else ""
            self._tools.audience.marked(self._name, f"cleaned up{left}")
            self._finish(done=True)

    def _finish(self, *, done: bool) -> None:
        if done and not self._stop_asked.is_set():
            self.state = CleanupState.DONE
            self._tools.news()

    def _listed(self, kind: requests.Kind) -> Iterator[Manifest]:
        return client.list_objects(self._sender, kind, self._selector, metadata_only=True)

    # deleting

    def _remove(self, kind: requests.Kind, things: Sequence[RunObject]) -> None:
        """Delete objects, many at once, in turn with what other Runs have to do."""
        with self._changed:
            self._under_way += len(things)
        now = time.monotonic()
        for each in things:
            self._line.put(now, partial(self._delete_one, kind, each))
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or self._stop_asked.is_set())

    def _delete_one(self, kind: requests.Kind, each: RunObject) -> None:
        """Delete an object; one that could not be is found again by the next look."""
        if self._stop_asked.is_set():
            return
        try:
            self._sender.send(requests.delete_any(kind, {"metadata": _named(each)}, each.uid))
        except errors.ClusterError as error:
            log.debug("not_deleted", name=each.name, namespace=each.namespace, error=str(error))
        with self._changed:
            self._under_way -= 1
            if not self._under_way:
                self._changed.notify_all()

    def _remove_namespaces(self) -> list[str]:
        """Remove the namespaces that Runs have made which are over, if nothing is in them; return those that stay."""
        page, selector = self._page(), churn.wave_selector(*self._name[:2])
        in_use = {each.name for each in page.running} if page else set[str]()
        mine = {
            each["metadata"]["name"]: churn.run_object(each, ends=False)
            for each in client.list_objects(self._sender, requests.NAMESPACE, selector, metadata_only=True)
            if objects.labels(each).get(objects.RUN) not in in_use
        }
        until, kept = time.monotonic() + PATIENCE_S, dict[str, str]()
        while mine and not self._stop_asked.is_set():
            kept = discovery.occupied_namespaces(self._sender, mine.keys())
            self._remove(requests.NAMESPACE, [each for name, each in mine.items() if name not in kept])
            mine = {name: each for name, each in mine.items() if name in kept}
            if mine and (time.monotonic() > until or self._stop_asked.wait(SHORTEST_S)):
                break
        return [f"namespace {name}: it holds {kept[name]}" for name in sorted(mine)]


def _named(each: RunObject) -> Manifest:
    return {"name": each.name} | ({"namespace": each.namespace} if each.namespace else {})
