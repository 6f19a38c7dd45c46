"""The Lease of leader election: its state, and the requests that create, take, renew and release it.

No clock of another machine is trusted. A candidate takes the Lease after it has *seen* it unchanged for the
lease duration, by its own clock. The leader stops some seconds earlier, counted from before it sent its last
successful renewal.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from kwokfleet.kube import requests
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import LEASE, Request

LEASE_S = 15.0
"""A candidate takes the Lease this long after the last renewal that it saw."""


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

    def allows(self, identity: str, now: float) -> bool:
        """Return whether a candidate may create, take or renew the Lease."""
        lease = self.lease
        return lease is None or lease.holder in ("", identity) or now - self.since > lease.duration_s


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """A candidate for a Lease."""

    namespace: str
    name: str
    identity: str

    def get_request(self) -> Request:
        """Return the request that reads the Lease."""
        return requests.get(ObjectKey(LEASE.api_version, LEASE.kind, self.namespace, self.name))

    def hold_request(self, lease: LeaderLease | None, now: datetime) -> Request:
        """Return the request that creates, takes or renews the Lease; it fails if the Lease changed since."""
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_holder = lease is not None and lease.holder == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(LEASE_S),
            "renewTime": stamp,
            "acquireTime": lease.acquired if lease is not None and is_holder else stamp,
            "leaseTransitions": 0 if lease is None else lease.transitions + (not is_holder),
        }
        return self._write_request(lease, spec)

    def release_request(self, lease: LeaderLease) -> Request:
        """Return the request that gives up the Lease, so that no candidate has to wait for its end."""
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": lease.transitions}
        return self._write_request(lease, spec)

    def _write_request(self, lease: LeaderLease | None, spec: Manifest) -> Request:
        metadata = {"name": self.name, "namespace": self.namespace}
        manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
        if lease is None:
            return requests.create(manifest)
        return requests.replace({**manifest, "metadata": {**metadata, "resourceVersion": lease.version}})
