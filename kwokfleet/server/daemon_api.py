"""Interface of a running daemon that the HTTP API uses. `daemon.facade` implements it."""

from collections.abc import Mapping
from typing import Any, Protocol

from kwokfleet.daemon.snapshot import Event, Snapshot
from kwokfleet.daemon.trigger import PassReason


class DaemonApi(Protocol):
    """Operations on a daemon, called from several threads at once.

    A KwokfleetError that an operation raises becomes the response: its sentence and its hint.
    """

    def snapshot(self) -> Snapshot:
        """Return the present state, at once and without a request to the API server."""

    def plan(self) -> str:
        """Return the last Plan as JSON (`reconcile.plan_formats.to_json`)."""

    def list_objects(self, resource: str, fleet: str) -> list[dict[str, Any]]:
        """Return nodes, stages, waves or runs; of one Fleet, or of all if *fleet* is empty."""

    def results(self, fleet: str, wave: str, limit: int) -> list[dict[str, Any]]:
        """Return summaries of Results, the latest first; empty names select all."""

    def result_file(self, fleet: str, wave: str, run: str, file: str) -> str:
        """Return the path of `result.json` or `pods.ndjson` of a Run; empty if it does not exist."""

    def request_pass(self, reason: PassReason) -> None:
        """Request a pass; do not wait for it."""

    def suspend(self, fleet: str, on: bool) -> None:  # noqa: FBT001  # the requested state
        """Suspend or resume a Fleet; an empty name is the whole daemon."""

    def approve(self, digest: str) -> bool:
        """Approve the withheld Plan with that digest; return whether there is one."""

    def handle_push(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Check and handle a webhook of a git host (header names in lower case); return a status and a sentence."""

    def events(self, after: int, timeout_s: float) -> list[Event]:
        """Return the Events with a higher number, oldest first; wait for one up to the timeout.

        Old Events are dropped: the first may be later than *after* + 1.
        """

    def readiness(self) -> tuple[bool, list[str]]:
        """Return whether the daemon has synced, kwok runs and it leads or is on standby, with a sentence for each."""

    def liveness(self) -> tuple[bool, str]:
        """Return whether the worker makes progress, and why not."""
