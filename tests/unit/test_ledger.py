"""The Ledger: what it remembers of a Wave's Runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kwokfleet.core import ledger
from kwokfleet.core.ledger import Entry, State

NOW = datetime(2026, 1, 5, 8, tzinfo=UTC)
RUNS = [Entry(str(number), NOW + timedelta(seconds=number)) for number in range(ledger.MOST_RUNS + 5)]


def _page(*runs: Entry) -> ledger.Page:
    page = ledger.new(NOW)
    for run in runs:
        page = page.with_run(run)
    return page


def test_a_run_that_is_not_over_is_never_forgotten() -> None:
    """However many came after it: nobody else knows what is left to be made of it."""
    assert list(_page(*RUNS).running) == RUNS


def test_runs_that_are_over_are_forgotten_in_the_end() -> None:
    """Only the latest are remembered, and what still runs."""
    first, *others = RUNS
    page = _page(first, *(replace(each, state=State.DONE) for each in others))
    assert [each.name for each in page.runs] == ["0", *(each.name for each in RUNS[-ledger.MOST_RUNS :])]


def test_what_is_written_is_read_again() -> None:
    """To the last field."""
    pages = {"load": _page(RUNS[0], replace(RUNS[1], state=State.DONE, submitted=3, total=4, failed=1, why="full"))}
    read = ledger.read(ledger.written(pages))
    assert read["load"].runs == pages["load"].runs
    assert read["load"].since == NOW
