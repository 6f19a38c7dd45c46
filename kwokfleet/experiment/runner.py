"""Follows a daemon until its Waves are finished and measured. It only reads: the daemon does the work.

Raises an error as soon as the test cannot succeed: another leader, a stale cache, withheld changes, a timeout.
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
from kwokfleet.experiment.progress import ExpectedWave, RunKey, RunProgress, RunStep
from kwokfleet.measure import result_store
from kwokfleet.measure.result import Result
from kwokfleet.waves import ledger

POLL_S = 0.25
LEADER_WAIT_S = 20.0
"""Time to become leader: a daemon that was killed holds its Lease for 15 s."""
OBSTACLE_GRACE_S = 3.0
"""Grace period before an obstacle is shown: kwok needs a moment to start."""
WITHHELD_WAIT_S = 10.0
"""Limit for withheld changes."""
STALE_WAIT_S = 60.0
"""Limit for a stale cluster cache."""
RESULT_WAIT_S = 10.0
"""Limit for a Result to be written after its verdict."""


class Phase(StrEnum):
    """Phase of a test."""

    SYNC = "sync"
    READY = "ready"
    WAVES = "waves"


@dataclass(frozen=True, slots=True)
class ExperimentSnapshot:
    """State of a test at one moment."""

    phase: Phase = Phase.SYNC
    changes_left: int = 0
    nodes: snapshot.Nodes = field(default_factory=snapshot.Nodes)
    runs: tuple[RunProgress, ...] = ()
    obstacle: str = ""
    """What delays the test now."""


class ExperimentRunner:
    """Polls a daemon from the caller's thread."""

    def __init__(self, running: daemon.Daemon, expected: Sequence[ExpectedWave], results: Path) -> None:
        self._daemon, self._facade, self._expected = running, facade.DaemonFacade(running), expected
        self._fleet_names = {wave.fleet for wave in expected}
        self._store = result_store.ResultStore(results)
        self._records: dict[RunKey, ledger.RunRecord] = {}
        self._results: dict[RunKey, tuple[int, Result]] = {}
        """Version of the file, and its content."""
        self._started_at = self._unobstructed_at = time.monotonic()
        self._obstacle = ("", math.inf)
        """What delays the test, and the limit in seconds."""
        self.snapshot = ExperimentSnapshot()

    def wait(self, play_s: float | None, timeout_s: float, show: Callable[[ExperimentSnapshot], None]) -> None:
        """Wait until all expected Runs are finished, or for *play_s* after the Fleets are Ready.

        Raise after *timeout_s*, or when the test cannot succeed. `snapshot` has the last state.
        """
        deadline, end = self._started_at + timeout_s, None
        while True:
            self.poll()
            show(self.snapshot)
            now = time.monotonic()
            if self.snapshot.phase is Phase.WAVES:
                end = end or (now + play_s if play_s is not None else None)
                if (end is not None and now >= end) or (end is None and progress.all_finished(self.snapshot.runs)):
                    return
            self._raise_if_stuck(now)
            if now >= deadline:
                raise _timeout_error(self.snapshot, timeout_s)
            time.sleep(POLL_S)

    def poll(self) -> None:
        """Read the daemon's state into `snapshot`."""
        state = self._facade.snapshot()
        fleets = [fleet for fleet in state.fleets if fleet.name in self._fleet_names]
        for name in self._fleet_names:
            ledgers = ledger.parse(self._daemon.status_writer.status_of(name).get("waves") or ())
            self._records |= progress.run_records(name, ledgers)
        runs = tuple(progress.run_progress(self._expected, self._records, self._load_results()))
        nodes = snapshot.total_nodes(fleet.nodes for fleet in fleets)
        self._obstacle = self._find_obstacle(fleets)
        self._unobstructed_at = self._unobstructed_at if self._obstacle[0] else time.monotonic()
        obstacle = self._obstacle[0] if time.monotonic() - self._unobstructed_at > OBSTACLE_GRACE_S else ""
        changes_left = len(self._daemon.plan.changes)
        self.snapshot = ExperimentSnapshot(self._phase(state, fleets), changes_left, nodes, runs, obstacle)

    def _phase(self, state: snapshot.Snapshot, fleets: Sequence[snapshot.FleetSnapshot]) -> Phase:
        """Return the phase. It never leaves WAVES: nodes may become unready during a Run."""
        conditions = [(condition["type"], condition["status"]) for fleet in fleets for condition in fleet.conditions]
        is_ready = conditions.count(("Ready", "True")) == len(self._fleet_names)
        if self.snapshot.phase is Phase.WAVES or self._records or (state.synced and is_ready):
            return Phase.WAVES
        return Phase.READY if state.synced else Phase.SYNC

    def _find_obstacle(self, fleets: Sequence[snapshot.FleetSnapshot]) -> tuple[str, float]:
        """Return what delays the test, and the limit in seconds; an empty text if nothing does."""
        running = self._daemon
        if not running.client.leads and running.client.leader != running.options.identity:
            return f"another daemon leads on this cluster: {running.client.leader or 'unknown'}", LEADER_WAIT_S
        if running.stale:
            return f"the cluster cache is stale: {running.stale}", STALE_WAIT_S
        first = next(((fleet.name, held.why) for fleet in fleets for held in fleet.withheld), None)
        if first and self.snapshot.phase is not Phase.WAVES:
            return f"fleet {first[0]}: changes are withheld: {first[1]}", WITHHELD_WAIT_S
        return running.kwok_problem, math.inf

    def _raise_if_stuck(self, now: float) -> None:
        alive, why = self._facade.liveness()
        if not alive:
            raise errors.ClusterError(why, hint="run again with --log-level info and read the log")
        obstacle, limit_s = self._obstacle
        if obstacle and now - self._unobstructed_at > limit_s:
            hint = "stop that daemon, or omit --kubeconfig and --context to test on a new local cluster"
            raise errors.ClusterError(obstacle, hint="" if self._daemon.client.leads else hint)

    def _load_results(self) -> dict[RunKey, Result]:
        """Return the stored Results; read a file only when it changed."""
        for key, record in self._records.items():
            file = self._store.folder(*key, record.start) / result_store.RESULT
            try:
                version = file.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if self._results.get(key, (0,))[0] != version:
                self._results[key] = (version, result_store.load(file))
        return {key: result for key, (_, result) in self._results.items()}

    def wait_for_results(self) -> None:
        """Wait until the Results of all finished Runs are stored."""
        deadline = time.monotonic() + RESULT_WAIT_S
        while time.monotonic() < deadline:
            finished = [run.result for run in self.snapshot.runs if run.step is RunStep.FINISHED]
            if all(result and result.state != "Running" for result in finished):
                return
            time.sleep(POLL_S)
            self.poll()

    def stored_results(self) -> list[result_store.StoredResult]:
        """Return the stored Results of this test, in the order of their starts."""
        stored = [
            result_store.StoredResult(self._store.folder(*key, record.start), *key, record.start)
            for key, record in self._records.items()
            if key in self._results
        ]
        return sorted(stored, key=lambda result: (result.start, result.fleet, result.wave))


