"""Watch events of pods and Jobs: one event per step, with complete manifests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.measure.collector import Collector, RunInfo
from kwokfleet.measure.pods import EventType

T0 = 1_800_000_000.0
"""Scheduled time of every Run; seconds since 1970."""
DELAY_S = 0.25
"""Delay of watch events after the timestamps."""

Event = tuple[EventType, Manifest, float]


def timestamp(at: float) -> str:
    """Return a time as the API server writes it: whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def subject(total: int = 1, kind: str = "Pod", *, ends: bool = True) -> RunInfo:
    """Return the subject of a collector."""
    return RunInfo("lab", "stress", "0", datetime.fromtimestamp(T0, UTC), kind, total, ends)


def new_collector(total: int = 1, kind: str = "Pod", *, ends: bool = True) -> Collector:
    """Return an empty Collector; nodes are named POOL-NUMBER."""
    return Collector(subject(total, kind, ends=ends), lambda node: node.rpartition("-")[0])


@dataclass(frozen=True)
class PodTimeline:
    """Times of a pod's steps: seconds after T0, None for never."""

    index: int = 0
    created: float = 0.0
    scheduled: float | None = None
    running: float | None = None
    over: float | None = None
    gone: float | None = None
    failed: bool = False
    scheduler: str = "default-scheduler"
    node: str = "general-1"
    volumes: tuple[Manifest, ...] = ()
    owner: Manifest | None = None
    requests: dict[str, str] = field(default_factory=lambda: {"cpu": "500m"})

    @property
    def name(self) -> str:
        """Name of the pod."""
        return f"lab-stress-0-{self.index}"

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return f"00000000-0000-4000-8000-{self.index:012x}"

    def at(self, moment: float) -> Manifest:
        """Return the manifest at a moment."""
        over = _by(self.over, moment)
        conditions = []
        for kind, since, holds in (
            ("PodScheduled", self.scheduled, True),
            ("Initialized", self.running, True),
            ("ContainersReady", self.running, not over),
            ("Ready", self.running, not over),
        ):
            if since is not None and _by(since, moment):
                at = timestamp(T0 + (since if holds or self.over is None else self.over))
                conditions.append({"type": kind, "status": str(holds), "lastTransitionTime": at})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self._metadata(),
            "spec": {
                "schedulerName": self.scheduler,
                "containers": [{"name": "c", "resources": {"requests": self.requests}}],
                "volumes": list(self.volumes),
                **({"nodeName": self.node} if _by(self.scheduled, moment) else {}),
            },
            "status": {"phase": self._phase(moment), "conditions": conditions, **self._containers(moment)},
        }

    def _metadata(self) -> Manifest:
        own: Manifest = {"name": self.name, "namespace": "default", "uid": self.uid}
        own["creationTimestamp"] = timestamp(T0 + self.created)
        if self.owner is None:
            return {**own, "annotations": {objects.INDEX: str(self.index)}}
        metadata = self.owner["metadata"]
        reference = {"kind": self.owner["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        return {**own, "ownerReferences": [reference]}

    def _phase(self, moment: float) -> str:
        if _by(self.over, moment):
            return "Failed" if self.failed else "Succeeded"
        return "Running" if _by(self.running, moment) else "Pending"

    def _containers(self, moment: float) -> Manifest:
        if self.running is None or not _by(self.running, moment):
            return {}
        state: Manifest = {"running": {"startedAt": timestamp(T0 + self.running)}}
        if self.over is not None and _by(self.over, moment):
            ended = {"startedAt": timestamp(T0 + self.running), "finishedAt": timestamp(T0 + self.over)}
            state = {"terminated": {**ended, "exitCode": int(self.failed)}}
        return {"containerStatuses": [{"name": "c", "state": state}]}

    def events(self) -> Iterator[Event]:
        """Yield its watch events, each DELAY_S after its step."""
        steps = {time for time in (self.created, self.scheduled, self.running, self.over) if time is not None}
        for step in sorted(steps):
            yield EventType.ADDED if step == self.created else EventType.MODIFIED, self.at(step), T0 + step + DELAY_S
        if self.gone is not None:
            yield EventType.DELETED, self.at(self.gone), T0 + self.gone + DELAY_S


def _by(when: float | None, moment: float) -> bool:
    return when is not None and when <= moment


def job(index: int, status: Manifest | None = None, *, created: float = 0.0, kind: str = "Job") -> Manifest:
    """Return a Job, or an object of another kind, with a status."""
    return {
        "apiVersion": "batch/v1",
        "kind": kind,
        "metadata": {
            "name": f"lab-stress-0-{index}",
            "namespace": "default",
            "uid": f"00000000-0000-4000-9000-{index:012x}",
            "creationTimestamp": timestamp(T0 + created),
            "annotations": {objects.INDEX: str(index)},
        },
        "spec": {"replicas": 2},
        "status": status or {},
    }


def condition(kind: str, at: float, **more: Any) -> Manifest:  # noqa: ANN401  # any field of a condition
    """Return a condition that became true at a moment."""
    return {"type": kind, "status": "True", "lastTransitionTime": timestamp(T0 + at), **more}
