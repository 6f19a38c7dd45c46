"""Kubernetes Events about Fleets, as `kubectl describe fleet` and `kubectl get events` show them."""

from datetime import UTC, datetime

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

NAMESPACE = "default"
"""Namespace of Events about cluster-scoped objects."""
NORMAL, WARNING = "Normal", "Warning"
_MAX_MESSAGE = 1024


def fleet_event(  # noqa: PLR0913  # the fields of an Event
    fleet: str, uid: str, reason: str, message: str, *, kind: str, me: str, now: datetime
) -> Manifest:
    """Return an Event about a Fleet, named by the microsecond as client-go does."""
    stamp = now.astimezone(UTC)
    seconds = stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{fleet}.{int(stamp.timestamp() * 1e6):x}", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": objects.API_VERSION, "kind": "Fleet", "name": fleet, "uid": uid},
        "type": kind,
        "reason": reason,
        "message": message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…",
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
        "source": {"component": objects.KWOKFLEET},
        "reportingComponent": f"{objects.PREFIX}/daemon",
        "reportingInstance": me,
    }
