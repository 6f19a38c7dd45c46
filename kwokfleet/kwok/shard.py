"""ShardRunner: runs the kwok of one shard, restarts it, and requeues what it has skipped.

A process that exits is restarted: at once the first times, then after growing pauses. A configuration that kwok
rejects is reported and retried rarely. Before a restart the leases of the dead process are released, so that the
new one drives its nodes at once and not after they expire. Kubernetes restarts a kwok in a pod; the rest is the same.
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
from kwokfleet.kwok import backend, exits, lease_client, lease_watch, log_lines, node_leases, restart_policy, sharding

log = structlog.get_logger()

POLL_S = 0.2
"""Interval of checks whether the process runs."""
CHECK_S = 2.0
"""Interval of checks of memory and leases."""
READY_S = 30.0
UNREACHABLE_PAUSE_S = 1.0
"""Pause between requests while the API server does not respond."""
REQUEUE_NODES_S = 2.0
"""A new process without new leases for this time gets its nodes assigned again."""
SAMPLE_SIZE = 4
"""Number of leases that are checked for lag."""
STUCK_FACTOR = 3.0
"""A running process without renewals for this multiple of the lease duration is stuck."""
_MAX_LINES_PER_S = 20


class ShardState(StrEnum):
    """State of a shard."""

    STARTING = "starting"
    READY = "ready"
    LAGGING = "lagging"
    WAITING = "waiting"
    """Between an exit and the next start."""
    REFUSED = "refused"
    """kwok rejects its configuration."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Status of a shard; the field names are JSON keys."""

    shard: int
    state: ShardState = ShardState.STARTING
    pid: int = 0
    port: int = 0
    restarts: int = 0
    why: str = ""
    """Reason of the last unrequested exit."""
    identity: str = ""
    """Lease holder identity."""
    memory: int = 0
    lag_s: float = 0.0
    pause_s: float = 0.0
    pod: str = ""


