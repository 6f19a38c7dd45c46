"""Waves played: the objects of each Run submitted at their instants, by whoever leads, each exactly once.

Names derive from Fleet, Wave, Run and index, so that an object which is submitted again after a crash
is there already. How far a Run got is in the Ledger; who leads next goes on from there.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import structlog

from kwokfleet import apply, errors
from kwokfleet.core import fleet as model
from kwokfleet.core import ledger, objects, render, requests, workloads
from kwokfleet.core.ledger import Entry, Page, State, Verdict
from kwokfleet.core.objects import Manifest

if TYPE_CHECKING:
    from kwokfleet.core.waves import Wave

log = structlog.get_logger()

SUBMITTERS = 16
PATIENCE_S = 0.5
"""How long a submitter waits for more, before it looks whether it should stop."""

Name = tuple[str, str, str]
"""Fleet, Wave and Run."""


class Audience(Protocol):
    """Whoever wants to know what is played. It is told from many threads, and must not take long."""

    def began(self, context: workloads.Context, entry: Entry, total: int) -> None:
        """Hear that a Run begins, or is gone on with: of *total* objects the first `entry.submitted` are submitted."""

    def submitted(  # noqa: PLR0913, PLR0917  # all that is known of it
        self, name: Name, index: int, due: datetime, sent: datetime, trouble: str, retries: int
    ) -> None:
        """Hear that an object was submitted or, as *trouble* says, refused; *sent*: when it first left."""

    def marked(self, name: Name, what: str) -> None:
        """Hear what is worth a line in the timeline: suspended, resumed, a churn round, cancelled, cleaned up."""


class Nobody:
    """An Audience that does not listen."""

    def began(self, context: workloads.Context, entry: Entry, total: int) -> None:
        """Do nothing."""

    def submitted(  # noqa: PLR0913, PLR0917  # as the Audience
        self, name: Name, index: int, due: datetime, sent: datetime, trouble: str, retries: int
    ) -> None:
        """Do nothing."""

    def marked(self, name: Name, what: str) -> None:
        """Do nothing."""


class Kinds:
    """Finds out what kinds of object are called in paths; any kind may be in a template."""

    def __init__(self, api: requests.Sends) -> None:
        self._api = api
        self._known: dict[tuple[str, str], requests.Kind] = {}
        self._lock = threading.Lock()

    def kind(self, manifest: Manifest) -> requests.Kind:
        """Return what a manifest's kind is called; raise if the cluster does not know it."""
        name = (str(manifest["apiVersion"]), str(manifest["kind"]))
        with self._lock:
            if name not in self._known:
                self._known[name] = self._asked(*name)
            return self._known[name]

    def _asked(self, api_version: str, kind: str) -> requests.Kind:
        where = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        for each in self._api.send(requests.Request("GET", where)).json().get("resources") or ():
            if each["kind"] == kind and "/" not in each["name"]:
                return requests.Kind(api_version, kind, each["name"], namespaced=bool(each["namespaced"]))
        raise errors.ClusterError(f"the cluster knows no {kind} in {api_version}", hint="is its definition installed?")


