"""kwok of a daemon: runs as the files say while the daemon leads, and stops with the lease.

Starting can wait for another kwok controller to go away, so it happens in a thread.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import Manage
from kwokfleet.kube import objects, throttled_client
from kwokfleet.kube.informer import informer, reflector
from kwokfleet.kwok import backend, backend_selection, flags, shard, supervisor, takeover
from kwokfleet.render import desired
from kwokfleet.source import loader

log = structlog.get_logger()

RETRY_S = 30.0
"""Before another attempt while a foreign kwok controller is running."""


def desired_kwok(loaded: loader.Loaded, before: backend.DesiredKwok) -> backend.DesiredKwok:
    """Return how kwok should run by the files; Stages are in its configuration unless they are in the cluster."""
    tree = loaded.tree
    own = tuple(desired.kwok_manifests(tree))
    return replace(
        before,
        spec=tree.controller,
        documents=(*desired.stages(tree), *own) if tree.controller.stages_as == "file" else (),
        kinds=desired.kwok_kinds(tree),
        mark=flags.static_digest(own),
    )


@dataclass(frozen=True, slots=True)
class KwokEnvironment:
    """What a kwok process of this machine needs."""

    program: Path
    kubeconfig: Path | None
    folder: Path
    """Configuration, logs and process records."""
    namespace: str
    """Namespace of a StatefulSet that is named without one."""


class DrivenNodes:
    """The nodes that kwok drives, from the informer; computed again only when they or the selector change."""

    def __init__(self, managed: informer.Informer) -> None:
        self._managed = managed
        self.manage = Manage()
        self._computed_for: tuple[object, Manage] = (None, self.manage)
        self._names: list[tuple[str, str]] = []

    def __call__(self) -> list[tuple[str, str]]:
        """Return node names, each with its shard label."""
        inventory, manage = self._managed.view().objects, self.manage
        if self._computed_for[0] is not inventory or self._computed_for[1] != manage:
            nodes = (observed for observed in inventory.values() if observed.key.kind == "Node")
            labels = ((node.key.name, objects.labels(node.manifest)) for node in nodes)
            self._names = sorted((name, own.get(objects.SHARD, "")) for name, own in labels if manage.matches(own))
            self._computed_for = (inventory, manage)
        return self._names


class KwokManager:
    """Starts, changes and stops kwok for a daemon."""

    def __init__(
        self,
        client: throttled_client.ThrottledClient,
        watch_api: reflector.WatchApi,
        managed: informer.Informer,
        environment: KwokEnvironment,
        on_change: Callable[[], None],
    ) -> None:
        self._client, self._watch_api, self._environment, self._on_change = client, watch_api, environment, on_change
        self._nodes = DrivenNodes(managed)
        self._lock = threading.Lock()
        self._loaded: loader.Loaded | None = None
        self._digest = ""
        self._supervisor: supervisor.Supervisor | None = None
        self._scaled_down = False
        """Whether a foreign controller was scaled to 0."""
        self._starter: threading.Thread | None = None
        self._stopping = threading.Event()
        self._start_error = ""

    def reconcile(self, loaded: loader.Loaded) -> None:
        """Let kwok run as the files say; a no-op if they say the same as before."""
        self._nodes.manage = loaded.tree.controller.manage
        if loaded.tree.controller.mode == "external":
            self.stop(remove_pods=True)
            return
        with self._lock:
            self._loaded = loaded
            if self._starter is None:
                self._stopping.clear()
                self._begin_start(None)
            elif self._supervisor is not None:
                self._update(self._supervisor, loaded)

    def _begin_start(self, former: supervisor.Supervisor | None) -> None:
        self._starter = threading.Thread(target=self._start, args=(former,), name="kwok-start", daemon=True)
        self._starter.start()

    def _update(self, running: supervisor.Supervisor, loaded: loader.Loaded) -> None:
        if backend_selection.must_move(loaded.tree.controller, self._environment.namespace, running):
            self._start_error = "kwok is moving to another backend: the old one stops first"
            self._supervisor = None
            self._begin_start(running)
            return
        if loaded.snapshot.digest != self._digest:
            self._digest = loaded.snapshot.digest
            running.change(desired_kwok(loaded, running.desired))
        running.finish_change()

    def _start(self, former: supervisor.Supervisor | None) -> None:
        if former is not None:
            former.end()
        while not self._stopping.is_set():
            start_error = self._try_start()
            if start_error != self._start_error:
                self._start_error = start_error
                self._on_change()
            if not start_error:
                return
            self._stopping.wait(RETRY_S)

    def _try_start(self) -> str:
        """Start kwok; return why that is not possible, empty if it was."""
        try:
            self._start_supervisor()
        except errors.KwokfleetError as error:
            if self._start_error != str(error):
                log.warning("kwok_not_started", error=str(error), hint=error.hint)
            return str(error)
        return ""

    def _start_supervisor(self) -> None:
        loaded, environment = self._loaded, self._environment
        if loaded is None:
            return
        spec, namespace = loaded.tree.controller, environment.namespace
        is_own = backend_selection.own_holders(spec, namespace, environment.folder)
        scaled_down = takeover.take_over(self._client, spec, is_own, self._nodes, self._stopping, namespace)
        self._scaled_down |= bool(scaled_down)
        kwok = desired_kwok(loaded, backend.DesiredKwok(environment.program, spec, environment.kubeconfig))
        site = backend_selection.select_backend(spec, namespace, environment.folder, self._client, self._watch_api)
        running = supervisor.Supervisor(self._client, kwok, environment.folder, self._nodes, self._watch_api, site)
        running.__enter__()
        with self._lock:
            self._supervisor, self._digest = running, loaded.snapshot.digest
        if self._stopping.is_set():
            self._stop_supervisor()

    def stop(self, *, remove_pods: bool = False) -> None:
        """Stop kwok and any start in progress. Pods of a StatefulSet go on, unless *remove_pods*."""
        starter = self._starter
        if starter is None:
            return
        self._stopping.set()
        starter.join()
        self._stop_supervisor(remove_pods=remove_pods)
        with self._lock:
            self._starter = None
        self._on_change()  # kwok may have been requested again in the meantime

    def _stop_supervisor(self, *, remove_pods: bool = False) -> None:
        with self._lock:
            running, self._supervisor = self._supervisor, None
        if running is not None and remove_pods:
            running.end()
        elif running is not None:
            running.__exit__(None, None, None)

    def restore(self) -> None:
        """Scale foreign controllers back up."""
        if self._scaled_down:
            takeover.restore(self._client)
            self._scaled_down = False

    def statuses(self) -> list[shard.ShardStatus]:
        """Return the status of each shard; empty if kwok is not running."""
        running = self._supervisor
        return running.statuses() if running else []

    def problem(self) -> str:
        """Return why kwok does not drive the nodes; empty if it does, or if kwok is not managed now."""
        if self._starter is None:
            return ""
        if self._start_error or self._supervisor is None:
            return self._start_error or "kwok has not started yet: it waits for the former driver of the nodes to stop"
        return "; ".join(
            f"kwok (shard {status.shard}) is {status.state}: {status.why}".rstrip(": ")
            for status in self.statuses()
            if status.state not in (shard.ShardState.READY, shard.ShardState.LAGGING)
        )
