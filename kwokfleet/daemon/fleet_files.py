"""The fleet files of a daemon: last load, and the same load with the suspensions of the cluster."""

from datetime import UTC, datetime

from kwokfleet.daemon import event_log
from kwokfleet.documents import problems
from kwokfleet.kube.informer import informer
from kwokfleet.reconcile import fleet_status, reconciler
from kwokfleet.source import loader
from kwokfleet.source.source import Source

LOGGED_PROBLEMS = 10


class FleetFiles:
    """Loads files from a source. Used by the worker thread only."""

    def __init__(self, source: Source, fleets: informer.Informer, events: event_log.EventLog) -> None:
        self._source, self._fleets, self._event_log = source, fleets, events
        self.loaded: loader.Loaded | None = None
        self.loaded_at: datetime | None = None
        self._effective: tuple[loader.Loaded, frozenset[str], loader.Loaded] | None = None

    def load(self) -> frozenset[str] | None:
        """Load the files; return the names of the Fleets that changed, None if nothing at all changed."""
        before, loaded = self.loaded, self._source.load()
        self.loaded, self.loaded_at = loaded, datetime.now(UTC)
        if before is not None and _content(before) == _content(loaded):
            return None
        self._log(loaded)
        known = {fleet.name: fleet for fleet in before.tree.fleets} if before else {}
        return frozenset(fleet.name for fleet in loaded.tree.fleets if known.get(fleet.name) is not fleet)

    def effective(self, loaded: loader.Loaded) -> loader.Loaded:
        """Return the files with those Fleets suspended that a user suspended in the cluster."""
        suspended = fleet_status.suspended_fleets(fleet.manifest for fleet in self._fleets.view().objects.values())
        if self._effective is None or self._effective[0] is not loaded or self._effective[1] != suspended:
            self._effective = (loaded, suspended, reconciler.with_suspended(loaded, suspended))
        return self._effective[2]

    def _log(self, loaded: loader.Loaded) -> None:
        file_errors = problems.errors(loaded.problems)
        revision, count = self._source.revision, len(loaded.snapshot.files)
        trouble = loaded.frozen or (f"{len(file_errors)} problems" if file_errors else "")
        self._event_log.record(
            "source",
            f"{count} file{'s' * (count != 1)}{revision and f' at {revision}'}{trouble and f': {trouble}'}",
            warning=bool(trouble),
            revision=revision,
            problems=[str(problem) for problem in file_errors[:LOGGED_PROBLEMS]],
        )


def _content(loaded: loader.Loaded) -> tuple[object, ...]:
    return loaded.snapshot.digest, loaded.references, loaded.problems, loaded.frozen
