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
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, Self

import orjson
import structlog

from kwokfleet import errors
from kwokfleet.core import observed, requests
from kwokfleet.core.objects import Manifest, ObjectKey
from kwokfleet.core.observed import Observed
from kwokfleet.core.requests import Answer, Kind, Request

log = structlog.get_logger()

SILENCE_S = 100.0
"""A watch says something every minute, if only that nothing has happened."""
CLOSING_S = 2.0
WATCH_S = 290
"""How long the API server keeps a watch open; it is taken up again where it ended."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LONGEST_WAIT_S = 1.0
"""Who waits looks at least this often, so that a signal is heard."""
LOOK_S = 290.0
"""How often a kind of which nothing of ours was there is looked at."""
LOOKERS = 3
SELDOM = frozenset(requests.KWOK)
"""Kinds that are not followed before there is a need."""
_END_OF_LIST = "k8s.io/initial-events-end"
_CANNOT_STREAM = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.METHOD_NOT_ALLOWED}


class Stream(Protocol):
    """An answer that goes on."""

    status: int

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes."""

    def read(self) -> Answer:
        """Return the whole answer."""

    def stop(self) -> None:
        """Wake up who waits for more."""

    def close(self) -> None:
        """Give up the connection."""


class Api(Protocol):
    """What a mirror asks."""

    @property
    def host(self) -> str:
        """Whom it asks."""

    def send(self, request: Request) -> Answer:
        """Send a request."""

    def stream(self, request: Request, silence_s: float) -> Stream:
        """Send a request whose answer goes on."""


@dataclass(frozen=True, slots=True)
class View:
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


Heard = Callable[[str, AbstractSet[str]], None]
"""Is told of which kind something has changed, and in which Fleets; "" stands for any."""


