"""The Ledger: which Runs of a Wave there were, and how far each got. It lives in the Fleet's status in the cluster.

Who leads next goes on from there. What it says may be a little older than what happened: objects
that were submitted since are submitted again under the same names, which changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from kwokfleet.core import schedule
from kwokfleet.core.objects import Manifest
from kwokfleet.core.waves import Start

MOST_RUNS = 10
"""Runs of a Wave that are remembered when they are over."""
GRACE = timedelta(seconds=60)
"""A Run that could not be started for longer than this was missed."""
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_BEFORE = timedelta(microseconds=1)
_WORDS = 300


class State(StrEnum):
    """How a Run fares."""

    RUNNING = "Running"
    DONE = "Done"
    CANCELLED = "Cancelled"


class Verdict(StrEnum):
    """What a Run's Result came to."""

    OPEN = ""
    """It is still being measured."""
    PASSED = "Passed"
    FAILED = "Failed"
    MEASURED = "Measured"
    """Nothing was expected of it."""
    NO_DATA = "NoData"


@dataclass(frozen=True, slots=True)
class Entry:
    """One Run."""

    name: str
    start: datetime
    state: State = State.RUNNING
    submitted: int = 0
    """So many objects, from the first on, were submitted without a gap."""
    total: int = 0
    failed: int = 0
    why: str = ""
    """What the first refusal said."""
    verdict: Verdict = Verdict.OPEN


@dataclass(frozen=True, slots=True)
class Page:
    """One Wave."""

    since: datetime
    """When it was first seen: what its `after` and `every` count from."""
    seen: datetime
    """Up to when its Runs have been looked for."""
    runs: tuple[Entry, ...] = ()

    def with_run(self, entry: Entry) -> "Page":
        """Return the page with a Run added, or in the place of what was known of it.

        The oldest are forgotten, but none that still runs: nobody would go on with it.
        """
        known = sorted((*(each for each in self.runs if each.name != entry.name), entry), key=lambda each: each.start)
        over = [each for each in known if each.state is not State.RUNNING]
        forgotten = over[: max(0, min(len(over), len(known) - MOST_RUNS))]
        return replace(self, runs=tuple(each for each in known if each not in forgotten))

    def run(self, name: str) -> Entry | None:
        """Return what is known of a Run."""
        return next((each for each in self.runs if each.name == name), None)

    @property
    def running(self) -> tuple[Entry, ...]:
        """The Runs that are not over."""
        return tuple(each for each in self.runs if each.state is State.RUNNING)


def new(now: datetime) -> Page:
    """Return the page of a Wave that nobody has seen before."""
    return Page(now, now - _BEFORE)


def due(page: Page, start: Start, now: datetime) -> tuple[Page, list[Entry]]:
    """Return the Runs to start now, and the page that knows of them."""
    found = [
        Entry(run.name, run.start)
        for run in schedule.due(start, page.since, page.seen, now, grace=GRACE)
        if page.run(run.name) is None
    ]
    for entry in found:
        page = page.with_run(entry)
    return replace(page, seen=max(page.seen, now)), found


def next_start(page: Page, start: Start, now: datetime) -> datetime | None:
    """Return when the next Run is due, None if no more is near."""
    run = next(schedule.runs(start, page.since, max(page.seen, now), now + timedelta(days=1)), None)
    return run.start if run else None


# as the cluster has it


def read(waves: Iterable[Manifest]) -> dict[str, Page]:
    """Read the Ledger of a Fleet out of its status; an entry that cannot be read is nobody's."""
    found: dict[str, Page] = {}
    for each in waves:
        try:
            runs = tuple(_entry(run) for run in each.get("runs") or ())
            found[each["name"]] = Page(_time(each["since"]), _time(each["seen"]), runs)
        except (AttributeError, KeyError, ValueError, TypeError):
            continue
    return found


def _entry(run: Manifest) -> Entry:
    return Entry(
        str(run["name"]),
        _time(run["start"]),
        State(run["state"]),
        int(run.get("submitted", 0)),
        int(run.get("total", 0)),
        int(run.get("failed", 0)),
        str(run.get("why", "")),
        verdict=Verdict(run.get("verdict", "")),
    )


def written(pages: Mapping[str, Page]) -> list[Manifest]:
    """Return the Ledger of a Fleet as its status has it.

    `seen` moves only with a Run: a Ledger that says nothing new is not written anew.
    """
    return [
        {
            "name": name,
            "since": _text(page.since),
            "seen": _text(max((run.start for run in page.runs), default=page.since - _BEFORE)),
            "runs": [_run(run) for run in page.runs],
        }
        for name, page in sorted(pages.items())
    ]


def _run(run: Entry) -> Manifest:
    made: Manifest = {
        "name": run.name,
        "start": _text(run.start),
        "state": run.state.value,
        "submitted": run.submitted,
        "total": run.total,
        "failed": run.failed,
    }
    made |= {"why": run.why[:_WORDS]} if run.why else {}
    return made | ({"verdict": run.verdict.value} if run.verdict else {})


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment
