"""What a measurer looks at: a watch for each kind that somebody measures, and what the nodes offer."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from kwokfleet.kube import objects
from kwokfleet.kube.informer import reflector, timed_events
from kwokfleet.kube.observed import Inventory
from kwokfleet.kube.requests import Kind
from kwokfleet.measure import capacity

SELECTOR = objects.RUN
"""Whatever belongs to a Run."""


class WatchSet:
    """The watches that are open. Changed by one thread; any may look."""

    def __init__(self, api: reflector.WatchApi, hears: timed_events.EventHandler) -> None:
        self._api, self._hears = api, hears
        self._open: dict[Kind, timed_events.EventWatcher] = {}
        self.blind: dict[Kind, str] = {}
        """Kinds of which nobody sees what happens, and why."""

    def open(self, kind: Kind, *, anew: bool) -> None:
        """Watch a kind; *anew*: from a list on, of which somebody needs what is in it."""
        if anew and kind in self._open:
            self._close(kind)
        if kind not in self._open:
            made = self._open[kind] = timed_events.EventWatcher(self._api, kind, SELECTOR, self._hears, gathers=True)
            made.start()

    def tell(self) -> None:
        """Let the watches tell of what they have seen."""
        for each in self._open.values():
            each.tell()

    def keep(self, wanted: AbstractSet[Kind]) -> None:
        """Close all other watches."""
        for kind in self._open.keys() - wanted:
            self._close(kind)

    def _close(self, kind: Kind) -> None:
        self._open.pop(kind).close()
        self.blind.pop(kind, None)

    def wait(self, kind: Kind, until: float) -> bool:
        """Return whether a kind is seen, or was refused; wait for it until a moment of the monotonic clock."""
        sight = self._open.get(kind)
        return sight is not None and sight.settled.wait(max(0.0, until - time.monotonic()))


class NodeCapacity:
    """What nodes offer to pods, and which pool each belongs to; reckoned anew when they have changed."""

    def __init__(self, nodes: Callable[[], Inventory]) -> None:
        self._nodes = nodes
        self._seen: Inventory | None = None
        self._places: Mapping[str, tuple[str, str]] = {}
        self._capacities: Mapping[str, Mapping[str, Mapping[str, float]]] = {}

    def _look(self) -> None:
        there = self._nodes()
        if there is not self._seen:
            self._seen, self._places, self._capacities = (
                there,
                capacity.node_pools(there),
                capacity.pool_capacities(there),
            )

    def of(self, fleet: str) -> Mapping[str, Mapping[str, float]]:
        """Return what a Fleet's nodes offer, by pool and resource."""
        self._look()
        return self._capacities.get(fleet, {})

    def pool_of(self, fleet: str) -> Callable[[str], str]:
        """Return what tells the pool of a node; of one that belongs to another Fleet, nothing."""

        def pool(node: str) -> str:
            if node not in self._places:
                self._look()
            owner, name = self._places.get(node, ("", ""))
            return name if owner == fleet else ""

        return pool
