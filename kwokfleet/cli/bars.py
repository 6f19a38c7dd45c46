"""Progress of changes: a bar for each step on a terminal, a line when a step is done anywhere else."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

_WIDTH = 30
_PER_SECOND = 8


class _Bars:
    """What is being done, and how far it has come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[str, tuple[int, int, float, float]] = {}
        """By title: done, total, when it began, when it last moved."""

    def watch(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        with self._lock:
            before = self._steps.get(title)
            again = before is None or before[1] != total
            self._steps[title] = (done if again else max(done, before[0] if before else 0), total,
                                  now if again or before is None else before[2], now)  # fmt: skip

    def render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        with self._lock:
            steps = list(self._steps.items())
        for title, (done, total, began, moved) in steps:
            full = _WIDTH * done // total if total else _WIDTH
            bar = Text("━" * full, style="green" if done == total else "cyan")
            bar.append("━" * (_WIDTH - full), style="dim")
            spent = (moved if done == total else time.monotonic()) - began
            rate = f"{done / spent:,.0f}/s" if spent > 0.2 and done else ""  # noqa: PLR2004 - too short to tell
            table.add_row(title, bar, f"{done:,} of {total:,}", Text(f"{spent:.1f} s", style="dim"), Text(rate, "dim"))
        return table

    def lines(self) -> Iterator[str]:
        for title, (done, total, began, moved) in self._steps.items():
            yield f"{title}: {done:,} of {total:,} in {moved - began:.1f} s"


@contextmanager
def shown(console: Console) -> Iterator[_Bars]:
    """Show what the object this yields is told, until the block ends."""
    bars = _Bars()
    if not console.is_terminal:
        yield bars
        for line in bars.lines():
            console.print(line, soft_wrap=True)
        return
    with Live(get_renderable=bars.render, console=console, refresh_per_second=_PER_SECOND):
        yield bars
