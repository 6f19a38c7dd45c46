"""Watches of the measurer, one per kind, and the capacity of nodes."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from kwokfleet import errors
from kwokfleet.kube import discovery, objects, requests
from kwokfleet.kube.informer import reflector, timed_events
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Inventory
from kwokfleet.kube.requests import Kind
from kwokfleet.measure import capacity

log = structlog.get_logger()


class WatchSet:
    """The open watches. One thread opens and closes them; any thread may read."""

    def __init__(
        self, api: reflector.WatchApi, sender: requests.RequestSender, handler: timed_events.EventHandler
    ) -> None:
        self._api, self._handler = api, handler
        self._kinds = discovery.KindResolver(sender)
        self._watches: dict[Kind, timed_events.EventWatcher] = {}
        self.lost: dict[Kind, str] = {}
        """Kinds whose watch is interrupted, with the reason."""

    def kinds_of(self, template: Manifest) -> frozenset[Kind]:
        """Return the kinds to watch for a Wave: pods and its own objects."""
        try:
            return frozenset({requests.POD, self._kinds.of_manifest(template)})
        except errors.ClusterError as error:
            log.warning("kind_not_watched", kind=template.get("kind"), error=str(error))
            return frozenset({requests.POD})

    def open(self, kind: Kind, *, relist: bool) -> None:
        """Watch a kind; *relist*: start again with a list if the watch is open."""
        if relist and kind in self._watches:
            self._close(kind)
        if kind not in self._watches:
            watch = timed_events.EventWatcher(self._api, kind, objects.RUN, self._handler, buffered=True)
            self._watches[kind] = watch
            watch.start()

    def deliver_events(self) -> None:
        """Pass all received events to the handler."""
        for watch in self._watches.values():
            watch.deliver()

    def close_except(self, kinds: AbstractSet[Kind]) -> None:
        """Close all watches except those of *kinds*."""
        for kind in self._watches.keys() - kinds:
            self._close(kind)

    def _close(self, kind: Kind) -> None:
        self._watches.pop(kind).close()
        self.lost.pop(kind, None)

    def wait_until_listed(self, kind: Kind, deadline: float) -> bool:
        """Wait until a kind is listed or rejected; return False at the monotonic deadline."""
        watch = self._watches.get(kind)
        return watch is not None and watch.settled.wait(max(0.0, deadline - time.monotonic()))


class NodeCapacity:
    """Capacity and pool of nodes, computed again when the nodes change."""

    def __init__(self, nodes: Callable[[], Inventory]) -> None:
        self._nodes = nodes
        self._inventory: Inventory | None = None
        self._node_pools: Mapping[str, tuple[str, str]] = {}
        self._capacities: Mapping[str, Mapping[str, Mapping[str, float]]] = {}

    def _refresh(self) -> None:
        inventory = self._nodes()
        if inventory is not self._inventory:
            self._inventory = inventory
            self._node_pools = capacity.node_pools(inventory)
            self._capacities = capacity.pool_capacities(inventory)

    def of_fleet(self, fleet: str) -> Mapping[str, Mapping[str, float]]:
        """Return the capacity of a Fleet's nodes, by pool and resource."""
        self._refresh()
        return self._capacities.get(fleet, {})

    def pool_lookup(self, fleet: str) -> Callable[[str], str]:
        """Return a function from node to pool. It returns "" for nodes of other Fleets."""

        def pool_of(node: str) -> str:
            if node not in self._node_pools:
                self._refresh()
            owner, pool = self._node_pools.get(node, ("", ""))
            return pool if owner == fleet else ""

        return pool_of
