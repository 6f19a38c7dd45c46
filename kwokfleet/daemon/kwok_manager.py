"""kwok in a daemon: it starts once we lead, runs as the files say, and ends when we no longer lead."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kwok import backend, flags, foreign_controllers, pod_backend, shard, statefulset, supervisor, takeover
from kwokfleet.render import desired
from kwokfleet.source import loader

log = structlog.get_logger()

AGAIN_S = 30.0
"""Before another try if somebody else's kwok is in the way: it may have gone."""


HOME = "kwokfleet"
"""The namespace that kwokfleet is usually installed in."""


def wanted(loaded: loader.Loaded, before: backend.Wanted) -> backend.Wanted:
    """Return how kwok should run by what the files say now; what it plays comes in its file unless in the cluster."""
    tree = loaded.tree
    own = tuple(desired.kwok_manifests(tree))
    return replace(
        before,
        spec=tree.controller,
        documents=(*desired.stages(tree), *own) if tree.controller.stages_as == "file" else (),
        kinds=desired.kwok_kinds(tree),
        mark=flags.read_once(own),
    )


def site(
    spec: KwokControllerSpec, home: str, folder: Path, api: throttled_client.Sender, watched: informer.Api
) -> supervisor.Site:
    """Return where kwok should run by what the files say."""
    name = statefulset.named(spec, home)
    return pod_backend.Pods(api, watched, name) if name else supervisor.Here(folder)


def is_moving(spec: KwokControllerSpec, home: str, kept: supervisor.Keeper) -> bool:
    """Return whether kwok should run somewhere else than it does."""
    name = statefulset.named(spec, home)
    return kept.site.name != (str(name) if name else "")


def ours(spec: KwokControllerSpec, home: str, folder: Path) -> foreign_controllers.Ours:
    """Return what tells kwoks of ours from others."""
    known, name = supervisor.identities(folder), statefulset.named(spec, home)
    return lambda holder: holder in known or (name is not None and name.holds(holder))


class Caretaker:
    """Looks after kwok on behalf of a daemon."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a process is looked after with
        self,
        sender: throttled_client.Sender,
        program: Path,
        kubeconfig: Path | None,
        folder: Path,
        nodes: backend.Nodes,
        changed: Callable[[], None],
        watched: informer.Api,
        home: str = HOME,
    ) -> None:
        self._home = home
        self._sender, self._program, self._kubeconfig, self._watched = sender, program, kubeconfig, watched
        self._folder, self._nodes, self._changed = folder, nodes, changed
        self._lock = threading.Lock()
        self._loaded: loader.Loaded | None = None
        self._digest = ""
        self._keeper: supervisor.Keeper | None = None
        self._rested = False
        self._starter: threading.Thread | None = None
        self._leaving = threading.Event()
        self.trouble = ""
        """Why there is no kwok although there should be one."""

    def attend(self, loaded: loader.Loaded) -> None:
        """Let kwok run as the files say; costs nothing if they say the same as before."""
        if loaded.tree.controller.mode == "external":
            self.dismiss(for_good=True)
            return
        with self._lock:
            self._loaded = loaded
            if self._starter is None:
                self._leaving.clear()
                self._let_start(None)
            elif self._keeper is not None and is_moving(loaded.tree.controller, self._home, self._keeper):
                self.trouble = "kwok moves: it ends where it ran, and then starts where the files say"
                former, self._keeper = self._keeper, None
                self._let_start(former)
            elif self._keeper is not None:
                self._follow(self._keeper, loaded)

    def _let_start(self, former: supervisor.Keeper | None) -> None:
        self._starter = threading.Thread(target=self._start, args=(former,), name="kwok-start", daemon=True)
        self._starter.start()

    def _follow(self, kept: supervisor.Keeper, loaded: loader.Loaded) -> None:
        if loaded.snapshot.digest != self._digest:
            self._digest = loaded.snapshot.digest
            kept.change(wanted(loaded, kept.wanted))
        kept.retire()

    def _start(self, former: supervisor.Keeper | None) -> None:
        if former is not None:
            former.end()
        while not self._leaving.is_set():
            trouble = self._tried()
            if trouble != self.trouble:
                self.trouble = trouble
                self._changed()
            if not trouble:
                return
            self._leaving.wait(AGAIN_S)

    def _tried(self) -> str:
        """Begin; return why that is not possible, empty if it was."""
        try:
            self._begin()
        except errors.KwokfleetError as error:
            if self.trouble != str(error):
                log.warning("kwok_not_started", error=str(error), hint=error.hint)
            return str(error)
        return ""

    def _begin(self) -> None:
        loaded = self._loaded
        if loaded is None:
            return
        spec = loaded.tree.controller
        known = ours(spec, self._home, self._folder)
        self._rested |= bool(takeover.clear_the_way(self._sender, spec, known, self._nodes, self._leaving, self._home))
        how = wanted(loaded, backend.Wanted(self._program, spec, self._kubeconfig))
        where = site(spec, self._home, self._folder, self._sender, self._watched)
        made = supervisor.Keeper(self._sender, how, self._folder, self._nodes, self._watched, where)
        made.__enter__()
        with self._lock:
            self._keeper, self._digest = made, loaded.snapshot.digest
        if self._leaving.is_set():
            self._end()

    def dismiss(self, *, for_good: bool = False) -> None:
        """End kwok, if there is one, and whatever was about to start it; pods go on, unless it is for good."""
        starter = self._starter
        if starter is None:
            return
        self._leaving.set()
        starter.join()
        self._end(for_good=for_good)
        with self._lock:
            self._starter = None
        self._changed()  # somebody may have asked for one meanwhile

    def _end(self, *, for_good: bool = False) -> None:
        with self._lock:
            kept, self._keeper = self._keeper, None
        if kept is not None and for_good:
            kept.end()
        elif kept is not None:
            kept.__exit__(None, None, None)

    def restore(self) -> None:
        """Give other kwoks back what they had, because we stop for good."""
        if self._rested:
            takeover.restore(self._sender)
            self._rested = False

    @property
    def wanted(self) -> bool:
        """Whether there should be a kwok of ours now."""
        return self._starter is not None

    def statuses(self) -> list[shard.Status]:
        """Return how each shard fares; none if there is no kwok of ours."""
        kept = self._keeper
        return kept.statuses() if kept else []

    def lacking(self) -> str:
        """Return why nodes are not driven; empty if they are, or if that is not our task."""
        if not self.wanted:
            return ""
        if self.trouble or self._keeper is None:
            return self.trouble or "kwok has not been started yet: who drove the nodes before must be gone"
        down = [each for each in self.statuses() if each.state not in (shard.State.READY, shard.State.LAGGING)]
        return "; ".join(f"kwok (shard {each.shard}) is {each.state}: {each.why}".rstrip(": ") for each in down)
