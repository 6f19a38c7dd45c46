"""The objects of one kind as they are now, followed; or, of a kind that few use, looked at now and then."""

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import observed, requests
from kwokfleet.kube.backoff import Backoff
from kwokfleet.kube.informer import reflector
from kwokfleet.kube.informer.reflector import WatchApi
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Kind

POLL_S = 290.0
"""How often a kind of which nothing of ours was there is looked at."""
RARE_KINDS = frozenset(requests.KWOK_KINDS)
"""Kinds that are not followed before there is a need."""

ChangeListener = Callable[[str, AbstractSet[str]], None]
"""Is told of which kind something has changed, and in which Fleets; "" stands for any."""


class Poller(threading.Thread):
    """Looks now and then at kinds that are not followed."""

    def __init__(self, kinds: "Sequence[Store]", stop: threading.Event) -> None:
        super().__init__(name="mirror-looker", daemon=True)
        self._kinds, self._stopping = kinds, stop

    def run(self) -> None:
        """Look at each that nobody follows, again soon if that failed, until all are followed or we are stopped."""
        backoff = Backoff(reflector.FIRST_PAUSE_S, reflector.MAX_PAUSE_S)
        while waiting := [each for each in self._kinds if not each.is_begun]:
            for each in waiting:
                if self._stopping.is_set():
                    return
                each.look()
            settled = all(each.is_settled for each in waiting if not each.is_begun)
            if settled:
                backoff.reset()
            self._stopping.wait(POLL_S if settled else backoff.next_s())


class Store(reflector.Reflector):
    """The objects of one kind, as they are now."""

    def __init__(
        self, api: WatchApi, kind: Kind, chosen: tuple[str, str], changed: threading.Condition, stop: threading.Event
    ) -> None:
        super().__init__(api, kind, chosen, stop)
        self._changed = changed
        self._projector = observed.ObservedFactory()
        self._found: dict[ObjectKey, Observed] = {}
        """The list that is being made."""
        self.objects: dict[ObjectKey, Observed] = {}
        self.changes = 0
        """Counts the changes of what there is."""
        self.heard: ChangeListener = lambda _kind, _fleets: None
        self._touched: set[str] = set()
        self._news = False
        self.trouble = "has not been listed yet"
        self.is_settled = False
        """Whether what there is is known, or was refused for good."""
        self.is_missing = False
        self.is_begun = False

    def begin(self) -> None:
        """Begin to follow, unless that has begun."""
        with self._changed:
            if not self.is_begun and not self._stopping.is_set():
                self.is_begun = True
                self.start()

    def look(self) -> None:
        """See whether there is anything of ours; if there is, begin to follow."""
        try:
            answer = self._api.send(
                requests.list_page(self.kind, self._selector, fields=self._fields, metadata_only=True)
            )
        except errors.UnreachableError as error:
            self._look_again(str(error))
            return
        with self._changed:
            if self.is_begun:  # somebody wanted it meanwhile, and knows better
                return
            if answer.status != HTTPStatus.OK:
                self._refused(answer)
            elif (page := answer.json()).get("items"):
                self._look_again("is being listed")
                self.begin()
            elif self.trouble or self.is_missing:
                self.listing()
                self._whole(str(page["metadata"]["resourceVersion"]))

    def _look_again(self, trouble: str) -> None:
        with self._changed:
            if not self.is_begun:
                self._resume = ""
                self.say(trouble, settled=False)

    # what is made of what comes

    def say(self, trouble: str, *, settled: bool = True) -> None:
        """Wake up who waits."""
        with self._changed:
            self.trouble = trouble
            self.is_settled = settled
            self._changed.notify_all()
        if settled:
            self.heard(self.kind.kind, {""})

    def missing(self) -> None:
        """Keep nothing: that is known, too."""
        with self._changed:
            self.objects, self.is_missing = {}, True
            self.changes += 1

    def listing(self) -> None:
        """Begin with nothing, beside what is known."""
        self._found = {}

    def item(self, thing: Manifest, received: float) -> None:
        """Keep an object for the moment at which the list is complete."""
        del received
        each = self._projector.from_manifest(self.kind.api_version, self.kind.kind, thing)
        self._found[each.key] = each

    def listed(self) -> None:
        """Take a complete list for what is there."""
        with self._changed:
            self.objects = {key: self._unless_same(self.objects.get(key), each) for key, each in self._found.items()}
            self.changes += 1
            self.is_missing, self._found = False, {}

    def batch(self) -> AbstractContextManager[object]:
        """Let nobody look at half of what came together."""
        return self._changed

    def batched(self, received: float) -> None:
        """Tell whoever waits or listens."""
        del received
        if self._news:
            self._news = False
            with self._changed:
                self._changed.notify_all()
        if self._touched:
            touched, self._touched = self._touched, set()
            self.heard(self.kind.kind, touched)

    def event(self, kind: str, thing: Manifest, received: float) -> None:
        """Take in one event, and note whether it changed anything that matters."""
        del received
        new = self._projector.from_manifest(self.kind.api_version, self.kind.kind, thing)
        old = self.objects.get(new.key)
        if kind == "DELETED":
            self.objects.pop(new.key, None)
            changed = old is not None
        else:
            self.objects[new.key] = self._unless_same(old, new)
            changed = self.objects[new.key] is not old
        if changed:
            self._news = True
            self.changes += 1
            self._touched |= {each.fleet for each in (old, new) if each is not None}

    @staticmethod
    def _unless_same(old: Observed | None, new: Observed) -> Observed:
        """Return the old one if the new one means the same: whoever compares by identity sees no change."""
        return old if old is not None and old.is_equivalent(new) else new
