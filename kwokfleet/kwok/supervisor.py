"""Supervisor of kwok: one thread per shard, and one that writes the status file.

Shards are added and removed as the files say, each after its nodes have moved. No node is ever driven by two shards.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from kwokfleet.kube import requests
from kwokfleet.kube.informer import reflector
from kwokfleet.kwok import backend as backends
from kwokfleet.kwok import lease_watch, process, shard, sharding

STATUS_S = 0.25
STATUS_FILE, RESTART_FILE = "status.json", "restart"


class Supervisor:
    """Runs all shards. Close it, or use it in a `with` block."""

    def __init__(  # noqa: PLR0913, PLR0917  # the cluster, the configuration and the backend
        self,
        api: requests.RequestSender,
        desired: backends.DesiredKwok,
        folder: Path,
        nodes: backends.ListNodes,
        watch_api: reflector.WatchApi,
        backend: backends.Backend | None = None,
    ) -> None:
        self._api, self.desired, self._folder, self._nodes, self._watch_api = api, desired, folder, nodes, watch_api
        self.backend = backend or backends.LocalBackend(folder)
        self._shards: list[shard.ShardRunner] = []
        self._lock = process.lock_folder(folder)
        (folder / STATUS_FILE).unlink(missing_ok=True)  # of a killed supervisor
        self._stopping = threading.Event()
        self._status_thread = threading.Thread(target=self._write_statuses, name="kwok-status", daemon=True)

    def __enter__(self) -> Self:
        """Start all shards."""
        try:
            self.backend.open()
        except BaseException:
            self._lock.close()
            raise
        self._grow(self.desired.spec.shards)
        self._status_thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop all shards; pods continue."""
        self._close(remove_pods=False)

    def end(self) -> None:
        """Stop all shards, and remove their pods."""
        self._close(remove_pods=True)

    def _close(self, *, remove_pods: bool) -> None:
        self._stopping.set()
        self._status_thread.join()
        if not remove_pods:
            for runner in self._shards:
                runner.leave()
        self._shrink(0, scale=remove_pods)
        self.backend.close()
        (self._folder / STATUS_FILE).unlink(missing_ok=True)
        self._lock.close()

    def change(self, desired: backends.DesiredKwok) -> bool:
        """Apply another configuration; return whether a process was stopped for it.

        `finish_change` applies what must wait until nodes have moved.
        """
        self.desired = desired
        return self._apply_desired()

    def finish_change(self) -> bool:
        """Apply what had to wait, as far as nodes have moved; return whether nothing waits any more.

        A surplus shard runs until it has no nodes. A shard that drives all nodes does so until each node has a
        shard label. One of several shards becomes the only one after the others have stopped.
        """
        count = self.desired.spec.shards
        surplus = {runner.shard.name for runner in self._shards[count:]}
        if not any(name in surplus for _, name in self._nodes()):
            self._shrink(count)
        self._apply_desired()
        return len(self._shards) == count and not any(map(self._must_wait, self._shards))

    def _apply_desired(self) -> bool:
        """Update the shards that need not wait; return whether a process was stopped for it.

        New shards start only after no shard drives all nodes: it would take their nodes back.
        """
        count = self.desired.spec.shards
        self.backend.scale(self.desired, len(self._shards))
        stopped = [runner.update(self.desired) for runner in self._shards[:count] if not self._must_wait(runner)]
        if count == 1 or not any(runner.runs_as.drives_all for runner in self._shards):
            self._grow(count)
        return any(stopped)

    def _must_wait(self, runner: shard.ShardRunner) -> bool:
        drives_all, will_drive_all = runner.shard.drives_all, sharding.shard_spec(self.desired.spec, 0).drives_all
        if drives_all == will_drive_all:
            return False
        return len(self._shards) > 1 if will_drive_all else any(not name for _, name in self._nodes())

    def restart(self, index: int | None = None) -> None:
        """Restart one shard, or all."""
        for runner in self._shards:
            if index is None or runner.shard.index == index:
                runner.restart()

    def statuses(self) -> list[shard.ShardStatus]:
        """Return the status of each shard."""
        return [runner.status for runner in self._shards]

    def _grow(self, count: int) -> None:
        if len(self._shards) < count:
            self.backend.scale(self.desired, count)
        for index in range(len(self._shards), count):
            runner = shard.ShardRunner(
                self._api,
                self.desired,
                sharding.shard_spec(self.desired.spec, index),
                self.backend.shard_backend(index),
                self._nodes,
                lease_watch.LeaseWatch(self._watch_api),
            )
            self._shards.append(runner)
            runner.start()

    def _shrink(self, count: int, *, scale: bool = True) -> None:
        surplus, self._shards = self._shards[count:], self._shards[:count]
        if surplus and scale:
            self.backend.scale(self.desired, count)
        for runner in surplus:
            runner.stop()
        for runner in surplus:
            runner.join()

    def _write_statuses(self) -> None:
        """Write the status file after each change, and handle the restart file."""
        last: list[shard.ShardStatus] = []
        restart_file = self._folder / RESTART_FILE
        while not self._stopping.wait(STATUS_S):
            self.backend.repair()
            statuses = self.statuses()
            if statuses != last:
                last = statuses
                write_status(self._folder, statuses)
            if restart_file.exists():
                text = restart_file.read_text().strip()
                restart_file.unlink(missing_ok=True)
                self.restart(int(text) if text.isdigit() else None)


def write_status(folder: Path, statuses: Sequence[shard.ShardStatus]) -> None:
    """Write the status file for `kwokfleet kwok status`."""
    part = folder / f".{STATUS_FILE}.part"
    part.write_text(json.dumps([asdict(status) for status in statuses]))
    part.replace(folder / STATUS_FILE)


def read_status(folder: Path) -> list[shard.ShardStatus] | None:
    """Return the statuses of a running supervisor; None without one."""
    if not process.is_locked(folder):  # a killed supervisor leaves its status file behind
        return None
    try:
        entries = json.loads((folder / STATUS_FILE).read_text())
        return [shard.ShardStatus(**{**entry, "state": shard.ShardState(entry["state"])}) for entry in entries]
    except (OSError, ValueError, TypeError):
        return None


def identities(folder: Path) -> frozenset[str]:
    """Return the lease holder identities of our processes, also of earlier ones."""
    records = (process.read_record(path) for path in folder.glob("shard-*"))
    return frozenset(record.identity for record in records if record and record.identity)
