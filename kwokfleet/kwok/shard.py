"""One kwok's life: started, watched, started again, and shown what it has passed over.

A process that ends is started again: at once the first times, then after longer and longer pauses. What
only a person can mend (a configuration that kwok refuses) is said and tried again rarely. Before a new
process starts, the leases of the dead one are released, so that it drives its nodes at once instead of
after they have expired. A kwok in a pod is started again by Kubernetes; all else is the same.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.api import units
from kwokfleet.kube import requests
from kwokfleet.kwok import backend, exits, lease_client, lease_watch, log_lines, node_leases, sharding

log = structlog.get_logger()

LOOK_S = 0.2
"""How often a shard looks at its process."""
CHECK_S = 2.0
"""How often it looks at memory and leases."""
READY_S = 30.0
REFUSED_PAUSE_S = 30.0
"""Before a configuration that was refused is tried again: somebody may have mended what it names."""
AWAY_PAUSE_S = 1.0
"""Between two questions to an API server that does not answer."""
NUDGE_S = 2.0
"""How long a new process may get hold of no more nodes before they are shown to it once more."""
SAMPLE = 4
"""Leases that are looked at to tell how far renewals are behind."""
STUCK_AFTER = 3.0
"""Lease durations without a renewal after which a living process counts as stuck."""
_MOST_LINES_PER_S = 20


class ShardState(StrEnum):
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
class ShardStatus:
    """What is known of one shard."""

    shard: int
    state: ShardState = ShardState.STARTING
    pid: int = 0
    port: int = 0
    restarts: int = 0
    why: str = ""
    """Why the last process ended, if nobody asked it to."""
    identity: str = ""
    memory: int = 0
    lag_s: float = 0.0
    pause_s: float = 0.0
    pod: str = ""
    """What its pod is called, if it runs in one."""


class ShardRunner(threading.Thread):
    """Keeps one kwok process going."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a process is kept going with
        self,
        api: requests.RequestSender,
        wanted: backend.DesiredKwok,
        shard: sharding.ShardSpec,
        place: backend.ShardBackend,
        nodes: backend.ListNodes,
        heard: lease_watch.LeaseWatch,
    ) -> None:
        super().__init__(name=f"kwok-{shard.index}", daemon=True)
        self._api, self._wanted, self.shard, self._place, self._nodes = api, wanted, shard, place, nodes
        self._beats = heard
        self.runs_as = shard
        """What the present process was started as, until its leases are released."""
        self._stopping, self._again = threading.Event(), threading.Event()
        self._leaving = False
        """Whether its kwok goes on without us."""
        self._why = ""
        """Why the last kwok ended, if nobody asked it to."""
        self._record = exits.RestartRecord()
        self._said = _Throttle()
        self._reachable = 0.0
        """Since when the API server has answered."""
        self._new_since: float | None = None
        """Since when a new process has been at it, until it has been shown all its pods."""
        self._shown: set[str] = set()
        """The nodes whose pods it has been shown."""
        self._met = False
        """Whether it ran long before we came: another one has shown it what it must see."""
        self._lacking, self._lacking_at = set[str](), 0.0
        """The nodes whose leases nobody held at the last look, and when to look again."""
        self._placed: frozenset[str] = frozenset()
        """The nodes that show where it answers."""
        self._began = datetime.now(UTC)
        """When the present process began."""
        self._left: str | None = None
        """Under which name the last process held leases, until they are released; empty if nobody learnt it."""
        self._dead: set[str] = set()
        """The names of processes that are dead: a last request of one may still take a lease after its end."""
        self.status = ShardStatus(shard.index)

    # what others ask of it

    def stop(self) -> None:
        """Ask it to end its process and itself."""
        self._stopping.set()
        self._again.set()

    def leave(self) -> None:
        """Ask it to end itself; its kwok goes on, if it can without us."""
        self._leaving = self._place.renews
        self.stop()

    def restart(self) -> None:
        """Ask for a new process."""
        self._again.set()

    def follow(self, wanted: backend.DesiredKwok) -> bool:
        """Go by another wish from now on; return whether that takes a new process, which is then asked for."""
        if wanted is self._wanted:
            return False
        stale = wanted.differs(self._wanted, self.shard.index)
        self._wanted = wanted
        self.shard = sharding.shard_spec(wanted.spec, self.shard.index)
        if stale and not self._place.renews:
            self.restart()
        return stale

    # its life

    def run(self) -> None:
        """Start, watch, start again, until it is asked to stop."""
        self._left = self._place.leftover() or None
        while self._let_go():
            self._again.clear()
            try:
                self._life()
            except errors.KwokfleetError as error:
                self._tell(state=ShardState.REFUSED, why=str(error))
                self._stopping.wait(REFUSED_PAUSE_S)
        self._beats.close()
        self._tell(state=ShardState.STOPPED, pid=0)

    def _let_go(self) -> bool:
        """Release what the last process held, however long the API server is away; return whether to start the next.

        A kwok that finds a lease held tries it again only after a quarter of its duration.
        """
        while self._left is not None and not self._stopping.is_set():
            if self.release(self._left, all_of_ours=True) is not None:
                self._left = None
            else:
                self._tell(
                    state=ShardState.WAITING, pid=0, why="the API server is away: kwok is started when it answers"
                )
                self._stopping.wait(AWAY_PAUSE_S)
        return not self._stopping.is_set()

    def _life(self) -> None:
        self.runs_as = self.shard
        process = self._place.start(self._wanted, self.runs_as, self._listen)
        self._began, self._placed, self._lacking = process.since, frozenset(), set()
        log.info("kwok_started", shard=self.shard.index, **_who(process), port=process.port)
        self._tell(
            state=ShardState.STARTING, identity="", pause_s=0.0, port=process.port, pid=process.pid, pod=process.pod
        )
        planned = ""
        try:
            planned = self._watch(process)
        finally:
            asked = self._again.is_set() or self._stopping.is_set()
            if not self._leaving and process.ended() is None:
                process.stop()
        if not self._leaving:
            self._ended(process, planned, asked=asked)

    def _watch(self, process: backend.RunningKwok) -> str:
        """Look after a process until it ends or is to end; return why, if we decided that."""
        checked, self._met = 0.0, process.ran_s > READY_S
        while process.ended() is None and not self._again.wait(LOOK_S):
            hurried = self.status.state is ShardState.STARTING or self._new_since is not None
            if time.monotonic() - checked < CHECK_S and not hurried:
                continue
            checked = time.monotonic()
            self._began = process.since
            memory = process.memory()
            self._tell(memory=memory, why=process.lacks() or self._why)
            limit = self._wanted.spec.memory_limit
            if limit is not None and memory > _bytes(limit):
                return f"it held {memory >> 20} MB, more than {limit}"
            if self._is_stuck(process):
                return "it stopped driving its nodes"
        return ""

    def _ended(self, process: backend.RunningKwok, planned: str, *, asked: bool) -> None:
        """Note how a process ended, let its leases go, and wait for the next start."""
        ending = process.ended()
        self._began = process.until  # whatever was renewed before is not the next one's doing
        freed = self.release(self.status.identity, all_of_ours=True)
        self._left = self.status.identity if freed is None else None
        self.runs_as = self.shard
        if asked or (ending is exits.ExitReason.ASKED and not planned):
            self._why = ""
            self._tell(why="")
            return
        self._record = self._record.after(process.ran_s)
        self._why = why = planned or f"{ending}: {process.last_words()}"
        pause = REFUSED_PAUSE_S if ending is exits.ExitReason.CONFIGURATION else self._record.pause_s
        state = ShardState.REFUSED if ending is exits.ExitReason.CONFIGURATION else ShardState.WAITING
        log.warning("kwok_ended", shard=self.shard.index, why=why, pause_s=pause, restarts=self._record.restarts)
        pause = 0.0 if self._place.renews else pause
        self._tell(state=state, pid=0, why=why, restarts=self._record.restarts, pause_s=pause)
        self._again.wait(pause)

    # whether it drives

    def _is_stuck(self, process: backend.RunningKwok) -> bool:
        """Look whether nodes are driven; return whether a process that lives has stopped doing its work."""
        duration = self._wanted.spec.lease_duration.total_seconds()
        healthy = self.status.state is not ShardState.STARTING or process.is_healthy()
        if not healthy:
            return process.ran_s > READY_S * 2
        self._show_the_way(process)
        if not duration:
            self._tell(state=ShardState.READY)
            return False
        now = datetime.now(UTC)
        sampled = self._sampled()
        if sampled is None:
            self._reachable = time.monotonic()
            return False  # the API server is away: kwok comes back by itself when it does
        mine = [each for each in sampled if each.renewed >= process.since and each.holder not in self._dead]
        lag = node_leases.lag_s(sampled, duration, now)
        if mine and mine[0].holder != self.status.identity:
            self._tell(identity=mine[0].holder)
            self._place.note(process.pid, mine[0].holder)
            self._new_since, self._shown = None if self._met else time.monotonic(), set()
            self._met = False
        elif not mine and any(map(self._is_dead, sampled)):
            self.release("", all_of_ours=True)  # a last request of the dead one came after its leases were let go
        driving = bool(mine) or not (sampled or (self.status.state is ShardState.STARTING and self._mine()))
        state = (
            ShardState.LAGGING
            if driving and lag > duration / 4
            else ShardState.READY
            if driving
            else ShardState.STARTING
        )
        self._pass_over_nobody()
        self._show_nodes_again(process)
        if state is ShardState.READY and self.status.state is ShardState.STARTING:
            log.info("kwok_ready", shard=self.shard.index, after_s=round(process.ran_s, 2))
        self._tell(state=state, lag_s=round(max(lag, 0.0), 1))
        could = min(process.ran_s, time.monotonic() - self._reachable)
        return lag > STUCK_AFTER * duration and could > STUCK_AFTER * duration

    def _pass_over_nobody(self) -> None:
        """As a new process gets hold of its nodes, show it the pods on them that it has passed over."""
        if self._new_since is None:
            return
        mine = {name for name, _ in self._mine()}
        try:
            leased = lease_client.held_leases(self._api)
            lease_client.release_leases(
                self._api, [lease for lease in leased if lease.node in mine and self._is_dead(lease)]
            )
            held = {lease.node for lease in leased if lease.holder == self.status.identity}
            fresh = (mine & held) - self._shown
            if fresh:
                self._stopping.wait(lease_client.WATCH_DELAY_S)
                count = lease_client.requeue_pods(self._api, fresh, f"kwok-{self.status.identity.rpartition('_')[2]}")
                log.debug("pods_shown_again", shard=self.shard.index, nodes=len(fresh), pods=count)
            self._shown |= fresh
        except errors.ClusterError as error:
            log.debug("pods_not_shown_again", shard=self.shard.index, error=str(error))
        if mine <= self._shown or time.monotonic() - self._new_since > READY_S:
            self._new_since = None

    def _show_nodes_again(self, process: backend.RunningKwok) -> None:
        """Show nodes once more to a new process that has not got hold of them, and gets hold of no others either."""
        new = self.status.state is ShardState.STARTING or self._new_since is not None
        if self.shard.drives_all or not new or process.ran_s < NUDGE_S or time.monotonic() < self._lacking_at:
            return
        self._lacking_at = time.monotonic() + NUDGE_S
        try:
            lacking = {name for name, _ in self._mine()} - {each.node for each in lease_client.held_leases(self._api)}
            if lacking and lacking == self._lacking:
                log.debug("nodes_shown_again", shard=self.shard.index, nodes=len(lacking))
                lease_client.requeue_nodes(self._api, lacking, self.shard.name, self._stopping.wait)
            self._lacking = lacking
        except errors.ClusterError as error:
            log.debug("nodes_not_shown_again", shard=self.shard.index, error=str(error))

    def _show_the_way(self, process: backend.RunningKwok) -> None:
        """Let nodes that have come since the last look show where their kwok answers."""
        mine = frozenset(name for name, _ in self._mine())
        if mine != self._placed:
            process.place(mine - self._placed)
            self._placed = mine

    def _is_dead(self, lease: node_leases.NodeLease) -> bool:
        """Return whether a lease of our nodes is held by a process of ours that is no more.

        That is so of one we saw end, and of any from its place that was last heard of before the present one
        began: it may have ended before anybody learnt its name, or its last request arrived after its end.
        """
        from_here = self._place.names(lease.holder)
        unheard = from_here and lease.holder != self.status.identity and lease.renewed < self._began
        return lease.holder in self._dead or unheard

    def _mine(self) -> list[tuple[str, str]]:
        return [each for each in self._nodes() if self.shard.drives_all or each[1] == self.shard.name]

    def _sampled(self) -> list[node_leases.NodeLease] | None:
        """Return the leases of a few of its nodes; None if the API server does not answer."""
        names = [name for name, _ in self._mine()]
        chosen = names[:: max(1, len(names) // SAMPLE)][:SAMPLE]
        if (heard := self._heard(chosen)) is not None:
            return heard
        found = []
        for name in chosen:
            try:
                answer = self._api.send(node_leases.get_request(name))
            except errors.ClusterError:
                return None
            if answer.status == HTTPStatus.OK:
                found.append(node_leases.parse_lease(answer.json()))
        return found

    def _heard(self, chosen: Sequence[str]) -> list[node_leases.NodeLease] | None:
        """Return what was heard of some leases, if that is enough: all is well, and nothing has just begun."""
        if self.status.state is not ShardState.READY or self._new_since is not None:
            return None
        heard = self._beats.heard(chosen)
        late_s = self._wanted.spec.lease_duration.total_seconds() / 4
        well = heard is not None and node_leases.lag_s(heard, 4 * late_s, datetime.now(UTC)) <= late_s
        return heard if well and all(each.holder == self.status.identity for each in heard or ()) else None

    def release(self, identity: str, *, all_of_ours: bool = False) -> int | None:
        """Let go of the leases that a process which is dead still holds; return how many, None if nobody answers.

        *all_of_ours*: also what else was held from its place before the present process began.
        """
        if not (identity or all_of_ours) or not self._wanted.spec.lease_duration:
            return 0
        self._dead.add(identity)
        mine = {name for name, _ in self._mine()} if all_of_ours else set()
        try:
            held = [
                each
                for each in lease_client.held_leases(self._api)
                if each.holder == identity or (each.node in mine and self._is_dead(each))
            ]
        except errors.ClusterError:
            return None
        lease_client.release_leases(self._api, held)
        log.info("leases_released", shard=self.shard.index, count=len(held))
        return len(held)

    # what it tells

    def _tell(self, **fields: object) -> None:
        self.status = replace(self.status, **fields)  # type: ignore[arg-type]  # fields of Status

    def _listen(self, line: log_lines.LogLine) -> None:
        if self._said.may_speak():
            ending = line.keys.get("err") == "context canceled"  # what it says when it was told to end
            level = getattr(log, line.level if line.level != "info" and not ending else "debug")
            level("kwok_said", shard=self.shard.index, said=line.event, **_safe(line.keys))


def _who(process: backend.RunningKwok) -> dict[str, object]:
    return {"pod": process.pod} if process.pod else {"pid": process.pid}


def _safe(keys: Mapping[str, object]) -> dict[str, object]:
    """Return keys that do not hide those of the log line itself."""
    return {f"kwok_{key}": value for key, value in keys.items()}


def _bytes(quantity: str) -> int:
    return int(units.quantity_value(quantity))


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
