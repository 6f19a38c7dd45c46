"""Options and dependencies of a daemon. `kwokfleet.app` builds both."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from kwokfleet.daemon import event_log, kwok_manager, metrics
from kwokfleet.daemon.trigger import Trigger
from kwokfleet.kube.informer import informer
from kwokfleet.kube.leader_guarded_client import LeaderGuardedClient
from kwokfleet.reconcile import sync
from kwokfleet.source.source import Source


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How a daemon runs."""

    identity: str
    interval: timedelta
    """Time between passes that nothing else requests."""
    results: Path
    """Folder of Results."""
    install_definitions: Callable[[sync.Sync, AbstractSet[str]], object]
    """Installs the CustomResourceDefinitions of some kinds."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The objects that a daemon works with."""

    client: LeaderGuardedClient
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
