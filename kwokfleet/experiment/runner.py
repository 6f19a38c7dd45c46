"""A test of a fleet: a daemon that has begun is looked at until its Waves have been played and measured.

Nothing is hurried and nothing is done here: the daemon syncs, plays and measures as it always does. What
cannot come to a good end is told as an error, as soon as that is certain.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from kwokfleet import errors
from kwokfleet.api import units
from kwokfleet.daemon import daemon, facade, snapshot
from kwokfleet.experiment import progress
from kwokfleet.experiment.progress import Awaited, Name, Part
from kwokfleet.measure import result_store
from kwokfleet.measure.result import Result
from kwokfleet.waves import ledger

LOOK_S = 0.25
LEAD_S = 20.0
"""How long nobody need lead: a daemon that has died holds its Lease for 15 s."""
BLINK_S = 3.0
"""How long something may be in the way before it is worth a word: a kwok that starts is no news."""
STUCK_S = 10.0
"""How long changes may be withheld before nobody waits for them any longer."""
LOST_S = 60.0
"""How long the cluster may be out of sight."""
WRITTEN_S = 10.0
"""How long a Result may come after its verdict."""


class Phase(StrEnum):
    """How far the whole test has come."""

    SYNC = "sync"
    READY = "ready"
    WAVES = "waves"


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be seen at one moment."""

    phase: Phase = Phase.SYNC
    changes: int = 0
    """That are yet to be made."""
    nodes: snapshot.Nodes = field(default_factory=snapshot.Nodes)
    parts: tuple[Part, ...] = ()
    lacking: str = ""
    """What is in the way at the moment."""