class Performance(threading.Thread):
    """Plays one Run."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a Run needs to be played
        self,
        sender: apply.Sender,
        kinds: Kinds,
        context: workloads.Context,
        entry: Entry,
        news: Callable[[], None],
        audience: Audience,
    ) -> None:
        super().__init__(name=f"run-{context.wave.name}-{entry.name}", daemon=True)
        self._stop_asked = threading.Event()
        self._audience = audience
        self._name: Name = (context.fleet.name, context.wave.name, entry.name)
        self._sender, self._kinds, self._context, self._news = sender.lane(self._stop_asked), kinds, context, news
        self._lock = threading.Lock()
        self._ahead: list[int] = []
        self.entry = entry

    def cancel(self) -> None:
        """Leave off; what is submitted stays."""
        self._stop_asked.set()

    def run(self) -> None:
        """Submit what is due, when it is due, until there is nothing left."""
        try:
            total = sum(1 for _ in workloads.instants(self._context, self.entry.start))
            self._change(total=total)
            self._audience.began(self._context, self.entry, total)
            self._play()
        except errors.KwokfleetError as error:
            self._change(why=str(error))
        except Exception as error:  # a bug must not look like a Run that goes on
            log.exception("run_failed", wave=self._context.wave.name, run=self.entry.name)
            self._change(why=f"{type(error).__name__}: {error}")
        if not self._stop_asked.is_set():
            self._change(state=State.DONE)
        self._news()

    def _play(self) -> None:
        begun = time.monotonic() - (datetime.now(UTC) - self.entry.start).total_seconds()
        start = self.entry.start
        waiting = itertools.islice(workloads.instants(self._context, start), self.entry.submitted, None)
        make = workloads.maker(self._context)
        turn = threading.Lock()

        def submit() -> None:
            while not self._stop_asked.is_set():
                with turn:  # one looks at the clock, the others submit
                    instant = next(waiting, None)
                    if instant is None:
                        return
                    left = begun + (instant.at - start).total_seconds() - time.monotonic()
                    if left > 0 and self._stop_asked.wait(left):
                        return
                self._submit(instant, make(instant.index), begun + (instant.at - start).total_seconds())

        threads = [
            threading.Thread(target=submit, name=f"{self.name}-{number}", daemon=True) for number in range(SUBMITTERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _submit(self, instant: workloads.Instant, manifest: Manifest, due: float) -> None:
        """Submit one object, and keep at it while the API server is away."""
        passage = apply.Passage()
        while not self._stop_asked.is_set():
            try:
                trouble = self._trouble(manifest, passage)
            except errors.NotLeadingError:
                self._stop_asked.set()
                return
            except errors.UnreachableError:
                self._stop_asked.wait(PATIENCE_S)
                continue
            except errors.ClusterError as error:
                if self._stop_asked.is_set():
                    return
                trouble = str(error)
            sent = instant.at + timedelta(seconds=passage.at - due)
            self._audience.submitted(self._name, instant.index, instant.at, sent, trouble, passage.tries - 1)
            self._done(instant.index, trouble)
            return

    def _trouble(self, manifest: Manifest, passage: apply.Passage) -> str:
        """Create an object; return why that was refused, empty if it is there."""
        kind = self._kinds.kind(manifest)
        answer = self._sender.send(requests.create_any(kind, manifest), passage)
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.OK):
            return ""
        name = f"{kind.kind} {manifest['metadata']['name']}"
        if answer.status == HTTPStatus.CONFLICT:
            there = self._sender.send(requests.get_any(kind, manifest)).json()
            mine, theirs = objects.labels(manifest), objects.labels(there) if there.get("metadata") else {}
            same = all(theirs.get(key) == mine[key] for key in (objects.FLEET, objects.WAVE, objects.RUN))
            return "" if same else f"{name}: there is one already, and it is not of this Run"
        return f"{name}: {answer.status} {answer.message}"

    def _done(self, index: int, trouble: str) -> None:
        with self._lock:
            heapq.heappush(self._ahead, index)
            submitted = self.entry.submitted
            while self._ahead and self._ahead[0] <= submitted:
                submitted = max(submitted, heapq.heappop(self._ahead) + 1)
            self.entry = replace(
                self.entry,
                submitted=submitted,
                failed=self.entry.failed + bool(trouble),
                why=self.entry.why or trouble,
            )
        self._news()

    def judge(self, verdict: Verdict) -> None:
        """Take note of what its Result came to."""
        self._change(verdict=verdict)

    def _change(self, **fields: object) -> None:
        with self._lock:
            self.entry = replace(self.entry, **fields)  # type: ignore[arg-type]  # fields of Entry


class Player:
    """Starts Runs when they are due, and knows how each one fares. Used by the worker alone."""

    def __init__(self, sender: apply.Sender, news: Callable[[], None], audience: Audience | None = None) -> None:
        self._sender, self._news, self._audience = sender, news, audience or Nobody()
        self._kinds = Kinds(sender)
        self._pages: dict[str, dict[str, Page]] = {}
        self._playing: dict[Name, Performance] = {}
        self._wanted: dict[Name, tuple[model.Fleet, Wave]] = {}
        """The Runs that should be going on."""

    def learn(self, fleet: str, status: Manifest) -> None:
        """Take a Fleet's Ledger from the cluster, if nothing is known of it yet."""
        if fleet not in self._pages:
            self._pages[fleet] = ledger.read(status.get("waves") or ())

    def forget(self) -> None:
        """Leave off, and forget everything: somebody else leads."""
        for each in self._playing.values():
            each.cancel()
        self._playing.clear()
        self._wanted.clear()
        self._pages.clear()

    def attend(self, tree: render.Tree, ready: Callable[[str], bool], now: datetime) -> list[tuple[str, str, Entry]]:
        """Note what is due, leave off what is not wanted; return what is new.

        It is begun by `perform`. *ready* tells whether a Fleet is so far that its Waves can be played.
        """
        begun: list[tuple[str, str, Entry]] = []
        self._wanted = {}
        for fleet in tree.fleets:
            pages = self._pages.setdefault(fleet.name, {})
            self._drop(pages, fleet)
            for wave in fleet.spec.waves:
                if fleet.spec.suspend or wave.suspend:
                    continue
                if wave.name in pages or ready(fleet.name):
                    pages[wave.name], found = ledger.due(pages.get(wave.name) or ledger.new(now), wave.start, now)
                    begun += [(fleet.name, wave.name, entry) for entry in found]
                    self._wanted |= {
                        (fleet.name, wave.name, each.name): (fleet, wave) for each in pages[wave.name].running
                    }
        for name in self._playing.keys() - self._wanted.keys():
            self._playing.pop(name).cancel()
        return begun

    @staticmethod
    def _drop(pages: dict[str, Page], fleet: model.Fleet) -> None:
        for name in pages.keys() - {wave.name for wave in fleet.spec.waves}:
            del pages[name]

    def perform(self, tree: render.Tree, status: Callable[[str], Manifest]) -> None:
        """Begin, and go on with, the Runs that the cluster's Ledger knows of.

        What is written there first is finished by whoever leads next, however soon this one dies.
        """
        for name in self._wanted.keys() - self._playing.keys():
            (fleet, wave), entry = self._wanted[name], self._pages[name[0]][name[1]].run(name[2])
            written = ledger.read(status(fleet.name).get("waves") or ()).get(wave.name)
            if entry is not None and entry.state is State.RUNNING and written is not None and written.run(entry.name):
                context = render.wave_context(tree, fleet, wave, entry.name)
                made = self._playing[name] = Performance(
                    self._sender, self._kinds, context, entry, self._news, self._audience
                )
                made.start()

    def ledgers(self) -> dict[str, list[Manifest]]:
        """Return the Ledger of each Fleet that has Waves, as its status has it."""
        for (fleet, wave, _), each in self._playing.items():
            if wave in self._pages.get(fleet, {}):
                self._pages[fleet][wave] = self._pages[fleet][wave].with_run(each.entry)
        return {name: ledger.written(pages) for name, pages in self._pages.items() if pages}

    def judge(self, verdicts: Mapping[Name, Verdict]) -> None:
        """Write into the Ledger what Runs came to."""
        for name, verdict in verdicts.items():
            page = self._pages.get(name[0], {}).get(name[1])
            entry = page.run(name[2]) if page is not None else None
            if name in self._playing:
                self._playing[name].judge(verdict)
            if page is not None and entry is not None:
                self._pages[name[0]][name[1]] = page.with_run(replace(entry, verdict=verdict))

    def next_start(self, tree: render.Tree, now: datetime) -> datetime | None:
        """Return when the next Run is due, None if none is near."""
        moments = [
            moment
            for fleet in tree.fleets
            for wave in fleet.spec.waves
            if not fleet.spec.suspend and not wave.suspend
            if (page := self._pages.get(fleet.name, {}).get(wave.name)) is not None
            if (moment := ledger.next_start(page, wave.start, now)) is not None
        ]
        return min(moments, default=None)

    def stop(self) -> None:
        """Leave off, and wait for what is under way."""
        for each in self._playing.values():
            each.cancel()
        for each in self._playing.values():
            each.join()

    def pages(self) -> Mapping[str, Mapping[str, Page]]:
        """Return what is known of all Waves."""
        self.ledgers()
        return self._pages
