"""Informer: a cache of managed objects that follows the cluster.

Only objects with our label are listed, and only some fields of them are kept. A kind is *unknown* until its first
list is complete, and whenever its watch is broken; then a missing object must not be taken for absent.

kwok has a dozen kinds that few fleets use. A thread and a connection for each would be most of an Informer's cost.
They are polled instead, and watched from the first managed object on, or before kwokfleet writes one.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from kwokfleet.kube import requests
from kwokfleet.kube.informer.reflector import STOP_TIMEOUT_S, RestartListener, WatchApi
from kwokfleet.kube.informer.store import RARE_KINDS, ChangeListener, Poller, Store
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Kind

MAX_WAIT_S = 1.0
"""Longest single wait, so that signals are handled."""
POLLERS = 3


@dataclass(frozen=True, slots=True)
class CacheView:
    """The content of an Informer at one moment."""

    objects: Mapping[ObjectKey, Observed]
    unknown: Mapping[str, str]
    """Unknown kinds, with the reason."""
    missing: frozenset[str]
    """Kinds that the cluster does not have."""
    versions: Mapping[str, int]
    """The last seen resource version of each kind."""
    settled: bool = True
    """Whether each kind is known or rejected; otherwise waiting may help."""


class Informer:
    """Watches some kinds. Close it, or use it in a `with` block."""

    def __init__(
        self,
        api: WatchApi,
        kinds: Sequence[Kind] = requests.MANAGED_KINDS,
        selector: str = requests.DECLARED_SELECTOR,
        fields: str = "",
    ) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._stores = [Store(api, kind, (selector, fields), self._changed, self._stop) for kind in kinds]
        rare = [store for store in self._stores if store.kind in RARE_KINDS]
        self._pollers = [Poller(part, self._stop) for start in range(POLLERS) if (part := rare[start::POLLERS])]
        self._merged: tuple[tuple[int, ...], Mapping[ObjectKey, Observed]] = ((), {})

    def on_change(self, listener: ChangeListener) -> None:
        """Call *listener* after every change; it must return quickly, because it runs in the watch thread."""
        for store in self._stores:
            store.on_change = listener

    def on_watch_restart(self, listener: RestartListener) -> None:
        """Call *listener* with the reason whenever a watch is restarted."""
        for store in self._stores:
            store.on_restart = listener

    def __enter__(self) -> Self:
        for store in self._stores:
            if store.kind not in RARE_KINDS:
                store.start_watch()
        for poller in self._pollers:
            poller.start()
        return self

    def watch_kinds(self, kinds: AbstractSet[str]) -> None:
        """Watch some kinds from now on, because kwokfleet is about to write to them."""
        for store in self._stores:
            if store.kind.kind in kinds:
                store.start_watch()

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all threads and close all connections."""
        self._stop.set()
        for store in self._stores:
            store.interrupt()
        for thread in (*self._pollers, *(store for store in self._stores if store.is_watching)):
            thread.join(STOP_TIMEOUT_S)

    def view(self) -> CacheView:
        """Return the current content."""
        with self._changed:
            return CacheView(
                self._objects(),
                {store.kind.kind: store.problem for store in self._stores if store.problem},
                frozenset(store.kind.kind for store in self._stores if store.is_missing),
                {store.kind.kind: store.version for store in self._stores},
                self.settled,
            )

    @property
    def settled(self) -> bool:
        """Whether each kind is known or rejected; much cheaper than a view."""
        return all(store.is_settled for store in self._stores)

    def _objects(self) -> Mapping[ObjectKey, Observed]:
        """Return all objects; the same mapping as before if nothing has changed."""
        change_counts = tuple(store.changes for store in self._stores)
        if self._merged[0] != change_counts:
            merged: dict[ObjectKey, Observed] = {}
            for store in self._stores:
                merged.update(store.objects)
            self._merged = (change_counts, merged)
        return self._merged[1]

    def wait(self, condition: Callable[[CacheView], bool], timeout_s: float) -> CacheView:
        """Wait for a condition, at most *timeout_s*; return the view then."""
        deadline = time.monotonic() + timeout_s
        with self._changed:  # held during the check, so that no change is missed before the wait
            while True:
                view = self.view()
                remaining = deadline - time.monotonic()
                if condition(view) or remaining <= 0:
                    return view
                self._changed.wait(min(remaining, MAX_WAIT_S))

    def wait_until_synced(self, timeout_s: float) -> CacheView:
        """Wait until every kind is known or rejected."""
        return self.wait(lambda view: view.settled, timeout_s)
