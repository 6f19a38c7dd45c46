"""Composition root: builds a daemon, or a one-shot sync, from options.

`up`, `run`, `test` and the Deployment in a cluster all build their daemon here, so that they behave the same.
Objects are built in the order in which they need each other, and closed in reverse order. The daemon's modules
are imported when a daemon is built: a one-shot command must not pay for them.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kwokfleet import settings as defaults
from kwokfleet.documents import parser
from kwokfleet.embedded import binaries, crds, progress
from kwokfleet.kube import client, leader_election, leader_identity, leader_lease, objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.leader_guarded_client import LeaderGuardedClient
from kwokfleet.kube.objects import Manifest
from kwokfleet.reconcile import applier, reconciler, sync
from kwokfleet.settings import Settings
from kwokfleet.source import shipped_files

if TYPE_CHECKING:
    from kwokfleet.daemon import daemon, kwok_manager
    from kwokfleet.daemon.trigger import Trigger
    from kwokfleet.source.source import Source

log = structlog.get_logger()

LEASE_NAME = "kwokfleet"
MAX_CONFLICTS = 10
"""Times per minute that a field may be changed back by another client before the daemon stalls on it."""
ESTABLISHED_S = 30.0
"""Time limit for a CustomResourceDefinition to become established."""
KWOK_PATIENCE_S = 2.0
"""Retry limit of requests that supervise kwok: its process must be checked in the meantime."""

ProgressDisplay = Callable[[], AbstractContextManager[progress.ProgressReporter]]


@dataclass(frozen=True, slots=True)
class GitConfig:
    """Fleet files in a git repository."""

    url: str
    ref: str
    path: str
    interval_s: float
    hook_secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Configuration of a daemon, as commands build it from flags and settings."""

    settings: Settings
    path: Path
    """Folder or file with fleet files; unused with *git*."""
    results_dir: Path
    progress_display: ProgressDisplay
    git: GitConfig | None = None
    poll: bool = False
    interval: timedelta = defaults.RESYNC_INTERVAL
    limits: throttled_client.ClientLimits = field(default_factory=throttled_client.ClientLimits)
    listen: tuple[str, int] | None = None
    token: str = field(default="", repr=False)
    kwok: bool = True
    leader_elect: bool = True
    lease_namespace: str = defaults.LEASE_NAMESPACE
    pod_namespace: str = defaults.INSTALL_NAMESPACE
    """Namespace of a StatefulSet that is named without one."""
    context: str | None = None
    kubeconfig: Path | None = None


@contextmanager
def running_daemon(api: client.KubeClient, config: DaemonConfig) -> "Iterator[daemon.Daemon]":
    """Build a daemon and run it until the block ends."""
    from kwokfleet.daemon import daemon, event_log, facade, metrics
    from kwokfleet.daemon.options import DaemonOptions, Dependencies
    from kwokfleet.daemon.trigger import Trigger
    from kwokfleet.server import http_server

    with ExitStack() as stack:
        stack.callback(api.close)
        recorded_metrics, trigger = metrics.Metrics(), Trigger()
        guarded = LeaderGuardedClient(api, _leader(api, config), recorded_metrics.api_request)
        managed = stack.enter_context(informer.Informer(guarded, requests.MANAGED_KINDS))
        managed.on_watch_restart(recorded_metrics.watch_restarted)
        fleets = stack.enter_context(informer.Informer(guarded, (requests.FLEET,)))
        dependencies = Dependencies(
            client=guarded,
            sync=sync.Sync(
                guarded, managed, reconciler.ReconcileOptions(rounds=MAX_CONFLICTS), config.limits, stale_grace_s=0.0
            ),
            source=_source(guarded, config),
            managed=managed,
            fleets=fleets,
            trigger=trigger,
            event_log=event_log.EventLog(),
            metrics=recorded_metrics,
            kwok=_kwok_manager(api, guarded, managed, trigger, config) if config.kwok else None,
        )
        install = partial(_install_and_log, settings=config.settings, display=config.progress_display)
        identity = leader_identity.process_identity()
        built = daemon.Daemon(dependencies, DaemonOptions(identity, config.interval, config.results_dir, install))
        view = facade.DaemonFacade(built)
        recorded_metrics.registry.register(metrics.SnapshotGauges(view.snapshot))
        if config.listen is not None:
            host, port = config.listen
            options = http_server.HttpOptions(host=host, port=port, token=config.token)
            service = http_server.HttpServer(view, recorded_metrics.page, recorded_metrics.served, options)
            service.start()
            stack.callback(service.stop)
        yield stack.enter_context(built)


