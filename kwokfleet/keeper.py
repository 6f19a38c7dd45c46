"""The kwok controller, looked after: started, watched, started again, and never two of it.

One thread for each shard. A shard that ends is started again: at once the first times, then after
longer and longer pauses. What only a person can mend (a configuration that kwok refuses) is said and
tried again rarely. Before a new process starts, the leases of the dead one are released, so that it
drives its nodes at once instead of after they have expired.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Self

import structlog

from kwokfleet import errors
from kwokfleet.core import kwok, leases, requests, units
from kwokfleet.core.controller import KwokControllerSpec
from kwokfleet.core.objects import Manifest
from kwokfleet.edge import cluster
from kwokfleet.edge import kwok as edge

log = structlog.get_logger()

LOOK_S = 0.2
"""How often a shard looks at its process."""
CHECK_S = 2.0
"""How often it looks at memory and leases."""
READY_S = 30.0
REFUSED_PAUSE_S = 30.0
"""Before a configuration that was refused is tried again: somebody may have mended what it names."""
RELEASERS = 32
SAMPLE = 4
"""Leases that are looked at to tell how far renewals are behind."""
STUCK_AFTER = 3.0
"""Lease durations without a renewal after which a living process counts as stuck."""
_MOST_LINES_PER_S = 20


class State(StrEnum):
    """How a shard fares."""

    STARTING = "starting"
    READY = "ready"
    LAGGING = "lagging"
    WAITING = "waiting"
    """Between an ending and the next start."""
    REFUSED = "refused"
    """kwok does not take its configuration."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of one shard."""

    shard: int
    state: State = State.STARTING
    pid: int = 0
    port: int = 0
    restarts: int = 0
    why: str = ""
    identity: str = ""
    memory: int = 0
    lag_s: float = 0.0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How kwok should run: if any of it changes, it is started anew."""

    program: Path
    spec: KwokControllerSpec
    kubeconfig: Path | None
    documents: tuple[Manifest, ...] = ()
    kinds: tuple[str, ...] = ()
    """What it follows in the cluster beside Stages: `render.kwok_kinds` tells."""
    mark: str = ""
    """What stands for everything else that it reads but once: `kwok.read_once` tells."""

    def command(self, shard: kwok.Shard) -> tuple[list[str], str]:
        """Return the flags and the configuration of one shard."""
        config = kwok.configuration(self.spec, shard, self.documents, self.kinds)
        return kwok.arguments(self.spec, shard, self.kinds), config

    def differs(self, other: "Wanted", shard: kwok.Shard) -> bool:
        """Return whether a process that was started as the other one says is another than this one."""
        return (
            self.command(shard) != other.command(shard)
            or kwok.address(self.spec, shard) != kwok.address(other.spec, shard)
            or self.mark != other.mark
        )


Nodes = Callable[[], Sequence[str]]
"""Returns the names of the nodes that kwok should drive."""


class Shard(threading.Thread):
    """Keeps one kwok process going."""

    def __init__(
        self, api: requests.Sends, wanted: Wanted, shard: kwok.Shard, folder: edge.Folder, nodes: Nodes
    ) -> None:
        super().__init__(name=f"kwok-{shard.index}", daemon=True)
        self._api, self._wanted, self.shard, self._folder, self._nodes = api, wanted, shard, folder, nodes
        self._stopping, self._again = threading.Event(), threading.Event()
        self._record = kwok.Record()
        self._said = _Throttle()
        self.status = Status(shard.index)

    # what others ask of it

    def stop(self) -> None:
        """Ask it to end its process and itself."""
        self._stopping.set()
        self._again.set()

    def restart(self, wanted: Wanted | None = None) -> None:
        """Ask for a new process, of another kind if one is given."""
        if wanted is not None:
            self._wanted = wanted
        self._again.set()

    # its life

    def run(self) -> None:
        """Start, watch, start again, until it is asked to stop."""
        while not self._stopping.is_set():
            self._again.clear()
            try:
                self._life()
            except errors.KwokfleetError as error:
                self._tell(state=State.REFUSED, why=str(error))
                self._stopping.wait(REFUSED_PAUSE_S)
        self._tell(state=State.STOPPED, pid=0)

    def _life(self) -> None:
        flags, config = self._wanted.command(self.shard)
        process = edge.start(
            self._wanted.program,
            flags,
            kubeconfig=self._wanted.kubeconfig,
            folder=self._folder,
            config=config,
            listener=self._listen,
            address=kwok.address(self._wanted.spec, self.shard),
        )
        log.info("kwok_started", shard=self.shard.index, pid=process.pid, port=process.port)
        self._tell(state=State.STARTING, pid=process.pid, port=process.port, why="", identity="", pause_s=0.0)
        try:
            self._watch(process)
        finally:
            asked = self._again.is_set() or self._stopping.is_set()
            if process.ended() is None:
                process.stop()
        self._ended(process, asked=asked)

    def _watch(self, process: edge.Process) -> None:
        """Look after a process until it ends or is to end."""
        checked = 0.0
        while process.ended() is None and not self._again.wait(LOOK_S):
            if time.monotonic() - checked < CHECK_S and self.status.state is not State.STARTING:
                continue
            checked = time.monotonic()
            memory = process.memory()
            self._tell(memory=memory)
            limit = self._wanted.spec.memory_limit
            if limit is not None and memory > _bytes(limit):
                log.warning("kwok_too_large", shard=self.shard.index, memory=memory, limit=limit)
                return
            if self._is_stuck(process):
                return

    def _ended(self, process: edge.Process, *, asked: bool) -> None:
        """Note how a process ended, let its leases go, and wait for the next start."""
        ending = process.ended()
        self.release(self.status.identity)
        if asked:
            return
        self._record = self._record.after(process.ran_s)
        why = f"{ending}: {process.last_words()}"
        pause = REFUSED_PAUSE_S if ending is kwok.Ending.CONFIGURATION else self._record.pause_s
        state = State.REFUSED if ending is kwok.Ending.CONFIGURATION else State.WAITING
        log.warning("kwok_ended", shard=self.shard.index, why=why, pause_s=pause, restarts=self._record.restarts)
        self._tell(state=state, pid=0, why=why, restarts=self._record.restarts, pause_s=pause)
        self._again.wait(pause)

    # whether it drives

    def _is_stuck(self, process: edge.Process) -> bool:
        """Look whether nodes are driven; return whether a process that lives has stopped doing its work."""
        duration = self._wanted.spec.lease_duration.total_seconds()
        healthy = self.status.state is not State.STARTING or process.is_healthy()
        if not healthy:
            return process.ran_s > READY_S * 2
        if not duration:
            self._tell(state=State.READY)
            return False
        now = datetime.now(UTC)
        sampled = self._sampled()
        if sampled is None:
            return False  # the API server is away: kwok comes back by itself when it does
        mine = [each for each in sampled if each.age_s(now) <= process.ran_s]
        lag = leases.lag_s(sampled, duration, now)
        if mine:
            self._tell(identity=mine[0].holder)
        driving = bool(mine) or not sampled
        state = State.LAGGING if driving and lag > duration / 4 else State.READY if driving else State.STARTING
        if state is State.READY and self.status.state is State.STARTING:
            log.info("kwok_ready", shard=self.shard.index, after_s=round(process.ran_s, 2))
        self._tell(state=state, lag_s=round(max(lag, 0.0), 1))
        return lag > STUCK_AFTER * duration and process.ran_s > STUCK_AFTER * duration

    def _sampled(self) -> list[leases.Lease] | None:
        """Return the leases of a few of its nodes; None if the API server does not answer."""
        names = [name for name in self._nodes() if self._is_mine(name)]
        chosen = names[:: max(1, len(names) // SAMPLE)][:SAMPLE]
        found = []
        for name in chosen:
            try:
                answer = self._api.send(leases.get(name))
            except errors.ClusterError:
                return None
            if answer.status == HTTPStatus.OK:
                found.append(leases.read(answer.json()))
        return found

    def _is_mine(self, node: str) -> bool:
        return self.shard.count == 1 or kwok.shard_of(node, self.shard.count) == self.shard.index

    def release(self, identity: str) -> int:
        """Let go of all leases that a process which is dead still holds; return how many."""
        if not identity or not self._wanted.spec.lease_duration:
            return 0
        try:
            held = [each for each in held_leases(self._api) if each.holder == identity]
        except errors.ClusterError:
            return 0
        release_all(self._api, held)
        log.info("leases_released", shard=self.shard.index, count=len(held))
        return len(held)

    # what it tells

    def _tell(self, **fields: object) -> None:
        self.status = replace(self.status, **fields)  # type: ignore[arg-type]  # fields of Status

    def _listen(self, line: kwok.Line) -> None:
        if self._said.may_speak():
            level = getattr(log, line.level if line.level != "info" else "debug")
            level("kwok_said", shard=self.shard.index, said=line.event, **_safe(line.keys))


def _safe(keys: Mapping[str, object]) -> dict[str, object]:
    """Return keys that do not hide those of the log line itself."""
    return {f"kwok_{key}": value for key, value in keys.items()}


def _bytes(quantity: str) -> int:
    return int(units.amount(quantity))


def held_leases(api: requests.Sends) -> list[leases.Lease]:
    """Return all node leases that somebody holds."""
    found = cluster.items(api, requests.LEASE, namespace=leases.NAMESPACE)
    return [each for each in map(leases.read, found) if each.holder]


def release_all(api: requests.Sends, held: Sequence[leases.Lease]) -> None:
    """Let many leases go at once: each second counts for the nodes that nobody drives."""
    work = iter(held)
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                lease = next(work, None)
            if lease is None:
                return
            api.send(leases.release(lease))

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(RELEASERS, len(held)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass(slots=True)
class _Throttle:
    """Lets so many lines through each second."""

    second: int = 0
    count: int = 0

    def may_speak(self) -> bool:
        now = int(time.monotonic())
        self.count = self.count + 1 if now == self.second else 1
        self.second = now
        return self.count <= _MOST_LINES_PER_S


@dataclass(slots=True)
class Keeper:
    """Keeps all shards going. Close it, or use it in a `with` block."""

    api: requests.Sends
    wanted: Wanted
    folder: Path
    nodes: Nodes
    shards: list[Shard] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Start all shards."""
        self._set_count(self.wanted.spec.shards)
        return self

    def __exit__(self, *_exc: object) -> None:
        """End all shards."""
        self._set_count(0)

    def change(self, wanted: Wanted) -> bool:
        """Let kwok run in another way; return whether that took a restart. What is the same goes on undisturbed."""
        before, self.wanted = self.wanted, wanted
        if wanted.spec.shards != before.spec.shards:
            self._set_count(0)
            self._set_count(wanted.spec.shards)
            return True
        changed = [each for each in self.shards if wanted.differs(before, each.shard)]
        for each in changed:
            each.restart(wanted)
        return bool(changed)

    def statuses(self) -> list[Status]:
        """Return how each shard fares."""
        return [each.status for each in self.shards]

    def _set_count(self, count: int) -> None:
        for each in self.shards:
            each.stop()
        for each in self.shards:
            each.join()
        self.shards = []
        for index in range(count):
            shard = kwok.Shard(index, count)
            folder = edge.Folder(self.folder / f"shard-{index}")
            self.shards.append(Shard(self.api, self.wanted, shard, folder, self.nodes))
        for each in self.shards:
            each.start()


def is_ours(identity: str) -> bool:
    """Return whether a lease's holder ran on this machine: kwok puts its host's name first."""
    return identity.rpartition("_")[0] == socket.gethostname()
