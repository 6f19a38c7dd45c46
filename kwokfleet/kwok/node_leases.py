"""Node leases: the driver of a node, and the release of a dead driver's leases.

kwok has a new holder identity after every start, and waits until the leases of its predecessor expire. kwokfleet
knows that the predecessor is dead, and releases its leases, each only in the version that was read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import LEASE, Request, collection

NAMESPACE = "kube-node-lease"
_GRACE = 1.04


@dataclass(frozen=True, slots=True)
class NodeLease:
    """The lease of a node."""

    node: str
    holder: str
    renewed: datetime
    duration_s: int
    uid: str = ""
    version: str = ""

    def age_s(self, now: datetime) -> float:
        """Return the time since the last renewal."""
        return (now - self.renewed).total_seconds()

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the lease is valid."""
        return self.age_s(now) <= self.duration_s


def parse_lease(manifest: Manifest) -> NodeLease:
    """Parse a lease."""
    spec = manifest.get("spec") or {}
    text = spec.get("renewTime")
    renewed = datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
    return NodeLease(
        manifest["metadata"]["name"],
        spec.get("holderIdentity") or "",
        renewed,
        int(spec.get("leaseDurationSeconds") or 0),
        manifest["metadata"].get("uid", ""),
        manifest["metadata"].get("resourceVersion", ""),
    )


def path(node: str) -> str:
    """Return the path of a node's lease."""
    if not node:
        raise ValueError("a lease needs a name")
    return f"{collection(LEASE, NAMESPACE)}/{node}"


def get_request(node: str) -> Request:
    """Return the request that reads a node's lease."""
    return Request("GET", path(node))


def release_request(lease: NodeLease) -> Request:
    """Return the request that deletes a lease in the version that was read.

    Removing only its holder is not enough: a starting kwok tries to create each lease before it knows the
    existing ones, and after a failure retries only at the next renewal.
    """
    if not lease.uid or not lease.version:
        raise ValueError(f"a lease is deleted by its UID and version: {lease}")
    options = {"preconditions": {"uid": lease.uid, "resourceVersion": lease.version}}
    body = orjson.dumps({"apiVersion": "v1", "kind": "DeleteOptions", **options})
    return Request("DELETE", path(lease.node), body)


def lag_s(leases: Iterable[NodeLease], duration_s: float, now: datetime) -> float:
    """Return how late the latest renewal is; not above 0 if all are in time. kwok renews after a quarter."""
    interval_s = duration_s / 4 * _GRACE
    return max((lease.age_s(now) - interval_s for lease in leases), default=0.0)
