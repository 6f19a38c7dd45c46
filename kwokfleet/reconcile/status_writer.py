"""Writes Fleet resources, their status and annotations, and Events.

An unchanged status is not written: a synced Fleet costs no request.
"""

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, events, objects, requests
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import Patch
from kwokfleet.reconcile import fleet_status
from kwokfleet.waves import run_commands

log = structlog.get_logger()

MAX_WRITE_ATTEMPTS = 5
"""Attempts of a write that conflicts with other writers."""


def fleet_key(fleet: str) -> ObjectKey:
    """Return the key of a Fleet resource."""
    return ObjectKey(requests.FLEET.api_version, requests.FLEET.kind, "", fleet)


def annotate(api: requests.RequestSender, fleet: str, annotations: Manifest, version: str = "") -> None:
    """Annotate a Fleet; raise if it does not exist, or the API server rejects it.

    *version*: the resourceVersion that the Fleet must still have.
    """
    metadata = {"annotations": annotations} | ({"resourceVersion": version} if version else {})
    response = api.send(requests.patch(fleet_key(fleet), Patch("", {"metadata": metadata})))
    if response.status == HTTPStatus.NOT_FOUND:
        raise errors.InputError(
            f"Fleet {fleet!r} not found in the cluster", hint="kubectl get fleets lists every synced Fleet"
        )
    if response.status != HTTPStatus.OK:
        raise client.rejection_error(api, response, "patch fleets")


def submit_run_command(  # noqa: PLR0913  # parts of a command
    api: requests.RequestSender,
    fleet: str,
    what: run_commands.RunAction,
    wave: str,
    run: str,
    *,
    check: Callable[[Manifest], None],
) -> int:
    """Add a run command to the Fleet's annotation; return its number."""
    for _ in range(MAX_WRITE_ATTEMPTS):
        live = api.send(requests.get(fleet_key(fleet))).json()
        metadata = live.get("metadata") or {}
        if metadata.get("uid"):  # annotate raises if the Fleet does not exist
            check(live)
        waves = (live.get("status") or {}).get("waves") or ()
        handled = max((int(entry.get("heeded", 0)) for entry in waves), default=0)
        commands = (metadata.get("annotations") or {}).get(objects.RUN_COMMANDS, "")
        text = run_commands.with_command(commands, what, wave, run, above=handled)
        try:
            annotate(api, fleet, {objects.RUN_COMMANDS: text}, metadata.get("resourceVersion", ""))
        except errors.ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
        else:
            return run_commands.parse(text)[-1].number
    raise errors.ClusterError(
        f"gave up writing fleet {fleet} after {MAX_WRITE_ATTEMPTS} write conflicts", hint="run the command again"
    )


class StatusWriter:
    """Writes Fleet.status, and remembers what it wrote."""

    def __init__(self, api: requests.RequestSender, me: str = "") -> None:
        self._api, self._me = api, me
        self.fleets: dict[str, Manifest] = {}
        """Fleet resources, as last read or written."""
        self._marks = itertools.count()

    def load(self) -> bool:
        """Read the Fleet resources; return whether the cluster has the CRD and lets us list them."""
        listed = self._api.send(requests.list_page(requests.FLEET))
        self.fleets = {fleet["metadata"]["name"]: fleet for fleet in listed.json().get("items") or ()}
        return listed.status == HTTPStatus.OK

    def status_of(self, fleet: str) -> Manifest:
        """Return the last known status of a Fleet."""
        return (self.fleets.get(fleet) or {}).get("status") or {}

    def write(self, statuses: Mapping[str, Manifest], alive: AbstractSet[str] | None) -> bool:
        """Write each status that changed; return whether that was possible.

        *alive*: Fleets with live objects. A Fleet resource without objects and status is deleted; None: unknown, so
        none is deleted.
        """
        now = datetime.now(UTC)
        for name, status in statuses.items():
            update = fleet_status.status_update(status, self.status_of(name), now)
            if update is not None and not self._write_one(name, update):
                return False
        if alive is not None:
            for name in self.fleets.keys() - statuses.keys() - alive:
                self.delete(name)
        return True

    def _write_one(self, name: str, status: Manifest) -> bool:
        if name not in self.fleets:
            response = self._api.send(requests.create(fleet_status.fleet_resource(name)))
            if response.status not in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
                return False
        response = self._api.send(requests.patch(fleet_key(name), Patch("status", {"status": status})))
        if response.status == HTTPStatus.OK:
            self.fleets[name] = response.json()
        elif response.status == HTTPStatus.NOT_FOUND:
            self.fleets.pop(name, None)  # deleted by someone else: created again at the next write
        return response.status == HTTPStatus.OK

    def delete(self, fleet: str) -> None:
        """Delete a Fleet resource."""
        metadata = self._api.send(requests.get(fleet_key(fleet))).json().get("metadata") or {}
        if metadata.get("uid"):
            self._api.send(requests.delete(fleet_key(fleet), metadata["uid"]))
        self.fleets.pop(fleet, None)

    def emit_event(self, fleet: str, reason: str, message: str, *, kind: str = events.NORMAL) -> None:
        """Create an Event. A failure is only logged."""
        uid = ((self.fleets.get(fleet) or {}).get("metadata") or {}).get("uid", "")
        event = events.fleet_event(fleet, uid, reason, message, kind=kind, me=self._me, now=datetime.now(UTC))
        event["metadata"]["name"] += f".{next(self._marks):x}"
        try:
            response = self._api.send(requests.create(event))
        except errors.ClusterError as error:
            log.debug("event_not_sent", fleet=fleet, reason=reason, error=str(error))
        else:
            if response.status != HTTPStatus.CREATED:
                log.debug("event_rejected", fleet=fleet, reason=reason, error=response.message)
