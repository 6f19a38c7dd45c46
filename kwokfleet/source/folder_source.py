"""Source of a watched folder, or of a single file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from kwokfleet import errors
from kwokfleet.kube.objects import Manifest
from kwokfleet.source import file_watcher, files, loader, revision_lookup

NO_WEBHOOK = (HTTPStatus.NOT_FOUND, "webhooks are not accepted: the source is a folder, not a git repository")
QUIET_PAUSE_S = 0.01


def folder_description(path: Path, digest: str) -> Manifest:
    """Return a folder as Fleet.status shows it, with the commit if it is a git checkout."""
    revision = str(revision_lookup.find_revision(path, digest))
    return {"kind": "folder", "where": str(path), "revision": revision, "digest": digest}


class FolderSource:
    """A folder, or a single file."""

    def __init__(
        self, path: Path, loader: loader.Loader, *, poll_s: float = file_watcher.SLOW_POLL_S, events: bool = True
    ) -> None:
        self._path, self._loader, self._poll_s, self._events = path, loader, poll_s, events
        self._watcher: file_watcher.FileWatcher | None = None
        self._description: Manifest = {"kind": "folder", "where": str(path), "revision": "", "digest": ""}
        self.revision = self.error = ""

    def start(self, on_change: Callable[[], None]) -> None:
        """Watch the folder, and git's state files in a checkout: a commit may change no file."""
        self._watcher = file_watcher.FileWatcher(
            self._path,
            on_change,
            also=revision_lookup.git_state_files(self._path),
            poll_s=self._poll_s,
            events=self._events,
        )

    def load(self) -> loader.Loaded:
        """Read the folder once it is stable."""
        try:
            loaded = self._loader.load(self._path, stable=True, pause_s=self._pause_s)
        except errors.InputError as error:  # an unreadable folder declares nothing: freeze, do not prune
            return replace(loader.empty_tree(), frozen=str(error))
        if self._watcher is not None:
            self._watcher.retarget([*revision_lookup.git_state_files(self._path), *map(Path, loaded.references)])
        self._description = folder_description(self._path, loaded.snapshot.digest)
        self.revision = self._description["revision"]
        return loaded

    @property
    def _pause_s(self) -> float:
        """Pause between two readings that must agree. Events are debounced already, polling is not."""
        debounced = self._watcher is not None and not self._watcher.polling
        return QUIET_PAUSE_S if debounced else files.PAUSE_S

    def description(self) -> Manifest:
        """Return the source as Fleet.status shows it."""
        return self._description

    def handle_webhook(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Reject: a folder has no webhook."""
        del headers, body
        return NO_WEBHOOK

    def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.close()