class Mirror:
    """Follows some kinds of object. Close it, or use it in a `with` block."""

    def __init__(
        self, api: Api, kinds: Sequence[Kind] = requests.MANAGED, selector: str = requests.STANDING, fields: str = ""
    ) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._followers = [_Follower(api, kind, (selector, fields), self._changed, self._stop) for kind in kinds]
        seldom = [each for each in self._followers if each.kind in SELDOM]
        self._lookers = [_Looker(part, self._stop) for start in range(LOOKERS) if (part := seldom[start::LOOKERS])]
        self._merged: tuple[tuple[int, ...], Mapping[ObjectKey, Observed]] = ((), {})

    def tell(self, heard: Heard) -> None:
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
            if each.kind not in SELDOM:
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

    def view(self) -> View:
        """Return what is known now."""
        with self._changed:
            return View(
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

    def wait(self, is_so: Callable[[View], bool], timeout_s: float) -> View:
        """Wait until what is known is as wanted, or *timeout_s* have passed; return what is known then."""
        deadline = time.monotonic() + timeout_s
        with self._changed:  # held while looking, so that no change slips between the look and the wait
            while True:
                view = self.view()
                left = deadline - time.monotonic()
                if is_so(view) or left <= 0:
                    return view
                self._changed.wait(min(left, LONGEST_WAIT_S))

    def wait_until_known(self, timeout_s: float) -> View:
        """Wait until every kind is known, or was refused for good."""
        return self.wait(lambda view: view.settled, timeout_s)


def _event(line: bytes) -> Manifest:
    try:
        event: Manifest = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise errors.UnreachableError("a watch sent what is not an event") from error
    return event


class _GoneError(Exception):
    """The version that was asked for is too old: list again."""


class _RefusedError(Exception):
    """The API server said no."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class _Looker(threading.Thread):
    """Looks now and then at kinds that are not followed."""

    def __init__(self, kinds: "Sequence[_Follower]", stop: threading.Event) -> None:
        super().__init__(name="mirror-looker", daemon=True)
        self._kinds, self._stopping = kinds, stop

    def run(self) -> None:
        """Look at each that nobody follows, again soon if that failed, until all are followed or we are stopped."""
        pause = FIRST_PAUSE_S
        while waiting := [each for each in self._kinds if not each.is_begun]:
            for each in waiting:
                if self._stopping.is_set():
                    return
                each.look()
            settled = all(each.is_settled for each in waiting if not each.is_begun)
            self._stopping.wait(LOOK_S if settled else pause)
            pause = FIRST_PAUSE_S if settled else min(pause * 2, LONGEST_PAUSE_S)


class _Follower(threading.Thread):
    """Lists and watches one kind."""

    def __init__(
        self,
        api: Api,
        kind: Kind,
        chosen: tuple[str, str],
        changed: threading.Condition,
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"mirror-{kind.plural}", daemon=True)
        self._api, self.kind = api, kind
        self._selector, self._fields = chosen
        self._changed, self._stopping = changed, stop
        self._projector = observed.Projector()
        self._stream: Stream | None = None
        self._streams_lists = True
        self._resume = ""
        self.objects: dict[ObjectKey, Observed] = {}
        self.changes = 0
        """Counts the changes of what there is."""
        self.heard: Heard = lambda _kind, _fleets: None
        self.restarted: Callable[[str], None] = lambda _reason: None
        self._touched: set[str] = set()
        self.version = 0
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
            answer = self._api.send(requests.page(self.kind, self._selector, fields=self._fields, metadata_only=True))
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
                self._listed({}, str(page["metadata"]["resourceVersion"]))

    def _look_again(self, trouble: str) -> None:
        with self._changed:
            if not self.is_begun:
                self._resume = ""
                self._say(trouble, settled=False)

    def interrupt(self) -> None:
        """Wake it up to see that it should stop."""
        stream = self._stream
        if stream is not None:
            stream.stop()

    def run(self) -> None:
        """List, watch, and begin again, until stopped."""
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._resume or self._streams_lists:
                    self._follow()
                else:
                    self._list()
                pause = FIRST_PAUSE_S
                continue  # the API server ended the watch in good order
            except _GoneError:
                self._resume = ""
                self.restarted("expired")
                self._say("is being listed again", settled=False)
            except _RefusedError as error:
                self.restarted("refused")
                if self._refused(error.answer):
                    continue
                pause = max(pause, error.answer.retry_after_s)
            except errors.UnreachableError as error:
                if not self._stopping.is_set():
                    self.restarted("disconnected")
                    self._say(str(error), settled=False)
                    log.debug("mirror_disconnected", kind=self.kind.kind, error=str(error))
            if time.monotonic() - began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            self._stopping.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _refused(self, answer: Answer) -> bool:
        """Note why there is no answer; return whether to try another way at once."""
        self._resume = ""
        if answer.status in _CANNOT_STREAM and self._streams_lists:
            self._streams_lists = False
            return True
        if answer.status == HTTPStatus.NOT_FOUND:
            with self._changed:
                self.objects, self.is_missing = {}, True
                self.changes += 1
            self._say("")
        elif answer.status == HTTPStatus.FORBIDDEN:
            self._say(f"{self.kind.plural} may not be listed: {answer.message}")
        elif answer.status == HTTPStatus.UNAUTHORIZED:
            self._say(f"{self.kind.plural} cannot be listed: the API server does not accept the credentials")
        else:
            self._say(f"{self.kind.plural} cannot be listed: {answer.status} {answer.message}", settled=False)
        return False

    def _say(self, trouble: str, *, settled: bool = True) -> None:
        with self._changed:
            self.trouble = trouble
            self.is_settled = settled
            self._changed.notify_all()
        if settled:
            self.heard(self.kind.kind, {""})

    # what is there

    def _list(self) -> None:
        """List page by page, for an API server that does not stream lists."""
        found: dict[ObjectKey, Observed] = {}
        token = ""
        while True:
            answer = self._api.send(requests.page(self.kind, self._selector, token, fields=self._fields))
            if answer.status == HTTPStatus.GONE:
                raise _GoneError
            if answer.status != HTTPStatus.OK:
                raise _RefusedError(answer)
            page = answer.json()
            for item in page.get("items") or ():
                self._keep(found, item)
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                self._listed(found, str(metadata["resourceVersion"]))
                return

    def _listed(self, found: dict[ObjectKey, Observed], version: str) -> None:
        """Take a complete list for what is there."""
        with self._changed:
            self.objects = {key: self._unless_same(self.objects.get(key), each) for key, each in found.items()}
            self.changes += 1
            self.version, self._resume = max(self.version, int(version)), version
            self.is_missing = False
        self._say("")

    def _follow(self) -> None:
        """Watch until the connection ends; without a version to go on from, list first in the same stream."""
        initial: dict[ObjectKey, Observed] | None = None if self._resume else {}
        request = requests.watch(self.kind, self._selector, self._resume, WATCH_S, fields=self._fields)
        stream = self._api.stream(request, SILENCE_S)
        self._stream = stream
        try:
            if self._stopping.is_set():
                return
            if stream.status == HTTPStatus.GONE:
                raise _GoneError
            if stream.status != HTTPStatus.OK:
                raise _RefusedError(stream.read())
            if initial is None:
                self._say("")
            rest = b""
            for chunk in stream.chunks():
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                initial = self._events(lines, initial)
        finally:
            self._stream = None
            stream.close()
        if initial is not None:
            raise errors.UnreachableError(f"the list of {self.kind.plural} broke off")

    def _events(
        self, lines: Sequence[bytes], initial: dict[ObjectKey, Observed] | None
    ) -> dict[ObjectKey, Observed] | None:
        """Take in some events; return the list that is being made, None once it is whole."""
        with self._changed:
            changed = False
            for line in lines:
                event = _event(line)
                kind, thing = event["type"], event["object"]
                if kind == "ERROR":
                    raise (
                        _GoneError
                        if thing.get("code") == HTTPStatus.GONE
                        else _RefusedError(Answer(int(thing.get("code") or 0), orjson.dumps(thing)))
                    )
                metadata = thing["metadata"]
                if kind == "BOOKMARK":
                    if initial is not None and _END_OF_LIST in (metadata.get("annotations") or {}):
                        self._listed(initial, metadata["resourceVersion"])
                        initial = None
                elif initial is not None:
                    self._keep(initial, thing)
                    continue
                else:
                    changed |= self._event(kind, thing)
                if initial is None:
                    self._resume = metadata["resourceVersion"]
                    self.version = max(self.version, int(self._resume))
            if changed:
                self._changed.notify_all()
        if self._touched:
            touched, self._touched = self._touched, set()
            self.heard(self.kind.kind, touched)
        return initial

    def _event(self, kind: str, thing: Manifest) -> bool:
        """Take in one event; return whether it changed anything that matters, or proves that a write arrived."""
        new = self._projector.observed(self.kind.api_version, self.kind.kind, thing)
        old = self.objects.get(new.key)
        if kind == "DELETED":
            self.objects.pop(new.key, None)
            changed = old is not None
        else:
            self.objects[new.key] = self._unless_same(old, new)
            changed = self.objects[new.key] is not old
        if changed:
            self.changes += 1
            self._touched |= {each.fleet for each in (old, new) if each is not None}
        return changed

    def _keep(self, found: dict[ObjectKey, Observed], thing: Manifest) -> None:
        each = self._projector.observed(self.kind.api_version, self.kind.kind, thing)
        found[each.key] = each

    @staticmethod
    def _unless_same(old: Observed | None, new: Observed) -> Observed:
        """Return the old one if the new one means the same: whoever compares by identity sees no change."""
        return old if old is not None and old.means_the_same_as(new) else new
