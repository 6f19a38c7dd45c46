"""Store: the current objects of one kind, watched or, for a rarely used kind, polled."""

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import observed, requests
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.informer import reflector
from kwokfleet.kube.informer.reflector import WatchApi
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Kind

POLL_S = 290.0
"""Interval of polls."""
RARE_KINDS = frozenset(requests.KWOK_KINDS)
"""Kinds that are polled until the first managed object."""

ChangeListener = Callable[[str, AbstractSet[str]], None]
"""Gets a changed kind and its Fleets; "" means any Fleet."""


class Poller(threading.Thread):
    """Polls stores that are not watched."""

    def __init__(self, stores: "Sequence[Store]", stop: threading.Event) -> None:
        super().__init__(name="informer-poller", daemon=True)
        self._stores, self._stopping = stores, stop

    def run(self) -> None:
        """Poll until all stores are watched or the Informer is closed; after a failure, again soon."""
        backoff = Backoff(reflector.FIRST_PAUSE_S, reflector.MAX_PAUSE_S)
        while polled := [store for store in self._stores if not store.is_watching]:
            for store in polled:
                if self._stopping.is_set():
                    return
                store.poll()
            settled = all(store.is_settled for store in polled if not store.is_watching)
            if settled:
                backoff.reset()
            self._stopping.wait(POLL_S if settled else backoff.next_s())


class Store(reflector.Reflector):
    """The current objects of one kind."""

    def __init__(
        self, api: WatchApi, kind: Kind, selectors: tuple[str, str], changed: threading.Condition, stop: threading.Event
    ) -> None:
        super().__init__(api, kind, selectors, stop)
        self._changed = changed
        self._factory = observed.ObservedFactory()
        self._listed: dict[ObjectKey, Observed] = {}
        """The incomplete list."""
        self.objects: dict[ObjectKey, Observed] = {}
        self.changes = 0
        """Counts changes of `objects`."""
        self.on_change: ChangeListener = lambda _kind, _fleets: None
        self._changed_fleets: set[str] = set()
        self._has_changes = False
        self.problem = "has not been listed yet"
        """Why the objects are unknown; empty if they are known."""
        self.is_settled = False
        """Whether the objects are known or rejected."""
        self.is_missing = False
        self.is_watching = False

    def start_watch(self) -> None:
        """Start the watch if it is not running."""
        with self._changed:
            if not self.is_watching and not self._stopping.is_set():
                self.is_watching = True
                self.start()

    def poll(self) -> None:
        """Check for managed objects; start the watch if there are any."""
        try:
            request = requests.list_page(self.kind, self._selector, fields=self._fields, metadata_only=True)
            response = self._api.send(request)
        except errors.UnreachableError as error:
            self._mark_unknown(str(error))
            return
        with self._changed:
            if self.is_watching:
                return
            if response.status != HTTPStatus.OK:
                self._handle_rejection(response)
            elif (page := response.json()).get("items"):
                self._mark_unknown("is being listed")
                self.start_watch()
            elif self.problem or self.is_missing:
                self.on_list_start()
                self._complete_list(str(page["metadata"]["resourceVersion"]))

    def _mark_unknown(self, problem: str) -> None:
        with self._changed:
            if not self.is_watching:
                self._resume_version = ""
                self.on_state(problem, settled=False)

    def on_state(self, problem: str, *, settled: bool = True) -> None:
        """Record the state and wake up waiting threads."""
        with self._changed:
            self.problem, self.is_settled = problem, settled
            self._changed.notify_all()
        if settled:
            self.on_change(self.kind.kind, {""})

    def on_kind_missing(self) -> None:
        """Keep no objects: a missing kind has none."""
        with self._changed:
            super().on_kind_missing()
            self.is_missing = True

    def on_list_start(self) -> None:
        """Collect the list beside the known objects."""
        self._listed = {}

    def on_list_item(self, manifest: Manifest, received: float) -> None:
        """Add an object to the list."""
        del received
        item = self._factory.from_manifest(self.kind.api_version, self.kind.kind, manifest)
        self._listed[item.key] = item

    def on_list_end(self) -> None:
        """Replace the objects by the list."""
        with self._changed:
            old = self.objects
            self.objects = {key: self._unless_equivalent(old.get(key), new) for key, new in self._listed.items()}
            self.changes += 1
            self.is_missing, self._listed = False, {}

    def batch_lock(self) -> AbstractContextManager[object]:
        """Return the lock of the Informer: readers see all events of a chunk or none."""
        return self._changed

    def on_batch_end(self, received: float) -> None:
        """Wake up waiting threads and call the listener."""
        del received
        if self._has_changes:
            self._has_changes = False
            with self._changed:
                self._changed.notify_all()
        if self._changed_fleets:
            fleets, self._changed_fleets = self._changed_fleets, set()
            self.on_change(self.kind.kind, fleets)

    def on_event(self, event_type: str, manifest: Manifest, received: float) -> None:
        """Update one object, and record whether a relevant field changed."""
        del received
        new = self._factory.from_manifest(self.kind.api_version, self.kind.kind, manifest)
        old = self.objects.get(new.key)
        if event_type == "DELETED":
            self.objects.pop(new.key, None)
        else:
            self.objects[new.key] = self._unless_equivalent(old, new)
        if self.objects.get(new.key) is not old:
            self._has_changes = True
            self.changes += 1
            self._changed_fleets |= {version.fleet for version in (old, new) if version is not None}

    @staticmethod
    def _unless_equivalent(old: Observed | None, new: Observed) -> Observed:
        """Return the old object if the new one is equivalent, so that identity tells changes."""
        return old if old is not None and old.is_equivalent(new) else new
