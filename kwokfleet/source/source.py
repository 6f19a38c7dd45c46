"""Source: where a daemon gets its files from, a watched folder or a git repository."""

from collections.abc import Callable, Mapping
from typing import Protocol

from kwokfleet.kube.objects import Manifest
from kwokfleet.source import loader


class Source(Protocol):
    """Loads the files, and reports when they may have changed."""

    revision: str
    """Revision of the last load, for display."""
    error: str
    """Why newer files cannot be fetched; empty without an error."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Call *on_change* from now on whenever the files may have changed."""

    def load(self) -> loader.Loaded:
        """Return the current tree."""

    def description(self) -> Manifest:
        """Return the source as Fleet.status shows it: kind, where, revision and digest."""

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Handle a webhook of a git host; return an HTTP status and a message."""

    def close(self) -> None:
        """Stop watching or fetching."""
