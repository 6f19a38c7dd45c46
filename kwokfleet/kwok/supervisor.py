"""The kwok controller, looked after: all its processes, never two for one node, and the books of how they fare.

One thread for each shard, and one that keeps the books. Shards come and go as the files say, each when
the nodes it is about have moved. Where they run is a Site's business: processes of this machine, or pods.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, Self

from kwokfleet.kube import requests
from kwokfleet.kube.informer import reflector
from kwokfleet.kwok import backend, lease_watch, process, shard, sharding

BOOKS_S = 0.25
STATUS_FILE, RESTART_FILE = "status.json", "restart"


class Backend(Protocol):
    """Where all shards run."""

    name: str
    """What tells it from other sites; empty for this machine."""

    def open(self) -> None:
        """Begin; raise if that is not possible."""

    def lay_out(self, wanted: backend.DesiredKwok, count: int) -> None:
        """Let there be so many places, for kwoks that run so; what cannot be done now is done by `mend`."""

    def mend(self) -> None:
        """Do what could not be done, or what somebody else has undone."""

    def place(self, index: int) -> backend.ShardBackend:
        """Return where one shard runs."""

    def close(self) -> None:
        """End; what runs there goes on if it can."""


class LocalBackend:
    """This machine: each shard has a folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Do nothing: a folder is made when it is needed."""

    def lay_out(self, wanted: backend.DesiredKwok, count: int) -> None:
        """Do nothing: processes come and go with their shards."""

    def mend(self) -> None:
        """Do nothing: nobody else has a hand in it."""

    def place(self, index: int) -> backend.LocalShardBackend:
        """Return the folder of a shard."""
        return backend.LocalShardBackend(process.ProcessFolder(self._folder / f"shard-{index}"))

    def close(self) -> None:
        """Do nothing: processes have ended with their shards."""


class Supervisor:
    """Keeps all shards going. Close it, or use it in a `with` block."""

    def __init__(  # noqa: PLR0913, PLR0917  # what kwok is kept going with
        self,
        api: requests.RequestSender,
        wanted: backend.DesiredKwok,
        folder: Path,
        nodes: backend.ListNodes,
        watched: reflector.WatchApi,
        site: Backend | None = None,
    ) -> None:
        self._api, self.wanted, self._folder, self._nodes, self._watched = api, wanted, folder, nodes, watched
        self.site = site or LocalBackend(folder)
        self._shards: list[shard.ShardRunner] = []
        self._claim = process.lock_folder(folder)
        (folder / STATUS_FILE).unlink(missing_ok=True)  # of one that was killed
        self._ending = threading.Event()
        self._clerk = threading.Thread(target=self._keep_books, name="kwok-clerk", daemon=True)

    def __enter__(self) -> Self:
        """Start all shards."""
        try:
            self.site.open()
        except BaseException:
            self._claim.close()
            raise
        self._grow(self.wanted.spec.shards)
        self._clerk.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End all shards; those that run without us go on."""
        self._close(for_good=False)

    def end(self) -> None:
        """End all shards, wherever they run: there shall be no kwok of this site any more."""
        self._close(for_good=True)

    def _close(self, *, for_good: bool) -> None:
        self._ending.set()
        self._clerk.join()
        if not for_good:
            for each in self._shards:
                each.leave()
        self._shrink(0, lay_out=for_good)
        self.site.close()
        (self._folder / STATUS_FILE).unlink(missing_ok=True)
        self._claim.close()

    def change(self, wanted: backend.DesiredKwok) -> bool:
        """Let kwok run in another way; return whether a running process was ended for it.

        What must wait until nodes have moved is done by `retire`.
        """
        self.wanted = wanted
        return self._follow()

    def retire(self) -> bool:
        """Do what had to wait, if nodes have moved meanwhile; return whether nothing waits any more.

        Shards that are too many go on until no node is theirs. One that drives all nodes goes on so until each says
        whose it is; one of several becomes the only one when the others have gone.
        """
        count = self.wanted.spec.shards
        leaving = {each.shard.name for each in self._shards[count:]}
        if not any(name in leaving for _, name in self._nodes()):
            self._shrink(count)
        self._follow()
        return len(self._shards) == count and not any(map(self._must_wait, self._shards))

    def _follow(self) -> bool:
        """Let all shards that can go by the present wish; return whether a process was ended for it.

        New ones come when none is left that drives all nodes: it would take back what is theirs.
        """
        count = self.wanted.spec.shards
        self.site.lay_out(self.wanted, len(self._shards))
        ended = [each.follow(self.wanted) for each in self._shards[:count] if not self._must_wait(each)]
        if count == 1 or not any(each.runs_as.drives_all for each in self._shards):
            self._grow(count)
        return any(ended)

    def _must_wait(self, each: shard.ShardRunner) -> bool:
        alone, will_be = each.shard.drives_all, sharding.shard_spec(self.wanted.spec, 0).drives_all
        if alone == will_be:
            return False
        return len(self._shards) > 1 if will_be else any(not name for _, name in self._nodes())

    def restart(self, index: int | None = None) -> None:
        """Start processes anew: one, or all."""
        for each in self._shards:
            if index is None or each.shard.index == index:
                each.restart()

    def statuses(self) -> list[shard.ShardStatus]:
        """Return how each shard fares."""
        return [each.status for each in self._shards]

    def _grow(self, count: int) -> None:
        if len(self._shards) < count:
            self.site.lay_out(self.wanted, count)
        for index in range(len(self._shards), count):
            heard, place = lease_watch.LeaseWatch(self._watched), self.site.place(index)
            made = shard.ShardRunner(
                self._api, self.wanted, sharding.shard_spec(self.wanted.spec, index), place, self._nodes, heard
            )
            self._shards.append(made)
            made.start()

    def _shrink(self, count: int, *, lay_out: bool = True) -> None:
        leaving, self._shards = self._shards[count:], self._shards[:count]
        if leaving and lay_out:
            self.site.lay_out(self.wanted, count)
        for each in leaving:
            each.stop()
        for each in leaving:
            each.join()

    def _keep_books(self) -> None:
        """Write down how the shards fare whenever that changes, and do what was asked for in the same folder."""
        last: list[shard.ShardStatus] = []
        asked = self._folder / RESTART_FILE
        while not self._ending.wait(BOOKS_S):
            self.site.mend()
            now = self.statuses()
            if now != last:
                last = now
                write_status(self._folder, now)
            if asked.exists():
                text = asked.read_text().strip()
                asked.unlink(missing_ok=True)
                self.restart(int(text) if text.isdigit() else None)


def write_status(folder: Path, statuses: Sequence[shard.ShardStatus]) -> None:
    """Write down how the shards fare, for `kwokfleet kwok status`."""
    part = folder / f".{STATUS_FILE}.part"
    part.write_text(json.dumps([asdict(each) for each in statuses]))
    part.replace(folder / STATUS_FILE)


def read_status(folder: Path) -> list[shard.ShardStatus] | None:
    """Return what a keeper has written down, None if none runs."""
    if not process.is_locked(folder):  # one that was killed leaves its books behind
        return None
    try:
        found = json.loads((folder / STATUS_FILE).read_text())
        return [shard.ShardStatus(**{**each, "state": shard.ShardState(each["state"])}) for each in found]
    except (OSError, ValueError, TypeError):
        return None


def identities(folder: Path) -> frozenset[str]:
    """Return the names under which processes of ours, now or in a former life, hold leases."""
    notes = (process.read_record(process.ProcessFolder(each)) for each in folder.glob("shard-*"))
    return frozenset(each.identity for each in notes if each and each.identity)
