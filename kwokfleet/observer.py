"""A kwok that somebody else runs: who drives our nodes, looked at and told; nothing is ever changed."""

from datetime import UTC, datetime

import structlog

from kwokfleet import errors, leasing
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.core import drivers
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest

log = structlog.get_logger()

LAGS = 0.25
"""The part of a lease's duration by which renewals may be behind before that is said."""


def driving(api: requests.Sends, spec: KwokControllerSpec) -> drivers.Driving:
    """Return who drives our nodes now."""
    if spec.lease_duration:
        names = [each["metadata"]["name"] for each in _nodes(api, spec, metadata_only=True)]
        return drivers.driving(names, leasing.held(api), datetime.now(UTC))
    beats = [drivers.heartbeat(each) for each in _nodes(api, spec, metadata_only=False)]
    return drivers.driving([each.node for each in beats], beats, datetime.now(UTC))


def _nodes(api: requests.Sends, spec: KwokControllerSpec, *, metadata_only: bool) -> list[Manifest]:
    selector = ",".join(filter(None, (requests.OURS, spec.manage.label)))
    return list(client.items(api, requests.NODE, selector, metadata_only=metadata_only))


class Observer:
    """Looks, again and again, and says what has changed since it looked last."""

    def __init__(self, api: requests.Sends, spec: KwokControllerSpec) -> None:
        self._api, self._spec = api, spec
        self._last: drivers.Driving | None = None
        self._away = False

    def look(self) -> drivers.Driving | None:
        """Say what is new; return who drives, None if the API server does not tell."""
        try:
            now = driving(self._api, self._spec)
        except errors.ClusterError as error:
            if not self._away:
                log.warning("drivers_not_known", error=str(error))
            self._away = True
            return None
        self._away = False
        lagging_s = LAGS * (self._spec.lease_duration.total_seconds() or drivers.HEARTBEAT_S)
        for level, event, keys in drivers.news(self._last, now, lagging_s):
            getattr(log, level)(event, **keys)
        self._last = now
        return now