def _install_and_log(session: sync.Sync, kinds: AbstractSet[str], settings: Settings, display: ProgressDisplay) -> None:
    for name in install_definitions(session, kinds, settings, display):
        log.info("installed", definition=name)


def _leader(api: client.KubeClient, config: DaemonConfig) -> leader_election.LeaderElector | None:
    if not config.leader_elect:
        return None
    candidate = leader_lease.LeaseCandidate(config.lease_namespace, LEASE_NAME, leader_identity.process_identity())
    return leader_election.LeaderElector(api, candidate)


def _source(api: LeaderGuardedClient, config: DaemonConfig) -> "Source":
    from kwokfleet.source import folder_source, git_repository, git_source, loader

    files = loader.Loader(lambda context: client.list_nodes(context, api))
    git = config.git
    if git is None:
        return folder_source.FolderSource(config.path, files, events=not config.poll)
    name = hashlib.sha256(f"{git.url}\n{git.ref}".encode()).hexdigest()[:12]
    repository = git_repository.Repository(git.url, git.ref, git.path, config.settings.data_dir / "git" / name)
    return git_source.GitSource(repository, files, interval_s=git.interval_s, ref=git.ref, secret=git.hook_secret)


def _kwok_manager(
    api: client.KubeClient,
    guarded: LeaderGuardedClient,
    managed: informer.Informer,
    trigger: "Trigger",
    config: DaemonConfig,
) -> "kwok_manager.KwokManager":
    from kwokfleet.daemon import kwok_manager
    from kwokfleet.daemon.trigger import PassReason

    folder = kwok_folder(config.settings.data_dir, api.host)
    with config.progress_display() as report:
        program = binaries.ensure(config.settings, report, "kwok").path("kwok")
    environment = kwok_manager.KwokEnvironment(
        program, client.write_kubeconfig(config.context, config.kubeconfig, folder), folder, config.pod_namespace
    )
    sender = throttled_client.ThrottledClient(
        guarded, throttled_client.ClientLimits(retry_timeout_s=KWOK_PATIENCE_S), threading.Event()
    )
    return kwok_manager.KwokManager(sender, api, managed, environment, partial(trigger.request, PassReason.KWOK))


def kwok_folder(data_dir: Path, host: str) -> Path:
    """Return the folder with the files of one cluster's kwok."""
    return data_dir / "kwok" / hashlib.sha256(host.encode()).hexdigest()[:12]


@contextmanager
def one_shot_sync(
    api: client.KubeClient,
    follower: informer.Informer,
    options: reconciler.ReconcileOptions,
    limits: throttled_client.ClientLimits,
) -> Iterator[sync.Sync]:
    """Build a sync on an informer that is already running; stop it when the block ends."""
    session = sync.Sync(api, follower, options, limits)
    try:
        yield session
    finally:
        session.stop.set()


def install_definitions(
    session: sync.Sync, kinds: AbstractSet[str], settings: Settings, display: ProgressDisplay
) -> list[str]:
    """Install the Fleet definition, and kwok's if a kind of *kinds* is missing; return the names of those installed."""
    definitions = fleet_definition()
    if kinds & session.informer.view().missing:
        definitions += kwok_definitions(settings, display)
    installed = list(applier.ensure_definitions(session.sender, definitions, ESTABLISHED_S))
    session.informer.watch_kinds(kinds)
    session.informer.wait(lambda view: not kinds & view.missing, ESTABLISHED_S)
    return installed


def fleet_definition() -> list[Manifest]:
    """Return the CustomResourceDefinition of Fleet, annotated with a digest of its text."""
    text = shipped_files.fleet_crd()
    documents, _ = parser.parse("crd", text)
    definition: Manifest = documents[0].value  # type: ignore[assignment]  # our own file, and a test reads it
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return [{**definition, "metadata": {**definition["metadata"], "annotations": {objects.DIGEST: digest}}}]


def kwok_definitions(settings: Settings, display: ProgressDisplay) -> list[Manifest]:
    """Return the CustomResourceDefinitions of the pinned kwok version."""
    with display() as report:
        paths = crds.files(settings, report)
    documents = [item for path in paths for item in parser.parse(str(path), path.read_text(encoding="utf-8"))[0]]
    return [document.value for document in documents if isinstance(document.value, dict)]
