"""`kwokfleet status --watch`: the status of all Fleets; redrawn on a terminal, appended lines otherwise."""

import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from kwokfleet import errors
from kwokfleet.cli import connection, output
from kwokfleet.daemon import overview
from kwokfleet.kube import requests
from kwokfleet.reconcile import cluster_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kwokfleet.daemon.overview import Overview, Row
    from kwokfleet.kube.informer import informer

POLL_S = 1.0
"""Interval at which Fleets are listed."""
MIN_REFRESH_S = 0.2
"""Shortest time between two updates of the display."""
_STYLES = (("Stalled", "red"), ("NotReady", "yellow"), ("Ready", "green"))


def watch(fleet: list[str] | None, context: str | None, kubeconfig: "Path | None") -> None:
    """Show the status of Fleets until a signal arrives."""
    api = connection.connect(context, kubeconfig)
    only = frozenset(fleet) if fleet else None
    with connection.run_informer(api, (requests.NODE,)) as nodes, _display() as show:
        connection.wait_until_listed(nodes)
        now, error = overview.Overview(), ""
        while True:
            try:
                now, error = overview.overview(cluster_state.list_fleets(api), nodes.view().objects, only), ""
            except errors.ClusterError as exc:
                error = str(exc)
            show(now, error)
            _wait(nodes)


def _wait(nodes: "informer.Informer") -> None:
    """Wait for a change of nodes, at most `POLL_S`."""
    nodes.wait(lambda _view: False, MIN_REFRESH_S)
    before = nodes.view().versions
    nodes.wait(lambda view: view.versions != before, POLL_S - MIN_REFRESH_S)


@contextmanager
def _display() -> "Iterator[Callable[[Overview, str], None]]":
    """Yield a function that shows an Overview, and the error if it is outdated."""
    if not sys.stdout.isatty():
        yield _Lines().show
        return
    with Live(console=output.console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield partial(_show_tables, live)


class _Lines:
    """Writes a line for each change: for logs and pipes."""

    def __init__(self) -> None:
        self._last_lines: dict[str, str] = {}

    def show(self, now: "Overview", error: str) -> None:
        """Write new, changed and removed lines."""
        lines = dict(now.lines()) | ({"cluster": error} if error else {})
        changed = {subject: text for subject, text in lines.items() if self._last_lines.get(subject) != text}
        removed = self._last_lines.keys() - lines.keys()
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for subject, text in (*changed.items(), *((subject, "deleted") for subject in sorted(removed))):
            sys.stdout.write(f"{stamp} {subject}: {text}\n")
        sys.stdout.flush()
        self._last_lines = lines


def _show_tables(live: Live, now: "Overview", error: str) -> None:
    """Redraw the tables in place."""
    parts = [Text(f"outdated: {error}\n", "red")] if error else []
    parts += [_fleets(now.fleets)] if now.fleets else [Text("no fleets in this cluster")]
    parts += [Text(f"\n{output.table(rows)}") for rows in (now.pools, _current_runs(now.runs)) if rows]
    parts += [Text(f"\n{subject}: {text}") for subject, text in now.lines() if subject.startswith("withheld ")]
    parts.append(Text(f"\n{datetime.now().astimezone():%H:%M:%S}  Ctrl-C to stop", "dim"))
    live.update(Group(*parts), refresh=True)


def _fleets(rows: "tuple[Row, ...]") -> Text:
    text = Text(output.table(rows))
    for word, style in _STYLES:
        text.highlight_regex(rf"(?<![A-Za-z]){word}(?![A-Za-z ])", style)
    return text


def _current_runs(runs: "tuple[Row, ...]") -> "list[Row]":
    """Return running Runs and the last Run of each Wave."""
    last = {(row["fleet"], row["wave"]): row for row in runs}
    return [
        {name: value for name, value in row.items() if name != "why"}
        for row in runs
        if row["state"] == "Running" or last[row["fleet"], row["wave"]] is row
    ]
