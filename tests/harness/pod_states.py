"""Pod states as a kubelet reports them, as input of `kwokfleet learn`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Manifest = dict[str, Any]
EPOCH = 1_800_000_000
"""Start time; seconds since 1970."""


def timestamp(seconds: float) -> str:
    """Return a time as the API server writes it: whole seconds."""
    return datetime.fromtimestamp(int(EPOCH + seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PodState:
    """A pod with methods for its state changes; times are seconds after EPOCH."""

    name: str
    policy: str = "Never"
    init: bool = False
    job: bool = False
    now: Manifest = field(default_factory=dict)

    def __post_init__(self) -> None:
        owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "job"}] if self.job else []
        containers = [{"name": "main", "image": "none"}]
        self.now = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "shop", "uid": f"uid-{self.name}", "ownerReferences": owners},
            "spec": {"restartPolicy": self.policy, "containers": containers}
            | ({"initContainers": [{"name": "first", "image": "none"}]} if self.init else {}),
            "status": {"phase": "Pending"},
        }

    def _set_condition(self, kind: str, at: float, *, status: bool = True) -> None:
        conditions = [condition for condition in self.now["status"].get("conditions", ()) if condition["type"] != kind]
        new = {"type": kind, "status": str(status), "lastTransitionTime": timestamp(at)}
        self._status(conditions=[*conditions, new])

    def _status(self, **fields: object) -> None:
        self.now = {**self.now, "status": {**self.now["status"], **fields}}

    def _container(self, count: int, last: Manifest, **state: Manifest) -> None:
        self._status(
            containerStatuses=[{"name": "main", "restartCount": count, "lastState": last, "state": state}],
        )

    def bound(self, at: float) -> Manifest:
        """Bind it to a node."""
        self.now = {**self.now, "spec": {**self.now["spec"], "nodeName": "node"}}
        self._set_condition("PodScheduled", at)
        return self.now

    def creating(self, at: float) -> Manifest:
        """Start the creation of its containers."""
        self._status(startTime=timestamp(at))
        self._set_condition("Initialized", at, status=not self.init)
        self._set_condition("Ready", at, status=False)
        self._container(0, {}, waiting={"reason": "ContainerCreating"})
        return self.now

    def initialized(self, at: float) -> Manifest:
        """Complete its init containers."""
        self._set_condition("Initialized", at)
        return self.now

    def started(self, at: float, count: int = 0, last: Manifest | None = None) -> Manifest:
        """Start its container."""
        self._status(phase="Running")
        self._container(count, last or {}, running={"startedAt": timestamp(at)})
        return self.now

    def ready(self, at: float) -> Manifest:
        """Set its Ready condition."""
        self._set_condition("Ready", at)
        return self.now

    def over(self, started: float, at: float, code: int = 0, reason: str = "Completed") -> Manifest:
        """Terminate it."""
        self._status(phase="Failed" if code else "Succeeded")
        self._set_condition("Ready", at, status=False)
        self._container(0, {}, terminated=terminated_state(started, at, code, reason))
        return self.now

    def crashed(self, started: float, at: float, count: int, code: int = 1, reason: str = "Error") -> Manifest:
        """Crash its container: CrashLoopBackOff."""
        self._set_condition("Ready", at, status=False)
        self._container(
            count, {"terminated": terminated_state(started, at, code, reason)}, waiting={"reason": "CrashLoopBackOff"}
        )
        return self.now

    def deleting(self, at: float, grace: int = 30) -> Manifest:
        """Set its deletion timestamp."""
        more = {"deletionTimestamp": timestamp(at + grace), "deletionGracePeriodSeconds": grace}
        self.now = {**self.now, "metadata": {**self.now["metadata"], **more}}
        return self.now


def terminated_state(started: float, at: float, code: int, reason: str) -> Manifest:
    """Return the state of a terminated container."""
    return {"startedAt": timestamp(started), "finishedAt": timestamp(at), "exitCode": code, "reason": reason}


def job_pod_states(name: str, start: float, steps: tuple[float, float, float], code: int = 0) -> Iterator[Manifest]:
    """Yield the states of a Job's pod; *steps* are the durations until created, ready and finished."""
    create, ready, run = steps
    pod = PodState(name, job=True)
    yield pod.now
    yield pod.bound(start)
    yield pod.creating(start + create)
    up = start + create + ready
    pod.started(up)
    yield pod.ready(up)
    yield pod.over(up, up + run, code, "OOMKilled" if code else "Completed")


def kubectl_watch_output(states: list[tuple[str, Manifest]]) -> str:
    """Return watch events as kubectl prints them."""
    return "".join(json.dumps({"type": what, "object": pod}, indent=4) + "\n" for what, pod in states)
