"""A copy of our own objects that follows the cluster: listed once, watched from then on.

Only objects with our label are asked for, and only what matters of them is kept. A mirror knows
when it does not know: until a kind has been listed to its end, and whenever its connection is
broken, the kind is *unknown*, and nobody may take an object that is not there for absent.

kwok has a dozen kinds that few fleets use. A connection and a thread for each would be most of what
a mirror costs, so these are only looked at now and then, and followed like the others from the
moment that there is an object of ours, or somebody is about to make one.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from kwokfleet.kube import requests
from kwokfleet.kube.informer.reflector import WatchApi
from kwokfleet.kube.informer.store import RARE_KINDS, ChangeListener, Poller, Store
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Kind

CLOSING_S = 2.0
LONGEST_WAIT_S = 1.0
"""Who waits looks at least this often, so that a signal is heard."""
LOOKERS = 3


@dataclass(frozen=True, slots=True)
class CacheView:
    """What a mirror shows at one moment."""

    objects: Mapping[ObjectKey, Observed]
    unknown: Mapping[str, str]
    """Kinds of which nobody knows what is there, and why."""
    missing: frozenset[str]
    """Kinds that the cluster does not have."""
    versions: Mapping[str, int]
    """The version up to which each kind is known."""
    settled: bool = True
    """Whether each kind is known, or was refused for good; if not, a moment's patience may help."""


class Informer:
    """Follows some kinds of object. Close it, or use it in a `with` block."""

    def __init__(
        self,
        api: WatchApi,
        kinds: Sequence[Kind] = requests.MANAGED_KINDS,
        selector: str = requests.DECLARED_SELECTOR,
        fields: str = "",
    ) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._followers = [Store(api, kind, (selector, fields), self._changed, self._stop) for kind in kinds]
        seldom = [each for each in self._followers if each.kind in RARE_KINDS]
        self._lookers = [Poller(part, self._stop) for start in range(LOOKERS) if (part := seldom[start::LOOKERS])]
        self._merged: tuple[tuple[int, ...], Mapping[ObjectKey, Observed]] = ((), {})

    def tell(self, heard: ChangeListener) -> None:
        """Tell somebody of every change from now on: quickly, for nothing else is followed meanwhile."""
        for each in self._followers:
            each.heard = heard

    def tell_restarts(self, restarted: Callable[[str], None]) -> None:
        """Tell somebody why a watch had to begin anew, whenever one does."""
        for each in self._followers:
            each.restarted = restarted

    def __enter__(self) -> Self:
        """Begin to follow."""
        for each in self._followers:
            if each.kind not in RARE_KINDS:
                each.begin()
        for looker in self._lookers:
            looker.start()
        return self

    def follow(self, kinds: AbstractSet[str]) -> None:
        """Follow some kinds from now on, also those that are seldom used: somebody is about to write to them."""
        for each in self._followers:
            if each.kind.kind in kinds:
                each.begin()

    def __exit__(self, *_exc: object) -> None:
        """Stop following."""
        self.close()

    def close(self) -> None:
        """Stop all threads and close all connections."""
        self._stop.set()
        for each in self._followers:
            each.interrupt()
        # One that waits for the first byte of an answer cannot be woken up.
        for looker in self._lookers:
            looker.join(CLOSING_S)
        for each in self._followers:
            if each.is_begun:
                each.join(CLOSING_S)

    def view(self) -> CacheView:
        """Return what is known now."""
        with self._changed:
            return CacheView(
                self._objects(),
                {each.kind.kind: each.trouble for each in self._followers if each.trouble},
                frozenset(each.kind.kind for each in self._followers if each.is_missing),
                {each.kind.kind: each.version for each in self._followers},
                all(each.is_settled for each in self._followers),
            )

    @property
    def settled(self) -> bool:
        """Whether each kind is known, or was refused for good; much quicker than a view."""
        return all(each.is_settled for each in self._followers)

    def _objects(self) -> Mapping[ObjectKey, Observed]:
        """Return everything there is: the same mapping as before if nothing has changed since."""
        marks = tuple(each.changes for each in self._followers)
        if self._merged[0] != marks:
            found: dict[ObjectKey, Observed] = {}
            for each in self._followers:
                found.update(each.objects)
            self._merged = (marks, found)
        return self._merged[1]

    def wait(self, is_so: Callable[[CacheView], bool], timeout_s: float) -> CacheView:
        """Wait until what is known is as wanted, or *timeout_s* have passed; return what is known then."""
        deadline = time.monotonic() + timeout_s
        with self._changed:  # held while looking, so that no change slips between the look and the wait
            while True:
                view = self.view()
                left = deadline - time.monotonic()
                if is_so(view) or left <= 0:
                    return view
                self._changed.wait(min(left, LONGEST_WAIT_S))

    def wait_until_known(self, timeout_s: float) -> CacheView:
        """Wait until every kind is known, or was refused for good."""
        return self.wait(lambda view: view.settled, timeout_s)
