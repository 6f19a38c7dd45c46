"""Where the kwok of a shard runs, and what whoever looks after it asks of that place; a process of ours is one way.

A place starts a kwok, or finds the one that runs there; what becomes of it is told by the kwok itself. All else
(leases, pods shown again, how it fares) does not depend on where it runs.
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
from kwokfleet.kwok import exits, flags, log_lines, process, sharding

ListNodes = Callable[[], Sequence[tuple[str, str]]]
"""Returns the names of the nodes that kwok should drive, each with the shard that its label names."""
LogListener = Callable[[log_lines.LogLine], None]


@dataclass(frozen=True, slots=True)
class DesiredKwok:
    """How kwok should run: if any of it changes, it is started anew."""

    program: Path
    spec: KwokControllerSpec
    kubeconfig: Path | None
    documents: tuple[Manifest, ...] = ()
    kinds: tuple[str, ...] = ()
    """What it plays beside Stages: `render.kwok_kinds` tells."""
    mark: str = ""
    """What stands for everything else that it reads but once: `kwok.read_once` tells."""

    def command(self, shard: sharding.ShardSpec) -> tuple[list[str], str]:
        """Return the flags and the configuration of one shard."""
        config = flags.config_file(self.spec, shard, self.documents, self.kinds)
        return flags.arguments(self.spec, shard, self.kinds), config

    def differs(self, other: "DesiredKwok", index: int) -> bool:
        """Return whether a process of one shard that was started as the other one says is another than this one's."""
        return self.process_of(index) != other.process_of(index)

    def process_of(self, index: int) -> tuple[object, ...]:
        """Return all that makes the process of one shard what it is."""
        shard = sharding.shard_spec(self.spec, index)
        return self.command(shard), flags.server_address(self.spec, shard), self.mark


class RunningKwok(Protocol):
    """One kwok, from its start to its end."""

    pid: int
    """0 if it is none of this machine's processes."""

    @property
    def port(self) -> int:
        """Where it answers."""

    @property
    def pod(self) -> str:
        """What its pod is called; empty if it has none."""

    @property
    def since(self) -> datetime:
        """When it began, by the clock of its machine; now, if it has yet to begin."""

    @property
    def until(self) -> datetime:
        """When the next one began, by the clock of its machine; now, if none has."""

    @property
    def ran_s(self) -> float:
        """How long it has run."""

    def ended(self) -> exits.ExitReason | None:
        """Return why it ended, None while it lives or nobody knows."""

    def last_words(self) -> str:
        """Return what it said in the end."""

    def lacks(self) -> str:
        """Return why it does not run yet."""

    def is_healthy(self) -> bool:
        """Return whether it has come up."""

    def memory(self) -> int:
        """Return the bytes it holds, 0 if nobody knows."""

    def place(self, nodes: AbstractSet[str]) -> None:
        """Let nodes that it drives show where it answers for them, if that is not known beforehand."""

    def stop(self) -> None:
        """End it."""


class ShardBackend(Protocol):
    """Where the kwok of one shard runs."""

    renews: bool
    """Whether a kwok that has ended, or should run in another way, is replaced by somebody else than us."""

    def leftover(self) -> str:
        """End what a former life of ours has left there; return under which name it held leases."""

    def start(self, wanted: DesiredKwok, shard: sharding.ShardSpec, listener: LogListener) -> RunningKwok:
        """Start a kwok, or return the one that runs."""

    def note(self, pid: int, identity: str) -> None:
        """Write down under which name a kwok holds leases, for a later life of ours."""

    def names(self, holder: str) -> bool:
        """Return whether somebody who holds a lease is, or was, a kwok of this place."""


class LocalShardBackend:
    """A folder of this machine: its kwok is a child of ours."""

    renews = False

    def __init__(self, folder: process.ProcessFolder) -> None:
        self._folder = folder

    def leftover(self) -> str:
        """End a process that outlived us."""
        return process.kill_orphan(self._folder)

    def start(self, wanted: DesiredKwok, shard: sharding.ShardSpec, listener: LogListener) -> process.KwokProcess:
        """Start a process."""
        arguments, config = wanted.command(shard)
        return process.start(
            wanted.program,
            arguments,
            kubeconfig=wanted.kubeconfig,
            folder=self._folder,
            config=config,
            listener=listener,
            address=flags.server_address(wanted.spec, shard),
        )

    def note(self, pid: int, identity: str) -> None:
        """Write it into the folder."""
        process.write_record(self._folder, pid, identity)

    def names(self, holder: str) -> bool:
        """Tell by the name of this machine, which kwok's own begins with."""
        return holder.startswith(f"{socket.gethostname()}_")
