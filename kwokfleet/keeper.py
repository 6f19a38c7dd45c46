"""The kwok controller, looked after: all its processes, never two for one node, and the books of how they fare.

One thread for each shard, and one that keeps the books. Shards come and go as the files say, each when
the nodes it is about have moved.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from kwokfleet import beats, shard
from kwokfleet.core import kwok, requests
from kwokfleet.edge import kwok as edge
from kwokfleet.edge import mirror

BOOKS_S = 0.25
STATUS_FILE, RESTART_FILE = "status.json", "restart"


class Keeper:
    """Keeps all shards going. Close it, or use it in a `with` block."""

    def __init__(
        self,
        api: requests.Sends,
        wanted: shard.Wanted,
        folder: Path,
        nodes: shard.Nodes,
        watched: mirror.Api,
    ) -> None:
        self._api, self.wanted, self._folder, self._nodes, self._watched = api, wanted, folder, nodes, watched
        self._shards: list[shard.Shard] = []
        self._claim = edge.claim(folder)
        (folder / STATUS_FILE).unlink(missing_ok=True)  # of one that was killed
        self._ending = threading.Event()
        self._clerk = threading.Thread(target=self._keep_books, name="kwok-clerk", daemon=True)

    def __enter__(self) -> Self:
        """Start all shards."""
        self._grow(self.wanted.spec.shards)
        self._clerk.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End all shards."""
        self._ending.set()
        self._shrink(0)
        self._clerk.join()
        (self._folder / STATUS_FILE).unlink(missing_ok=True)
        self._claim.close()

    def change(self, wanted: shard.Wanted) -> bool:
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
        ended = [each.follow(self.wanted) for each in self._shards[:count] if not self._must_wait(each)]
        if count == 1 or all(each.runs_as.count > 1 for each in self._shards):
            self._grow(count)
        return any(ended)

    def _must_wait(self, each: shard.Shard) -> bool:
        alone, will_be = each.shard.count == 1, self.wanted.spec.shards == 1
        if alone == will_be:
            return False
        return len(self._shards) > 1 if will_be else any(not name for _, name in self._nodes())

    def restart(self, index: int | None = None) -> None:
        """Start processes anew: one, or all."""
        for each in self._shards:
            if index is None or each.shard.index == index:
                each.restart()

    def statuses(self) -> list[shard.Status]:
        """Return how each shard fares."""
        return [each.status for each in self._shards]

    def _grow(self, count: int) -> None:
        for index in range(len(self._shards), count):
            folder = edge.Folder(self._folder / f"shard-{index}")
            heard = beats.Beats(self._watched)
            made = shard.Shard(self._api, self.wanted, kwok.Shard(index, count), folder, self._nodes, heard)
            self._shards.append(made)
            made.start()

    def _shrink(self, count: int) -> None:
        leaving, self._shards = self._shards[count:], self._shards[:count]
        for each in leaving:
            each.stop()
        for each in leaving:
            each.join()

    def _keep_books(self) -> None:
        """Write down how the shards fare whenever that changes, and do what was asked for in the same folder."""
        last: list[shard.Status] = []
        asked = self._folder / RESTART_FILE
        while not self._ending.wait(BOOKS_S):
            now = self.statuses()
            if now != last:
                last = now
                write_status(self._folder, now)
            if asked.exists():
                text = asked.read_text().strip()
                asked.unlink(missing_ok=True)
                self.restart(int(text) if text.isdigit() else None)


def write_status(folder: Path, statuses: Sequence[shard.Status]) -> None:
    """Write down how the shards fare, for `kwokfleet kwok status`."""
    part = folder / f".{STATUS_FILE}.part"
    part.write_text(json.dumps([asdict(each) for each in statuses]))
    part.replace(folder / STATUS_FILE)


def read_status(folder: Path) -> list[shard.Status] | None:
    """Return what a keeper has written down, None if none runs."""
    if not edge.is_claimed(folder):  # one that was killed leaves its books behind
        return None
    try:
        found = json.loads((folder / STATUS_FILE).read_text())
        return [shard.Status(**{**each, "state": shard.State(each["state"])}) for each in found]
    except (OSError, ValueError, TypeError):
        return None


def identities(folder: Path) -> frozenset[str]:
    """Return the names under which processes of ours, now or in a former life, hold leases."""
    notes = (edge.noted(edge.Folder(each)) for each in folder.glob("shard-*"))
    return frozenset(each.identity for each in notes if each and each.identity)
