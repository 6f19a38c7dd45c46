"""Observation of a kwok that someone else runs: which controllers drive our nodes. Nothing is changed."""

from datetime import UTC, datetime

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import lease_client, lease_health

log = structlog.get_logger()

LAG_FACTOR = 0.25
"""A driver lags if its renewals are later than this part of the lease duration."""


def driver_health(api: requests.RequestSender, spec: KwokControllerSpec) -> lease_health.DriverHealth:
    """Return the drivers of our nodes now."""
    if spec.lease_duration:
        names = [node["metadata"]["name"] for node in _nodes(api, spec, metadata_only=True)]
        return lease_health.driver_health(names, lease_client.held_leases(api), datetime.now(UTC))
    heartbeats = [lease_health.heartbeat_lease(node) for node in _nodes(api, spec, metadata_only=False)]
    return lease_health.driver_health([lease.node for lease in heartbeats], heartbeats, datetime.now(UTC))


def _nodes(api: requests.RequestSender, spec: KwokControllerSpec, *, metadata_only: bool) -> list[Manifest]:
    selector = ",".join(filter(None, (requests.MANAGED_SELECTOR, spec.manage.label)))
    return list(client.list_objects(api, requests.NODE, selector, metadata_only=metadata_only))


class ExternalObserver:
    """Logs changes of the drivers between two polls."""

    def __init__(self, api: requests.RequestSender, spec: KwokControllerSpec) -> None:
        self._api, self._spec = api, spec
        self._last: lease_health.DriverHealth | None = None
        self._unreachable = False

    def poll(self) -> lease_health.DriverHealth | None:
        """Log what has changed; return the drivers, None if the API server does not respond."""
        try:
            health = driver_health(self._api, self._spec)
        except errors.ClusterError as error:
            if not self._unreachable:
                log.warning("drivers_unknown", error=str(error))
            self._unreachable = True
            return None
        self._unreachable = False
        max_lag_s = LAG_FACTOR * (self._spec.lease_duration.total_seconds() or lease_health.HEARTBEAT_S)
        for level, event, keys in lease_health.changes(self._last, health, max_lag_s):
            getattr(log, level)(event, **keys)
        self._last = health
        return health
