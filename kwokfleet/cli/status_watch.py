"""`kwokfleet status --watch`: how all Fleets stand, as it changes; redrawn on a terminal, appended anywhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.live import Live
from rich.text import Text

from kwokfleet import errors
from kwokfleet.cli import connection, output
from kwokfleet.daemon import overview
from kwokfleet.kube import requests
from kwokfleet.reconcile import cluster_state

if TYPE_CHECKING:
    from pathlib import Path

    from kwokfleet.daemon.overview import Overview, Row
    from kwokfleet.kube.informer import informer

LOOK_S = 1.0
"""How often it is looked at what the cluster was told of the Fleets."""
GLANCE_S = 0.2
"""The shortest time between two pictures."""
_STYLES = (("Stalled", "red"), ("NotReady", "yellow"), ("Ready", "green"))


class StatusView(Protocol):
    """Shows how things stand."""

    def show(self, now: "Overview", trouble: str) -> None:
        """Show it, if it is new; *trouble*: why nothing newer is known."""


def watch(fleet: list[str] | None, context: str | None, kubeconfig: "Path | None") -> None:
    """Show how Fleets stand until a signal comes."""
    api = connection.connect(context, kubeconfig)
    only = frozenset(fleet) if fleet else None
    with connection.run_informer(api, (requests.NODE,)) as follower, _shown() as shown:
        connection.wait_until_listed(follower)
        now, trouble = overview.Overview(), ""
        while True:
            try:
                now, trouble = overview.overview(cluster_state.list_fleets(api), follower.view().objects, only), ""
            except errors.ClusterError as error:
                trouble = str(error)
            shown.show(now, trouble)
            _wait(follower)


def _wait(follower: "informer.Informer") -> None:
    """Wait until nodes have changed, or it is time for another look."""
    follower.wait(lambda _view: False, GLANCE_S)
    before = follower.view().versions
    follower.wait(lambda view: view.versions != before, LOOK_S - GLANCE_S)


@contextmanager
def _shown() -> Iterator[StatusView]:
    if not sys.stdout.isatty():
        yield _Lines()
        return
    with Live(console=output.console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield _Tables(live)


class _Lines:
    """Writes a line for whatever is new: for logs and pipes."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def show(self, now: "Overview", trouble: str) -> None:
        """Write what is new, and what is no more."""
        found = dict(now.lines()) | ({"cluster": trouble} if trouble else {})
        new = {subject: text for subject, text in found.items() if self._known.get(subject) != text}
        gone = self._known.keys() - found.keys()
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for subject, text in (*new.items(), *((subject, "no more") for subject in sorted(gone))):
            sys.stdout.write(f"{stamp} {subject}: {text}\n")
        sys.stdout.flush()
        self._known = found


class _Tables:
    """Redraws tables in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, now: "Overview", trouble: str) -> None:
        """Draw."""
        parts = [Text(f"nothing newer is known: {trouble}\n", "red")] if trouble else []
        parts += [_fleets(now.fleets)] if now.fleets else [Text("there is no fleet in this cluster")]
        for rows in (now.pools, _lately(now.runs)):
            if rows:
                parts.append(Text(f"\n{output.table(rows)}"))
        parts += [Text(f"\n{subject}: {text}") for subject, text in now.lines() if subject.startswith("withheld ")]
        parts.append(Text(f"\n{datetime.now().astimezone():%H:%M:%S}  Ctrl-C ends", "dim"))
        self._live.update(Group(*parts), refresh=True)


def _fleets(rows: "tuple[Row, ...]") -> Text:
    text = Text(output.table(rows))
    for word, style in _STYLES:
        text.highlight_regex(rf"(?<![A-Za-z]){word}(?![A-Za-z ])", style)
    return text


def _lately(runs: "tuple[Row, ...]") -> "list[Row]":
    """Return the Runs that go on and the last one of each Wave: a terminal is not endless."""
    last = {(row["fleet"], row["wave"]): row for row in runs}
    return [
        {name: value for name, value in row.items() if name != "why"}
        for row in runs
        if row["state"] == "Running" or last[row["fleet"], row["wave"]] is row
    ]