def _timeout_error(state: ExperimentSnapshot, timeout_s: float) -> errors.DeadlineError:
    """Return the error of a timeout: what is unfinished, and what delays it."""
    after = f"after --timeout {units.format_duration(timedelta(seconds=timeout_s))}"
    why = f"; {state.obstacle}" if state.obstacle else ""
    if state.phase is Phase.SYNC:
        return errors.DeadlineError(f"the fleet is not synced {after}: {state.changes_left} changes are left{why}")
    if state.phase is Phase.READY:
        return errors.DeadlineError(
            f"{state.nodes.ready} of {state.nodes.desired} nodes are Ready {after}{why}",
            hint="keep the cluster with --keep, then: kwokfleet cluster kubectl describe nodes",
        )
    unfinished = [run for run in state.runs if run.expected and run.step is not RunStep.FINISHED]
    return errors.DeadlineError(
        f"{progress.abbreviate(_describe(run) for run in unfinished)} {after}{why}",
        hint="set a longer --timeout; or keep the cluster with --keep, then: kwokfleet cluster kubectl get pods -A",
    )


def _describe(run: RunProgress) -> str:
    """Return the progress of an unfinished Run as a clause."""
    if run.record is None:
        return f"{run.name} has not started"
    if run.step is RunStep.SUBMITTING:
        return f"{run.name} has submitted {run.record.submitted} of {run.record.total} objects"
    done = f": {run.result.objects.completed} of {run.record.total} objects are complete" if run.result else ""
    return f"{run.name} is not finished{done}"
