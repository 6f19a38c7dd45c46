"""The history of one real pod, collected from its states.

A state contains the moments that the pod has reached, most with a timestamp. The first state with a moment also
gives the time at which the watch received it, exact to hundredths of a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kwokfleet.kube.objects import Manifest

_OVER = {"Succeeded", "Failed"}
_LATE_TIMESTAMPS = {"bound", "over"}
"""Moments whose timestamp may appear only in a later state; for others, a later one is a repetition."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """The exit of a container."""

    container: str
    started: float
    ended: float
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class PodState:
    """One state of a pod."""

    moments: Mapping[str, float | None]
    """Moments reached, with their timestamps if there are any."""
    phase: str
    has_init: bool
    is_job: bool
    stays: bool
    restarted: bool
    starts: frozenset[tuple[str, float]]
    ends: frozenset[ContainerExit]
    failure: tuple[str, int]


@dataclass(slots=True)
class PodHistory:
    """Everything known about a pod."""

    api: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    starts: set[tuple[str, float]] = field(default_factory=set)
    ends: set[ContainerExit] = field(default_factory=set)
    phase: str = ""
    killed: bool = False
    """Whether it ended because it was deleted."""
    has_init: bool = False
    is_job: bool = False
    stays: bool = False
    """Whether its containers always restart."""
    failure: tuple[str, int] = ("", 0)

    def add(self, state: PodState, received: float | None) -> None:
        """Add a state. Moments of the first state may have happened earlier: it gives no receive times."""
        moments = state.moments
        if not self.known and "creating" in moments:
            received = None
            if state.restarted:  # then it has started and been Ready more than once
                moments = {**moments, "started": None, "ready": None}
        for moment, written in moments.items():
            if moment not in self.known and received is not None:
                self.seen[moment] = received
            if written is not None and (moment not in self.known or moment in _LATE_TIMESTAMPS):
                self.api.setdefault(moment, written)
        if "over" in moments and "over" not in self.known:
            self.killed = "deleting" in {*self.known, *moments} and not self._was_over_first()
        self.known |= state.moments.keys()
        self.phase, self.has_init, self.is_job, self.stays = state.phase, state.has_init, state.is_job, state.stays
        self.starts |= state.starts
        self.ends |= state.ends
        self.failure = state.failure if state.phase == "Failed" else self.failure

    def crashes(self) -> list[ContainerExit]:
        """Return the exits of containers that should restart, or did."""
        deleting = self.api.get("deleting")
        return [
            crash
            for crash in self.ends
            if (deleting is None or crash.ended < deleting) and (self.stays or self.restarted_at(crash) is not None)
        ]

    def restarted_at(self, crash: ContainerExit) -> float | None:
        """Return the restart time of a container, if known."""
        own_starts = [at for container, at in self.starts if container == crash.container]
        starts = [at for at in own_starts if at >= crash.ended and at > crash.started]
        later = [other.ended for other in self.ends if other.container == crash.container and other.ended > crash.ended]
        first = min(starts, default=None)
        return first if first is not None and not any(at < first for at in later) else None

    def _was_over_first(self) -> bool:
        return "over" in self.api and "deleting" in self.api and self.api["over"] < self.api["deleting"]

    @property
    def is_over(self) -> bool:
        """Whether it completed or failed by itself."""
        return "over" in self.known and not self.killed

    @property
    def is_finished(self) -> bool:
        """Whether it has no further steps."""
        return bool({"over", "gone"} & self.known) or (self.stays and "ready" in self.known)

    def ready_time(self, times: Mapping[str, float]) -> float | None:
        """Return when it was Ready, or when it started if it ended before Ready was seen."""
        return times.get("ready", times.get("started") if "over" in self.known else None)


def parse_state(pod: Manifest, *, gone: bool) -> PodState:
    """Parse a state of a pod; *gone*: it is deleted. An invalid pod raises any exception."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    containers = status.get("containerStatuses") or []
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ends = frozenset(crash for container in containers for crash in _ends(container))
    moments = dict(_moments(spec, status, conditions, len(spec.get("containers") or ())))
    if metadata.get("deletionTimestamp"):
        grace = metadata.get("deletionGracePeriodSeconds") or 0
        moments["deleting"] = _time(metadata["deletionTimestamp"]) - float(grace)
    if gone:
        last = max((crash.ended for crash in ends), default=None)
        asked = moments.get("deleting")
        moments["gone"] = last if last is not None and asked is not None and last >= asked else None
    return PodState(
        moments=moments,
        phase=str(status.get("phase") or ""),
        has_init=bool(spec.get("initContainers")),
        is_job=any(owner.get("kind") == "Job" for owner in metadata.get("ownerReferences") or ()),
        stays=spec.get("restartPolicy", "Always") == "Always",
        restarted=any(container.get("restartCount") for container in containers),
        starts=frozenset((str(container["name"]), at) for container in containers for at in _starts(container)),
        ends=ends,
        failure=_failure(status, containers),
    )


def _moments(
    spec: Manifest, status: Manifest, conditions: Mapping[str, Manifest], count: int
) -> Iterable[tuple[str, float | None]]:
    """Yield the moments reached, with their timestamps."""
    if spec.get("nodeName"):
        yield "bound", _since(conditions.get("PodScheduled"))
    if status.get("startTime"):
        yield "creating", _time(status["startTime"])
    for moment, condition in (("initialized", "Initialized"), ("ready", "Ready")):
        if conditions.get(condition, {}).get("status") == "True":
            yield moment, _since(conditions[condition])
    containers = status.get("containerStatuses") or []
    starts = [min(times) for times in map(_starts, containers) if times]
    if starts and len(starts) == len(containers) >= count:
        yield "started", max(starts)
    if status.get("phase") in _OVER:
        states = [container.get("state") or {} for container in containers]
        ends = [state.get("terminated", {}).get("finishedAt") for state in states]
        yield "over", max((_time(end) for end in ends if end), default=None)


def _since(condition: Manifest | None) -> float | None:
    written = (condition or {}).get("lastTransitionTime")
    return _time(written) if written else None


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _starts(container: Manifest) -> list[float]:
    """Return the recorded starts of a container."""
    parts = [*(container.get("state") or {}).values(), *(container.get("lastState") or {}).values()]
    return [_time(part["startedAt"]) for part in parts if part.get("startedAt")]


def _ends(container: Manifest) -> Iterable[ContainerExit]:
    """Yield the recorded exits of a container."""
    for state in ("state", "lastState"):
        part = (container.get(state) or {}).get("terminated") or {}
        if part.get("startedAt") and part.get("finishedAt"):
            times = _time(part["startedAt"]), _time(part["finishedAt"])
            reason, exit_code = str(part.get("reason") or "Error"), int(part.get("exitCode") or 0)
            yield ContainerExit(str(container["name"]), *times, reason, exit_code)


def _failure(status: Manifest, containers: Sequence[Manifest]) -> tuple[str, int]:
    """Return reason and exit code of a failed pod: of its first failed container, or else of the pod."""
    for container in containers:
        part = (container.get("state") or {}).get("terminated") or {}
        if part.get("exitCode"):
            return str(part.get("reason") or "Error"), int(part["exitCode"])
    return str(status.get("reason") or "Error"), 1