class ShardRunner(threading.Thread):
    """Keeps the kwok of one shard running."""

    def __init__(  # noqa: PLR0913, PLR0917  # the cluster, the configuration and the backend
        self,
        api: requests.RequestSender,
        desired: backend.DesiredKwok,
        shard: sharding.ShardSpec,
        shard_backend: backend.ShardBackend,
        nodes: backend.ListNodes,
        lease_watch: lease_watch.LeaseWatch,
    ) -> None:
        super().__init__(name=f"kwok-{shard.index}", daemon=True)
        self._api, self._desired, self.shard, self._backend, self._nodes = api, desired, shard, shard_backend, nodes
        self._lease_watch = lease_watch
        self.runs_as = shard
        """The ShardSpec of the running process, until its leases are released."""
        self._stop_requested, self._restart_requested = threading.Event(), threading.Event()
        self._leaving = False
        """Whether kwok continues without this thread."""
        self._exit_text = ""
        """Reason of the last unrequested exit."""
        self._record = restart_policy.RestartRecord()
        self._throttle = _LineThrottle()
        self._last_unreachable = 0.0
        """Last time without a response of the API server."""
        self._new_since: float | None = None
        """Start of a new process, until the pods of all its nodes are requeued."""
        self._requeued_nodes: set[str] = set()
        self._adopted = False
        """Whether the process was already running: its pods need no requeue."""
        self._unleased_nodes, self._next_lease_check = set[str](), 0.0
        """Nodes without a lease at the last check, and the time of the next one."""
        self._addressed_nodes: frozenset[str] = frozenset()
        """Nodes with the address of this kwok."""
        self._process_start = datetime.now(UTC)
        self._held_by: str | None = None
        """Identity of the last process until its leases are released; empty if it is unknown."""
        self._dead_identities: set[str] = set()
        """Identities of dead processes: a last request of one may take a lease after its exit."""
        self.status = ShardStatus(shard.index)

    def stop(self) -> None:
        """Request the end of the process and of this thread."""
        self._stop_requested.set()
        self._restart_requested.set()

    def leave(self) -> None:
        """Request the end of this thread; a kwok that its backend restarts continues."""
        self._leaving = self._backend.restarts_itself
        self.stop()

    def restart(self) -> None:
        """Request a new process."""
        self._restart_requested.set()

    def update(self, desired: backend.DesiredKwok) -> bool:
        """Apply another configuration; return whether it needs a new process, which is then requested."""
        if desired is self._desired:
            return False
        differs = desired.differs(self._desired, self.shard.index)
        self._desired = desired
        self.shard = sharding.shard_spec(desired.spec, self.shard.index)
        if differs and not self._backend.restarts_itself:
            self.restart()
        return differs

    def run(self) -> None:
        """Start kwok, watch it and restart it until stopped."""
        self._held_by = self._backend.stop_orphan() or None
        while self._may_start():
            try:
                self._run_once()
            except Exception as error:  # the thread must survive
                if not isinstance(error, errors.KwokfleetError):
                    log.exception("kwok_supervision_failed", shard=self.shard.index)
                self._set_status(state=ShardState.REFUSED, why=str(error))
                self._stop_requested.wait(restart_policy.REJECTED_PAUSE_S)
        self._lease_watch.close()
        self._set_status(state=ShardState.STOPPED, pid=0)

    def _may_start(self) -> bool:
        """Release the leases of the last process, and retry while there is no response; return whether to start.

        A kwok that finds a held lease retries only after a quarter of its duration.
        """
        self._restart_requested.clear()  # before the last check of _stop_requested: stop() sets both
        while self._held_by is not None and not self._stop_requested.is_set():
            if self.release(self._held_by, all_of_ours=True) is not None:
                self._held_by = None
            else:
                why = "no response from the API server: kwok starts when it responds"
                self._set_status(state=ShardState.WAITING, pid=0, why=why)
                self._stop_requested.wait(UNREACHABLE_PAUSE_S)
        return not self._stop_requested.is_set()

    def _run_once(self) -> None:
        self.runs_as = self.shard
        kwok = self._backend.start(self._desired, self.runs_as, self._log_line)
        self._process_start, self._addressed_nodes, self._unleased_nodes = kwok.started_at, frozenset(), set()
        origin: dict[str, object] = {"pod": kwok.pod} if kwok.pod else {"pid": kwok.pid}
        log.info("kwok_started", shard=self.shard.index, **origin, port=kwok.port)
        self._set_status(
            state=ShardState.STARTING, identity="", pause_s=0.0, port=kwok.port, pid=kwok.pid, pod=kwok.pod
        )
        stop_reason = ""
        try:
            stop_reason = self._watch(kwok)
        finally:
            requested = self._restart_requested.is_set() or self._stop_requested.is_set()
            if not self._leaving and kwok.exit_reason() is None:
                kwok.stop()
        if not self._leaving:
            self._handle_exit(kwok, stop_reason, requested=requested)

    def _watch(self, kwok: backend.RunningKwok) -> str:
        """Watch kwok until it exits or must stop; return why it must stop."""
        checked, self._adopted = 0.0, kwok.ran_s > READY_S
        while kwok.exit_reason() is None and not self._restart_requested.wait(POLL_S):
            is_new = self.status.state is ShardState.STARTING or self._new_since is not None
            if time.monotonic() - checked < CHECK_S and not is_new:
                continue
            checked = time.monotonic()
            self._process_start = kwok.started_at
            memory = kwok.memory_bytes()
            self._set_status(memory=memory, why=kwok.not_running_reason() or self._exit_text)
            limit = self._desired.spec.memory_limit
            if limit is not None and memory > int(units.quantity_value(limit)):
                return f"memory {memory >> 20} MB exceeds the limit {limit}"
            if self._is_stuck(kwok):
                return "it stopped renewing node leases"
        return ""

    def _handle_exit(self, kwok: backend.RunningKwok, stop_reason: str, *, requested: bool) -> None:
        """Record an exit, release the leases, and wait for the next start."""
        reason = kwok.exit_reason()
        self._process_start = kwok.replaced_at  # earlier renewals are of the dead process
        released = self.release(self.status.identity, all_of_ours=True)
        self._held_by = self.status.identity if released is None else None
        self.runs_as = self.shard
        if requested or (reason is exits.ExitReason.ASKED and not stop_reason):
            self._exit_text = ""
            self._set_status(why="")
            return
        self._record = self._record.after(kwok.ran_s)
        self._exit_text = why = stop_reason or f"{reason}: {kwok.last_error()}"
        is_rejected = reason is exits.ExitReason.CONFIGURATION
        pause = restart_policy.REJECTED_PAUSE_S if is_rejected else self._record.pause_s
        log.warning("kwok_ended", shard=self.shard.index, why=why, pause_s=pause, restarts=self._record.restarts)
        pause = 0.0 if self._backend.restarts_itself else pause
        state = ShardState.REFUSED if is_rejected else ShardState.WAITING
        self._set_status(state=state, pid=0, why=why, restarts=self._record.restarts, pause_s=pause)
        self._restart_requested.wait(pause)

    def _is_stuck(self, kwok: backend.RunningKwok) -> bool:
        """Check the leases and set the state; return whether a running process has stopped its work."""
        duration = self._desired.spec.lease_duration.total_seconds()
        if self.status.state is ShardState.STARTING and not kwok.is_healthy():
            return kwok.ran_s > READY_S * 2
        self._publish_address(kwok)
        if not duration:
            self._set_status(state=ShardState.READY)
            return False
        now = datetime.now(UTC)
        sample = self._sample_leases()
        if sample is None:
            self._last_unreachable = time.monotonic()
            return False  # kwok reconnects by itself when the API server responds
        own = [
            lease for lease in sample if lease.renewed >= kwok.started_at and lease.holder not in self._dead_identities
        ]
        if own and own[0].holder != self.status.identity:
            self._set_identity(kwok, own[0].holder)
        elif not own and any(map(self._is_dead, sample)):
            self.release("", all_of_ours=True)  # a last request of the dead process came after the release
        lag = node_leases.lag_s(sample, duration, now)
        is_driving = bool(own) or not (sample or (self.status.state is ShardState.STARTING and self._own_nodes()))
        state = ShardState.STARTING
        if is_driving:
            state = ShardState.LAGGING if lag > duration / 4 else ShardState.READY
        self._requeue_pods()
        self._requeue_nodes(kwok)
        if state is ShardState.READY and self.status.state is ShardState.STARTING:
            log.info("kwok_ready", shard=self.shard.index, after_s=round(kwok.ran_s, 2))
        self._set_status(state=state, lag_s=round(max(lag, 0.0), 1))
        connected_s = min(kwok.ran_s, time.monotonic() - self._last_unreachable)
        return lag > STUCK_FACTOR * duration and connected_s > STUCK_FACTOR * duration

    def _set_identity(self, kwok: backend.RunningKwok, identity: str) -> None:
        self._set_status(identity=identity)
        self._backend.record_identity(kwok.pid, identity)
        self._new_since, self._requeued_nodes = None if self._adopted else time.monotonic(), set()
        self._adopted = False

    def _requeue_pods(self) -> None:
        """Requeue the pods of nodes whose leases a new process got: it has skipped them."""
        if self._new_since is None:
            return
        nodes = self._own_nodes()
        try:
            leases = lease_client.held_leases(self._api)
            dead = [lease for lease in leases if lease.node in nodes and self._is_dead(lease)]
            lease_client.release_leases(self._api, dead)
            leased = {lease.node for lease in leases if lease.holder == self.status.identity}
            pending = (nodes & leased) - self._requeued_nodes
            if pending:
                self._stop_requested.wait(lease_client.WATCH_DELAY_S)
                count = lease_client.requeue_pods(self._api, pending, f"kwok-{self.status.identity.rpartition('_')[2]}")
                log.debug("pods_requeued", shard=self.shard.index, nodes=len(pending), pods=count)
            self._requeued_nodes |= pending
        except errors.ClusterError as error:
            log.debug("pods_not_requeued", shard=self.shard.index, error=str(error))
        if nodes <= self._requeued_nodes or time.monotonic() - self._new_since > READY_S:
            self._new_since = None

    def _requeue_nodes(self, kwok: backend.RunningKwok) -> None:
        """Assign nodes again to a new process that got no further leases since the last check."""
        is_new = self.status.state is ShardState.STARTING or self._new_since is not None
        is_due = kwok.ran_s >= REQUEUE_NODES_S and time.monotonic() >= self._next_lease_check
        if self.shard.drives_all or not is_new or not is_due:
            return
        self._next_lease_check = time.monotonic() + REQUEUE_NODES_S
        try:
            unleased = self._own_nodes() - {lease.node for lease in lease_client.held_leases(self._api)}
            if unleased and unleased == self._unleased_nodes:
                log.debug("nodes_requeued", shard=self.shard.index, nodes=len(unleased))
                lease_client.requeue_nodes(self._api, unleased, self.shard.name, self._stop_requested.wait)
            self._unleased_nodes = unleased
        except errors.ClusterError as error:
            log.debug("nodes_not_requeued", shard=self.shard.index, error=str(error))

    def _publish_address(self, kwok: backend.RunningKwok) -> None:
        """Write the address of kwok to new nodes."""
        nodes = frozenset(self._own_nodes())
        if nodes != self._addressed_nodes:
            kwok.publish_address(nodes - self._addressed_nodes)
            self._addressed_nodes = nodes

    def _is_dead(self, lease: node_leases.NodeLease) -> bool:
        """Return whether the holder of a lease is a dead process of ours.

        That is a process whose exit was seen, or one of this backend without a renewal since the present process
        started: its identity may be unknown, or its last request arrived after its exit.
        """
        is_former = self._backend.owns_holder(lease.holder) and lease.holder != self.status.identity
        return lease.holder in self._dead_identities or (is_former and lease.renewed < self._process_start)

    def _own_nodes(self) -> set[str]:
        return {name for name, shard in self._nodes() if self.shard.drives_all or shard == self.shard.name}

    def _sample_leases(self) -> list[node_leases.NodeLease] | None:
        """Return the leases of a few nodes; None if the API server does not respond."""
        names = [name for name, shard in self._nodes() if self.shard.drives_all or shard == self.shard.name]
        sample = names[:: max(1, len(names) // SAMPLE_SIZE)][:SAMPLE_SIZE]
        if (watched := self._watched_leases(sample)) is not None:
            return watched
        leases = []
        for name in sample:
            try:
                response = self._api.send(node_leases.get_request(name))
            except errors.ClusterError:
                return None
            if response.status == HTTPStatus.OK:
                leases.append(node_leases.parse_lease(response.json()))
        return leases

    def _watched_leases(self, nodes: Sequence[str]) -> list[node_leases.NodeLease] | None:
        """Return the leases from the watch if they prove that kwok is healthy; else None."""
        if self.status.state is not ShardState.READY or self._new_since is not None:
            return None
        leases = self._lease_watch.leases(nodes)
        if leases is None or any(lease.holder != self.status.identity for lease in leases):
            return None
        duration = self._desired.spec.lease_duration.total_seconds()
        return leases if node_leases.lag_s(leases, duration, datetime.now(UTC)) <= duration / 4 else None

    def release(self, identity: str, *, all_of_ours: bool = False) -> int | None:
        """Release the leases of a dead process; return their number, None without a response of the API server.

        *all_of_ours*: also leases that other dead processes of the backend hold.
        """
        if not (identity or all_of_ours) or not self._desired.spec.lease_duration:
            return 0
        self._dead_identities.add(identity)
        nodes = self._own_nodes() if all_of_ours else set()
        try:
            leases = [
                lease
                for lease in lease_client.held_leases(self._api)
                if lease.holder == identity or (lease.node in nodes and self._is_dead(lease))
            ]
        except errors.ClusterError:
            return None
        lease_client.release_leases(self._api, leases)
        log.info("leases_released", shard=self.shard.index, count=len(leases))
        return len(leases)

    def _set_status(self, **fields: object) -> None:
        self.status = replace(self.status, **fields)  # type: ignore[arg-type]  # fields of ShardStatus

    def _log_line(self, line: log_lines.LogLine) -> None:
        if self._throttle.allows_line():
            is_shutdown = line.keys.get("err") == "context canceled"  # logged after SIGTERM
            level = getattr(log, line.level if line.level != "info" and not is_shutdown else "debug")
            level("kwok_log", shard=self.shard.index, message=line.event, **_prefixed(line.keys))


def _prefixed(keys: Mapping[str, object]) -> dict[str, object]:
    """Return keys that do not collide with those of our log line."""
    return {f"kwok_{key}": value for key, value in keys.items()}


@dataclass(slots=True)
class _LineThrottle:
    """Limits log lines per second."""

    second: int = 0
    count: int = 0

    def allows_line(self) -> bool:
        now = int(time.monotonic())
        self.count = self.count + 1 if now == self.second else 1
        self.second = now
        return self.count <= _MAX_LINES_PER_S
