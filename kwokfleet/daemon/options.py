"""Options and dependencies of a daemon. `kwokfleet.app` builds both."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from kwokfleet import settings
from kwokfleet.daemon import event_log, kwok_manager, metrics
from kwokfleet.daemon.trigger import Trigger
from kwokfleet.kube import leader
from kwokfleet.kube.informer import informer
from kwokfleet.reconcile import sync
from kwokfleet.source.source import Source


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How a daemon runs."""

    identity: str
    interval: timedelta = settings.RESYNC_INTERVAL
    """Time between passes that nothing else requests."""
    results: Path | None = None
    """Folder of Results; without it, Runs are not measured."""
    stop_timeout_s: float = 20.0
    install_definitions: Callable[[sync.Sync, AbstractSet[str]], object] = lambda _sync, _kinds: None
    """Installs the CustomResourceDefinitions of some kinds."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The objects that a daemon works with."""

    client: leader.LeaderGuardedClient
    sync: sync.Sync
    source: Source
    managed: informer.Informer
    """Cache of our objects."""
    fleets: informer.Informer
    """Cache of the Fleet objects, on which users suspend, approve and send commands."""
    trigger: Trigger
    event_log: event_log.EventLog
    metrics: metrics.Metrics
    kwok: kwok_manager.KwokManager | None = None
