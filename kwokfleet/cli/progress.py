"""Progress of long work: a live table on a terminal, plain lines anywhere else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kwokfleet.embedded import progress

PLAIN_EVERY_S = 30
"""In a log file, long steps say that they are alive this often."""
_WIDEST_DETAIL = 60
_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class _Row:
    update: progress.Update
    since: float
    """When its phase began."""


@contextmanager
def shown(console: Console) -> Iterator[progress.Report]:
    """Show what is reported to the function this yields, until the block ends."""
    if not console.is_terminal:
        yield _PlainLines(console).report
        return
    table = _LiveTable(console)
    try:
        yield table.report
    finally:
        table.live.stop()


class _LiveTable:
    """One row per subject, redrawn in place; nothing is drawn before there is a row."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._spinner = Spinner("dots")
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=8)

    def report(self, update: progress.Update) -> None:
        if update.phase is progress.Phase.NOTE:
            self._console.print(Text(f"{update.subject}: {update.detail}", style="dim"))
            return
        before = self._rows.get(update.subject)
        same = before is not None and before.update.phase is update.phase
        self._rows[update.subject] = _Row(update, before.since if same and before else time.monotonic())
        self.live.start()

    def render(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, ratio=1)
        now = time.monotonic()
        for subject, row in tuple(self._rows.items()):
            table.add_row(*self._cells(subject, row, now))
        return table

    def _cells(self, subject: str, row: _Row, now: float) -> tuple[RenderableType, ...]:
        update = row.update
        match update.phase:
            case progress.Phase.DONE:
                return Text("✓", style="green"), subject, Text(update.detail, style="dim"), ""
            case progress.Phase.WAITING:
                return Text("·", style="dim"), Text(subject, style="dim"), "", ""
            case _:
                return self._spinner.render(now), subject, describe(update, now - row.since), _bar(update)


class _PlainLines:
    """A line when a phase begins and ends, and a sign of life in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._said = 0.0

    def report(self, update: progress.Update) -> None:
        now = time.monotonic()
        before = self._rows.get(update.subject)
        changed = before is None or before.update.phase is not update.phase
        since = now if changed or before is None else before.since
        if update.phase is not progress.Phase.NOTE:
            self._rows[update.subject] = _Row(update, since)
        if update.phase is not progress.Phase.WAITING and (changed or now - self._said > PLAIN_EVERY_S):
            self._said = now
            self._console.print(f"{update.subject}: {describe(update, now - since)}", soft_wrap=True)


def describe(update: progress.Update, elapsed_s: float) -> str:
    """Put one update into words."""
    if update.phase in (progress.Phase.DONE, progress.Phase.NOTE):
        return update.detail or "done"
    words = [update.phase.value]
    if update.total:
        unit = "MB" if update.phase is progress.Phase.DOWNLOADING else "packages"
        words.append(f"{update.done} of {update.total} {unit}")
    if elapsed_s >= 1 or update.usual_s:
        words.append(_clock(elapsed_s) + (f" (usually {_clock(update.usual_s)})" if update.usual_s else ""))
    return ", ".join(words)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"  # noqa: PLR2004 - seconds in a minute


def _bar(update: progress.Update) -> RenderableType:
    if not update.total:
        return Text(update.detail[:_WIDEST_DETAIL], style="dim", no_wrap=True)
    full = _BAR_WIDTH * update.done // update.total
    bar = Text("━" * full, style="cyan")
    bar.append("━" * (_BAR_WIDTH - full), style="dim")
    bar.append(f" {update.detail[:_WIDEST_DETAIL]}", style="dim")
    bar.no_wrap = True
    return bar