class Trial:
    """Looks at a daemon, from another thread than its own."""

    def __init__(self, shown: daemon.Daemon, awaited: Sequence[Awaited], results: Path) -> None:
        self._daemon, self._face, self._awaited = shown, facade.DaemonFacade(shown), awaited
        self._fleets = {each.fleet for each in awaited}
        self._shelf = result_store.ResultStore(results)
        self._entries: dict[Name, ledger.RunRecord] = {}
        self._results: dict[Name, tuple[int, Result]] = {}
        self._began = self._clear = time.monotonic()
        self._in_the_way = ("", math.inf)
        self.scene = Scene()

    def wait(self, play_s: float | None, timeout_s: float, show: Callable[[Scene], None]) -> None:
        """Wait until all Waves have been played once, or for *play_s* from when the fleet is Ready.

        Raise after *timeout_s*, and when nothing can come of it any more. `scene` is what was seen last.
        """
        deadline, end = self._began + timeout_s, None
        while True:
            self.look()
            show(self.scene)
            now = time.monotonic()
            if self.scene.phase is Phase.WAVES:
                end = end or (now + play_s if play_s is not None else None)
                if (end is not None and now >= end) or (end is None and progress.over(self.scene.parts)):
                    return
            self._refuse_the_hopeless(now)
            if now >= deadline:
                raise _too_late(self.scene, timeout_s)
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Take in how everything is now."""
        seen = self._face.snapshot()
        mine = [each for each in seen.fleets if each.name in self._fleets]
        for name in self._fleets:
            pages = ledger.parse(self._daemon.status_writer.status_of(name).get("waves") or ())
            self._entries |= progress.entries({name: pages})
        found = tuple(progress.parts(self._awaited, self._entries, self._read()))
        nodes = snapshot.total_nodes(each.nodes for each in mine)
        self._in_the_way = self._obstacle(mine)
        self._clear = self._clear if self._in_the_way[0] else time.monotonic()
        told = self._in_the_way[0] if time.monotonic() - self._clear > BLINK_S else ""
        self.scene = Scene(self._phase(seen, mine), len(self._daemon.plan.changes), nodes, found, told)

    def _phase(self, seen: snapshot.Snapshot, mine: Sequence[snapshot.FleetSnapshot]) -> Phase:
        """Return how far it is; who was Ready once, or is being played, is never less again."""
        ready = len(mine) == len(self._fleets) and all(_is_ready(each) for each in mine)
        if self.scene.phase is Phase.WAVES or self._entries or (seen.synced and ready):
            return Phase.WAVES
        return Phase.READY if seen.synced else Phase.SYNC

    def _obstacle(self, mine: Sequence[snapshot.FleetSnapshot]) -> tuple[str, float]:
        """Return what is in the way, and for how long that can be borne; nothing if nothing is known to be."""
        shown = self._daemon
        if not shown.client.leads and shown.client.leader != shown.options.identity:
            return f"another daemon leads on this cluster: {shown.client.leader or 'unknown'}", LEAD_S
        if shown.stale:
            return f"the cluster cache is stale: {shown.stale}", LOST_S
        held = [f"fleet {each.name} is not made: {held.why}" for each in mine for held in each.withheld]
        if held and self.scene.phase is not Phase.WAVES:
            return held[0], STUCK_S
        return shown.kwok_problem, math.inf

    def _refuse_the_hopeless(self, now: float) -> None:
        working, why = self._face.liveness()
        if not working:
            raise errors.ClusterError(why, hint="the log says more: --log-level info")
        why, patience_s = self._in_the_way
        if why and now - self._clear > patience_s:
            hint = (
                ""
                if self._daemon.client.leads
                else "end that daemon, or test on a cluster of its own: without --kubeconfig"
            )
            raise errors.ClusterError(why, hint=hint)

    def _read(self) -> dict[Name, Result]:
        """Return the Results that are written, each read again when it is written anew."""
        for name, entry in self._entries.items():
            file = self._shelf.folder(*name, entry.start) / result_store.RESULT
            try:
                version = file.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if self._results.get(name, (0,))[0] != version:
                self._results[name] = (version, result_store.load(file))
        return {name: found for name, (_, found) in self._results.items()}

    def settle(self) -> tuple[Part, ...]:
        """Return what came of it, once the Result of each Run that is over is written."""
        deadline = time.monotonic() + WRITTEN_S
        while any(_unwritten(each) for each in self.scene.parts) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            self.look()
        return self.scene.parts

    def kept(self) -> list[result_store.StoredResult]:
        """Return what is kept of the Runs of this test, in the order of their starts."""
        found = [
            result_store.StoredResult(
                self._shelf.folder(*name, self._entries[name].start), *name, self._entries[name].start
            )
            for name in self._results
        ]
        return sorted(found, key=lambda each: (each.start, each.fleet, each.wave))


def _unwritten(part: Part) -> bool:
    return part.step is progress.Step.OVER and (part.result is None or part.result.state == "Running")


def _is_ready(fleet: snapshot.FleetSnapshot) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in fleet.conditions)


def _too_late(scene: Scene, timeout_s: float) -> errors.DeadlineError:
    """Return what a test that takes too long ends with: what it still waits for, and what is in the way."""
    within = f"after --timeout {units.format_duration(timedelta(seconds=timeout_s))}"
    why = f"; {scene.lacking}" if scene.lacking else ""
    if scene.phase is Phase.SYNC:
        return errors.DeadlineError(f"the fleet is not made {within}: {scene.changes} changes are left{why}")
    if scene.phase is Phase.READY:
        nodes = scene.nodes
        return errors.DeadlineError(
            f"{nodes.ready} of {nodes.desired} nodes are Ready {within}{why}",
            hint="--keep leaves the cluster: kwokfleet cluster kubectl describe nodes",
        )
    waiting = [each for each in scene.parts if each.awaited and each.step is not progress.Step.OVER]
    return errors.DeadlineError(
        f"{progress.some(_told(each) for each in waiting)} {within}{why}",
        hint="a longer --timeout; or --keep, and look why: kwokfleet cluster kubectl get pods -A",
    )


def _told(part: Part) -> str:
    """Return how far a Run has come, as a part of a sentence."""
    if part.entry is None:
        return f"{part.name} has not begun"
    if part.step is progress.Step.PLAYING:
        return f"{part.name} has submitted {part.entry.submitted} of {part.entry.total} objects"
    done = f": {part.result.objects.completed} of {part.entry.total} objects are complete" if part.result else ""
    return f"{part.name} is not over{done}"
