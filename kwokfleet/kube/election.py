"""Leader election without IO: one daemon of several holds a Lease and renews it.

No clock of another machine is trusted. A candidate takes the Lease after it has *seen* it unchanged for the
lease duration, by its own clock. The leader stops some seconds earlier, counted from before it sent its last
successful renewal.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import LEASE, Request, collection, write_query


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Durations of leader election."""

    lease_s: float = 15.0
    """A candidate takes the Lease this long after the last renewal that it saw."""
    renew_s: float = 10.0
    """The leader stops leading this long after its last renewal."""
    retry_s: float = 2.0
    """Interval of renewals and checks."""


class ElectionStep(StrEnum):
    """Next action of a candidate."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """The Lease as it was read."""

    holder: str = ""
    renewed: str = ""
    acquired: str = ""
    duration_s: float = 0.0
    transitions: int = 0
    version: str = ""


def parse_lease(manifest: Manifest) -> LeaderLease:
    """Parse a Lease."""
    spec = manifest.get("spec") or {}
    return LeaderLease(
        spec.get("holderIdentity") or "",
        spec.get("renewTime") or "",
        spec.get("acquireTime") or "",
        float(spec.get("leaseDurationSeconds") or 0),
        int(spec.get("leaseTransitions") or 0),
        manifest["metadata"].get("resourceVersion", ""),
    )


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """The last seen state of the Lease, and the time of its last change."""

    lease: LeaderLease | None = None
    since: float = 0.0

    def updated(self, lease: LeaderLease | None, now: float) -> "LeaseObservation":
        """Return the observation after another read."""
        return self if self.lease == lease else LeaseObservation(lease, now)


def next_step(observation: LeaseObservation, identity: str, now: float) -> ElectionStep:
    """Decide the next action of a candidate."""
    lease = observation.lease
    if lease is None:
        return ElectionStep.CREATE
    if lease.holder == identity:
        return ElectionStep.RENEW
    if not lease.holder or now - observation.since > lease.duration_s:
        return ElectionStep.TAKE
    return ElectionStep.WAIT


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """A candidate for a Lease."""

    namespace: str
    name: str
    identity: str

    @property
    def path(self) -> str:
        """The path of the Lease."""
        return f"{collection(LEASE, self.namespace)}/{self.name}"

    def get_request(self) -> Request:
        """Return the request that reads the Lease."""
        return Request("GET", self.path)

    def hold_request(self, lease: LeaderLease | None, timing: LeaseTiming, now: datetime) -> Request:
        """Return the request that creates, takes or renews the Lease; it fails if the Lease changed since."""
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_holder = lease is not None and lease.holder == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(timing.lease_s),
            "renewTime": stamp,
            "acquireTime": lease.acquired if lease is not None and is_holder else stamp,
            "leaseTransitions": 0 if lease is None else lease.transitions + (not is_holder),
        }
        return self._write_request(lease, spec)

    def release_request(self, lease: LeaderLease) -> Request:
        """Return the request that gives up the Lease, so that no candidate has to wait for its end."""
        return self._write_request(
            lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": lease.transitions}
        )

    def _write_request(self, lease: LeaderLease | None, spec: Manifest) -> Request:
        metadata = {"name": self.name, "namespace": self.namespace}
        manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
        if lease is None:
            return Request("POST", f"{collection(LEASE, self.namespace)}?{write_query()}", orjson.dumps(manifest))
        return Request(
            "PUT",
            f"{self.path}?{write_query()}",
            orjson.dumps({**manifest, "metadata": {**metadata, "resourceVersion": lease.version}}),
        )
