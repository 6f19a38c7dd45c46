"""kwok in a daemon: it starts once we lead, runs as the files say, and ends when we no longer lead."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from kwokfleet import errors, keeper, sending, shard, source, takeover
from kwokfleet.core import kwok, render
from kwokfleet.edge import mirror

log = structlog.get_logger()

AGAIN_S = 30.0
"""Before another try if somebody else's kwok is in the way: it may have gone."""


def wanted(loaded: source.Loaded, before: shard.Wanted) -> shard.Wanted:
    """Return how kwok should run by what the files say now; what it plays comes in its file unless in the cluster."""
    tree = loaded.tree
    own = tuple(render.kwok_manifests(tree))
    return replace(
        before,
        spec=tree.controller,
        documents=(*render.stages(tree), *own) if tree.controller.stages_as == "file" else (),
        kinds=render.kwok_kinds(tree),
        mark=kwok.read_once(own),
    )


class Caretaker:
    """Looks after kwok on behalf of a daemon."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a process is looked after with
        self,
        sender: sending.Sender,
        program: Path,
        kubeconfig: Path | None,
        folder: Path,
        nodes: shard.Nodes,
        changed: Callable[[], None],
        watched: mirror.Api,
    ) -> None:
        self._sender, self._program, self._kubeconfig, self._watched = sender, program, kubeconfig, watched
        self._folder, self._nodes, self._changed = folder, nodes, changed
        self._lock = threading.Lock()
        self._loaded: source.Loaded | None = None
        self._digest = ""
        self._keeper: keeper.Keeper | None = None
        self._rested = False
        self._starter: threading.Thread | None = None
        self._leaving = threading.Event()
        self.trouble = ""
        """Why there is no kwok although there should be one."""

    def attend(self, loaded: source.Loaded) -> None:
        """Let kwok run as the files say; costs nothing if they say the same as before."""
        if loaded.tree.controller.mode == "external":
            self.dismiss()
            return
        with self._lock:
            self._loaded = loaded
            if self._starter is None:
                self._leaving.clear()
                self._starter = threading.Thread(target=self._start, name="kwok-start", daemon=True)
                self._starter.start()
            elif self._keeper is not None:
                self._follow(self._keeper, loaded)

    def _follow(self, kept: keeper.Keeper, loaded: source.Loaded) -> None:
        if loaded.snapshot.digest != self._digest:
            self._digest = loaded.snapshot.digest
            kept.change(wanted(loaded, kept.wanted))
        kept.retire()

    def _start(self) -> None:
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
        ours = keeper.identities(self._folder)
        self._rested |= bool(takeover.clear_the_way(self._sender, spec, ours, self._nodes, self._leaving))
        how = wanted(loaded, shard.Wanted(self._program, spec, self._kubeconfig))
        made = keeper.Keeper(self._sender, how, self._folder, self._nodes, self._watched)
        made.__enter__()
        with self._lock:
            self._keeper, self._digest = made, loaded.snapshot.digest
        if self._leaving.is_set():
            self._end()

    def dismiss(self) -> None:
        """End kwok, if there is one, and whatever was about to start it."""
        starter = self._starter
        if starter is None:
            return
        self._leaving.set()
        starter.join()
        self._end()
        with self._lock:
            self._starter = None
        self._changed()  # somebody may have asked for one meanwhile

    def _end(self) -> None:
        with self._lock:
            kept, self._keeper = self._keeper, None
        if kept is not None:
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
