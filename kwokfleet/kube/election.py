"""Who leads, purely: one of several daemons, by a Lease that all of them read and one of them renews.

Nobody trusts another's clock. A candidate takes a Lease over when it has *seen* it unchanged for as
long as it lasts, by its own clock; the leader stops at a moment that it reckons from before it sent
its last successful renewal, some seconds earlier than that.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import LEASE, Request, collection, write_query


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long things take."""

    lease_s: float = 15.0
    """So long after its last renewal a leader counts as gone."""
    renew_s: float = 10.0
    """So long after its last renewal it stops leading by itself."""
    retry_s: float = 2.0
    """How often everybody looks."""


class ElectionStep(StrEnum):
    """What a candidate does next."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """A Lease, as it was read."""

    holder: str = ""
    renewed: str = ""
    acquired: str = ""
    duration_s: float = 0.0
    transitions: int = 0
    version: str = ""


def parse_lease(manifest: Manifest) -> LeaderLease:
    """Read a Lease."""
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
    """What a candidate has seen of a Lease, and since when it is like that."""

    record: LeaderLease | None = None
    since: float = 0.0

    def updated(self, record: LeaderLease | None, now: float) -> "LeaseObservation":
        """Return what is known after another look."""
        return self if self.record == record else LeaseObservation(record, now)


def next_step(sight: LeaseObservation, me: str, now: float) -> ElectionStep:
    """Decide what to do about the Lease."""
    record = sight.record
    if record is None:
        return ElectionStep.CREATE
    if record.holder == me:
        return ElectionStep.RENEW
    if not record.holder or now - sight.since > record.duration_s:
        return ElectionStep.TAKE
    return ElectionStep.WAIT


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """The Lease that is fought for, and by whom."""

    namespace: str
    name: str
    me: str

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{collection(LEASE, self.namespace)}/{self.name}"

    def get(self) -> Request:
        """Read it."""
        return Request("GET", self.path)

    def hold(self, record: LeaderLease | None, timing: LeaseTiming, now: datetime) -> Request:
        """Create it, take it over, or renew it: if nobody has touched it since it was read."""
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = record is not None and record.holder == self.me
        spec = {
            "holderIdentity": self.me,
            "leaseDurationSeconds": int(timing.lease_s),
            "renewTime": stamp,
            "acquireTime": record.acquired if record is not None and mine else stamp,
            "leaseTransitions": 0 if record is None else record.transitions + (not mine),
        }
        return self._write(record, spec)

    def release(self, record: LeaderLease) -> Request:
        """Give it up, so that nobody has to wait for its end."""
        return self._write(
            record, {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": record.transitions}
        )

    def _write(self, record: LeaderLease | None, spec: Manifest) -> Request:
        metadata = {"name": self.name, "namespace": self.namespace}
        manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
        if record is None:
            return Request("POST", f"{collection(LEASE, self.namespace)}?{write_query()}", orjson.dumps(manifest))
        return Request(
            "PUT",
            f"{self.path}?{write_query()}",
            orjson.dumps({**manifest, "metadata": {**metadata, "resourceVersion": record.version}}),
        )
