"""Node leases: who drives a node, since when, and how a dead driver's leases are let go.

kwok names itself anew at every start and waits for the leases of its former self to expire. Who
knows that one to be dead can release them, each one only if nobody has touched it since.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import LEASE, Request, collection

NAMESPACE = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class NodeLease:
    """One node's lease."""

    node: str
    holder: str
    renewed: datetime
    duration_s: int
    uid: str = ""
    version: str = ""

    def age_s(self, now: datetime) -> float:
        """How long ago it was renewed."""
        return (now - self.renewed).total_seconds()

    def is_fresh(self, now: datetime) -> bool:
        """Return whether its holder may still count on it."""
        return self.age_s(now) <= self.duration_s


def parse_lease(manifest: Manifest) -> NodeLease:
    """Read a lease."""
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
    """Return where a node's lease is."""
    if not node:
        raise ValueError("a lease without a name")
    return f"{collection(LEASE, NAMESPACE)}/{node}"


def get_request(node: str) -> Request:
    """Read a node's lease."""
    return Request("GET", path(node))


def release_request(lease: NodeLease) -> Request:
    """Remove a lease, if nobody has touched it since it was read.

    Taking only the holder off it would not do: a kwok that starts tries to create each lease before it
    knows which there are, and after a failure looks again only at the next renewal.
    """
    if not lease.uid or not lease.version:
        raise ValueError(f"a lease is deleted by its UID and version: {lease}")
    options = {"preconditions": {"uid": lease.uid, "resourceVersion": lease.version}}
    body = orjson.dumps({"apiVersion": "v1", "kind": "DeleteOptions", **options})
    return Request("DELETE", path(lease.node), body)


def lag_s(sampled: Iterable[NodeLease], duration_s: float, now: datetime) -> float:
    """Return how far renewals are behind: 0 if each lease was renewed within its interval and some grace."""
    interval = duration_s / 4 * 1.04
    return max((each.age_s(now) - interval for each in sampled), default=0.0)
