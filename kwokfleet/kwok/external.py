"""A kwok that somebody else runs: who drives our nodes, looked at and told; nothing is ever changed."""

from datetime import UTC, datetime

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import lease_client, lease_health

log = structlog.get_logger()

LAGS = 0.25
"""The part of a lease's duration by which renewals may be behind before that is said."""


def driver_health(api: requests.RequestSender, spec: KwokControllerSpec) -> lease_health.DriverHealth:
    """Return who drives our nodes now."""
    if spec.lease_duration:
        names = [each["metadata"]["name"] for each in _nodes(api, spec, metadata_only=True)]
        return lease_health.driver_health(names, lease_client.held_leases(api), datetime.now(UTC))
    beats = [lease_health.heartbeat_lease(each) for each in _nodes(api, spec, metadata_only=False)]
    return lease_health.driver_health([each.node for each in beats], beats, datetime.now(UTC))


def _nodes(api: requests.RequestSender, spec: KwokControllerSpec, *, metadata_only: bool) -> list[Manifest]:
    selector = ",".join(filter(None, (requests.MANAGED_SELECTOR, spec.manage.label)))
    return list(client.list_objects(api, requests.NODE, selector, metadata_only=metadata_only))


class ExternalObserver:
    """Looks, again and again, and says what has changed since it looked last."""

    def __init__(self, api: requests.RequestSender, spec: KwokControllerSpec) -> None:
        self._api, self._spec = api, spec
        self._last: lease_health.DriverHealth | None = None
        self._away = False

    def look(self) -> lease_health.DriverHealth | None:
        """Say what is new; return who drives, None if the API server does not tell."""
        try:
            now = driver_health(self._api, self._spec)
        except errors.ClusterError as error:
            if not self._away:
                log.warning("drivers_not_known", error=str(error))
            self._away = True
            return None
        self._away = False
        lagging_s = LAGS * (self._spec.lease_duration.total_seconds() or lease_health.HEARTBEAT_S)
        for level, event, keys in lease_health.changes(self._last, now, lagging_s):
            getattr(log, level)(event, **keys)
        self._last = now
        return now
