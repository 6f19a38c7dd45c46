"""Backends: where kwok runs. A Backend has one ShardBackend per shard, which starts or finds a RunningKwok.

Leases, requeued pods and shard status do not depend on the backend.
"""

import socket
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import exits, flags, process, sharding

ListNodes = Callable[[], Sequence[tuple[str, str]]]
"""Returns the names of the nodes to drive, each with its shard label."""
LogListener = process.LogListener


@dataclass(frozen=True, slots=True)
class DesiredKwok:
    """The desired configuration of kwok; a change needs a restart."""

    program: Path
    spec: KwokControllerSpec
    kubeconfig: Path | None
    documents: tuple[Manifest, ...] = ()
    kinds: tuple[str, ...] = ()
    """Kinds that kwok handles beside Stages; see `render.desired.kwok_kinds`."""
    mark: str = ""
    """Digest of objects that kwok reads only once; see `flags.static_digest`."""

    def command(self, shard: sharding.ShardSpec) -> tuple[list[str], str]:
        """Return the flags and the configuration file of a shard."""
        config = flags.config_file(self.spec, shard, self.documents, self.kinds)
        return flags.arguments(self.spec, shard, self.kinds), config

    def differs(self, other: "DesiredKwok", index: int) -> bool:
        """Return whether the process of a shard differs between two configurations."""

        def identity(desired: "DesiredKwok") -> tuple[object, ...]:
            shard = sharding.shard_spec(desired.spec, index)
            return desired.command(shard), flags.server_address(desired.spec, shard), desired.mark

        return identity(self) != identity(other)


class RunningKwok(Protocol):
    """One kwok instance from its start to its exit."""

    pid: int
    """0 if it is not a local process."""

    @property
    def port(self) -> int:
        """The port of its server."""

    @property
    def pod(self) -> str:
        """The name of its pod; empty without one."""

    @property
    def started_at(self) -> datetime:
        """Its start, by the clock of its machine; now if it has not started."""

    @property
    def replaced_at(self) -> datetime:
        """The start of the next instance, by the clock of its machine; now if there is none."""

    @property
    def ran_s(self) -> float:
        """Its run time."""

    def exit_reason(self) -> exits.ExitReason | None:
        """Return why it exited; None while it runs or if that is unknown."""

    def last_error(self) -> str:
        """Return the last error of its log."""

    def not_running_reason(self) -> str:
        """Return why it does not run yet."""

    def is_healthy(self) -> bool:
        """Return whether it has started up."""

    def memory_bytes(self) -> int:
        """Return its memory; 0 if unknown."""

    def publish_address(self, nodes: AbstractSet[str]) -> None:
        """Write its address to the nodes it drives, unless the files fix the address."""

    def stop(self) -> None:
        """Stop it and wait."""


class ShardBackend(Protocol):
    """Where the kwok of one shard runs."""

    restarts_itself: bool
    """Whether the backend itself restarts kwok after an exit or a change."""

    def stop_orphan(self) -> str:
        """Stop the kwok of an earlier kwokfleet process; return its lease holder identity."""

    def start(self, desired: DesiredKwok, shard: sharding.ShardSpec, listener: LogListener) -> RunningKwok:
        """Start kwok, or return the running one."""

    def record_identity(self, pid: int, identity: str) -> None:
        """Store the lease holder identity of kwok for a later kwokfleet process."""

    def owns_holder(self, holder: str) -> bool:
        """Return whether a lease holder is or was a kwok of this backend."""


class Backend(Protocol):
    """Where all shards run."""

    name: str
    """Unique name; empty for this machine."""

    def open(self) -> None:
        """Start; raise if the backend is not usable."""

    def scale(self, desired: DesiredKwok, count: int) -> None:
        """Provide *count* shards with a configuration; `repair` retries after a failure."""

    def repair(self) -> None:
        """Reconcile the backend with the last `scale`."""

    def shard_backend(self, index: int) -> ShardBackend:
        """Return the backend of one shard."""

    def close(self) -> None:
        """Stop; what runs independently continues."""


class LocalBackend:
    """Processes of this machine; each shard has a folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Do nothing: folders are created on demand."""

    def scale(self, desired: DesiredKwok, count: int) -> None:
        """Do nothing: processes start and stop with their shards."""

    def repair(self) -> None:
        """Do nothing: no other program changes the processes."""

    def shard_backend(self, index: int) -> "LocalShardBackend":
        """Return the folder of a shard."""
        return LocalShardBackend(self._folder / f"shard-{index}")

    def close(self) -> None:
        """Do nothing: processes have stopped with their shards."""


class LocalShardBackend:
    """A child process in a folder of its own."""

    restarts_itself = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stop_orphan(self) -> str:
        """Kill a process that outlived its kwokfleet process."""
        return process.kill_orphan(self._folder)

    def start(self, desired: DesiredKwok, shard: sharding.ShardSpec, listener: LogListener) -> process.KwokProcess:
        """Start a process."""
        arguments, config = desired.command(shard)
        return process.start(
            desired.program,
            arguments,
            kubeconfig=desired.kubeconfig,
            folder=self._folder,
            config=config,
            listener=listener,
            address=flags.server_address(desired.spec, shard),
        )

    def record_identity(self, pid: int, identity: str) -> None:
        """Store the identity in the folder."""
        process.write_record(self._folder, pid, identity)

    def owns_holder(self, holder: str) -> bool:
        """Compare host names: a holder identity of kwok starts with it."""
        return holder.startswith(f"{socket.gethostname()}_")
