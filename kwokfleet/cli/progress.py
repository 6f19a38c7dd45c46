"""Progress display: a live table on a terminal, plain lines anywhere else.

`show` is for the embedded control plane, `show_changes` for the changes of a sync.
"""

import threading
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
"""Interval of progress lines during one long step, where there is no terminal."""
_REFRESH_PER_S = 8
_MAX_DETAIL_WIDTH = 60
_BAR_WIDTH = 20
_STEP_BAR_WIDTH = 30
_MIN_RATE_S = 0.2
"""A rate over less time is not shown."""


@dataclass(frozen=True, slots=True)
class _Row:
    update: progress.ProgressUpdate
    since: float
    """Start of its phase."""


@contextmanager
def show(console: Console) -> Iterator[progress.ProgressReporter]:
    """Yield a reporter, and show its updates until the block ends."""
    if not console.is_terminal:
        yield _PlainLines(console).report
        return
    table = _LiveTable(console)
    try:
        yield table.report
    finally:
        table.live.stop()


class _LiveTable:
    """One row per subject, redrawn in place. Nothing is drawn before the first row."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._spinner = Spinner("dots")
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=_REFRESH_PER_S)

    def report(self, update: progress.ProgressUpdate) -> None:
        if update.phase is progress.ProgressPhase.NOTE:
            self._console.print(Text(f"{update.subject}: {update.detail}", style="dim"))
            return
        row = self._rows.get(update.subject)
        is_same_phase = row is not None and row.update.phase is update.phase
        self._rows[update.subject] = _Row(update, row.since if row and is_same_phase else time.monotonic())
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
            case progress.ProgressPhase.DONE:
                return Text("✓", style="green"), subject, Text(update.detail, style="dim"), ""
            case progress.ProgressPhase.WAITING:
                return Text("·", style="dim"), Text(subject, style="dim"), "", ""
            case _:
                return self._spinner.render(now), subject, describe(update, now - row.since), _detail(update)


class _PlainLines:
    """One line per phase, and one every `PLAIN_EVERY_S` seconds during a long phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._last_line_at = 0.0

    def report(self, update: progress.ProgressUpdate) -> None:
        now = time.monotonic()
        row = self._rows.get(update.subject)
        changed = row is None or row.update.phase is not update.phase
        since = now if changed or row is None else row.since
        if update.phase is not progress.ProgressPhase.NOTE:
            self._rows[update.subject] = _Row(update, since)
        if update.phase is not progress.ProgressPhase.WAITING and (changed or now - self._last_line_at > PLAIN_EVERY_S):
            self._last_line_at = now
            self._console.print(f"{update.subject}: {describe(update, now - since)}", soft_wrap=True)


def describe(update: progress.ProgressUpdate, elapsed_s: float) -> str:
    """Return one update as text."""
    if update.phase in (progress.ProgressPhase.DONE, progress.ProgressPhase.NOTE):
        return update.detail or "done"
    words = [update.phase.value]
    if update.total:
        unit = "MB" if update.phase is progress.ProgressPhase.DOWNLOADING else "packages"
        words.append(f"{update.done} of {update.total} {unit}")
    if elapsed_s >= 1 or update.usual_s:
        words.append(_clock(elapsed_s) + (f" (usually {_clock(update.usual_s)})" if update.usual_s else ""))
    return ", ".join(words)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"  # noqa: PLR2004 - seconds in a minute


def _detail(update: progress.ProgressUpdate) -> RenderableType:
    if not update.total:
        return Text(update.detail[:_MAX_DETAIL_WIDTH], style="dim", no_wrap=True)
    bar = _bar(update.done, update.total, _BAR_WIDTH, "cyan")
    bar.append(f" {update.detail[:_MAX_DETAIL_WIDTH]}", style="dim")
    bar.no_wrap = True
    return bar


def _bar(done: int, total: int, width: int, style: str) -> Text:
    full = width * done // total if total else width
    return Text("━" * full, style=style).append("━" * (width - full), style="dim")


class _ChangeBars:
    """One bar for each step of a sync."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[str, tuple[int, int, float, float]] = {}
        """By title: done, total, start time, time of the last update."""

    def update(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        with self._lock:
            previous = self._steps.get(title)
            if previous is None or previous[1] != total:
                self._steps[title] = (done, total, now, now)
            else:
                self._steps[title] = (max(done, previous[0]), total, previous[2], now)

    def render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        with self._lock:
            steps = list(self._steps.items())
        for title, (done, total, start, updated) in steps:
            bar = _bar(done, total, _STEP_BAR_WIDTH, "green" if done == total else "cyan")
            elapsed_s = (updated if done == total else time.monotonic()) - start
            rate = f"{done / elapsed_s:,.0f}/s" if elapsed_s > _MIN_RATE_S and done else ""
            count = f"{done:,} of {total:,}"
            table.add_row(title, bar, count, Text(f"{elapsed_s:.1f} s", style="dim"), Text(rate, "dim"))
        return table

    def lines(self) -> Iterator[str]:
        for title, (done, total, start, updated) in self._steps.items():
            yield f"{title}: {done:,} of {total:,} in {updated - start:.1f} s"


@contextmanager
def show_changes(console: Console) -> Iterator[_ChangeBars]:
    """Show the progress of a sync until the block ends: bars on a terminal, one line per step anywhere else."""
    bars = _ChangeBars()
    if not console.is_terminal:
        yield bars
        for line in bars.lines():
            console.print(line, soft_wrap=True)
        return
    with Live(get_renderable=bars.render, console=console, refresh_per_second=_REFRESH_PER_S):
        yield bars
