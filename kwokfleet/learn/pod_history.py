"""One real pod: what each of its states says, and what is known when all of them have been told.

A state says what is so by now, and of most that it says since when. The first state in which something
is so tells more: if it was received while we looked, that is when it happened, to hundredths of a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kwokfleet.kube.objects import Manifest

_OVER = {"Succeeded", "Failed"}
_WRITTEN_LATER = {"bound", "over"}
"""Moments whose time may be written only in a later state; of others a later time is of another occasion."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """A container that ended."""

    container: str
    started: float
    ended: float
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class PodState:
    """What one state of a pod says."""

    moments: Mapping[str, float | None]
    """What is so by now, and since when it says it is."""
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
    """What is known of a pod."""

    api: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    starts: set[tuple[str, float]] = field(default_factory=set)
    ends: set[ContainerExit] = field(default_factory=set)
    phase: str = ""
    killed: bool = False
    """Whether it was over only because somebody deleted it."""
    has_init: bool = False
    is_job: bool = False
    stays: bool = False
    """Whether its containers are started again whenever they end."""
    failure: tuple[str, int] = ("", 0)

    def take(self, said: PodState, received: float | None) -> None:
        """Take in a state. In the first one much may be so already: what is seen then has not happened then."""
        moments = said.moments
        if not self.known and "creating" in moments:
            received = None
            if said.restarted:  # then its containers have started, and it has been Ready, more than once
                moments = {**moments, "started": None, "ready": None}
        for moment, written in moments.items():
            if moment not in self.known and received is not None:
                self.seen[moment] = received
            if written is not None and (moment not in self.known or moment in _WRITTEN_LATER):
                self.api.setdefault(moment, written)
        if "over" in moments and "over" not in self.known:
            self.killed = "deleting" in {*self.known, *moments} and not self._was_over_first()
        self.known |= said.moments.keys()
        self.phase, self.has_init, self.is_job, self.stays = said.phase, said.has_init, said.is_job, said.stays
        self.starts |= said.starts
        self.ends |= said.ends
        self.failure = said.failure if said.phase == "Failed" else self.failure

    def crashes(self) -> list[ContainerExit]:
        """Return the ends of containers that were to go on, or did."""
        asked = self.api.get("deleting")
        return [
            crash
            for crash in self.ends
            if (asked is None or crash.ended < asked) and (self.stays or self.again(crash) is not None)
        ]

    def again(self, crash: ContainerExit) -> float | None:
        """Return when a container started again, if that is known."""
        own = [at for container, at in self.starts if container == crash.container]
        starts = [at for at in own if at >= crash.ended and at > crash.started]
        later = [each.ended for each in self.ends if each.container == crash.container and each.ended > crash.ended]
        first = min(starts, default=None)
        return first if first is not None and not any(at < first for at in later) else None

    def _was_over_first(self) -> bool:
        return "over" in self.api and "deleting" in self.api and self.api["over"] < self.api["deleting"]

    @property
    def is_over(self) -> bool:
        """Whether it came to its own end."""
        return "over" in self.known and not self.killed

    @property
    def is_through(self) -> bool:
        """Whether it has nothing more to teach."""
        return bool({"over", "gone"} & self.known) or (self.stays and "ready" in self.known)

    def up(self, times: Mapping[str, float]) -> float | None:
        """Return when it was up: Ready or, if it was over before anybody saw that, started."""
        return times.get("ready", times.get("started") if "over" in self.known else None)


def parse_state(pod: Manifest, *, gone: bool) -> PodState:
    """Return what a state of a pod says; *gone*: it is the last one. Whatever is not as it should be raises."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    containers = status.get("containerStatuses") or []
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ends = frozenset(crash for each in containers for crash in _ends(each))
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
        is_job=any(each.get("kind") == "Job" for each in metadata.get("ownerReferences") or ()),
        stays=spec.get("restartPolicy", "Always") == "Always",
        restarted=any(each.get("restartCount") for each in containers),
        starts=frozenset((str(each["name"]), at) for each in containers for at in _starts(each)),
        ends=ends,
        failure=_failure(status, containers),
    )


def _moments(
    spec: Manifest, status: Manifest, conditions: Mapping[str, Manifest], count: int
) -> Iterable[tuple[str, float | None]]:
    """Yield what is so by now, with the time since when that is written somewhere."""
    if spec.get("nodeName"):
        yield "bound", _since(conditions.get("PodScheduled"))
    if status.get("startTime"):
        yield "creating", _time(status["startTime"])
    for moment, condition in (("initialized", "Initialized"), ("ready", "Ready")):
        if conditions.get(condition, {}).get("status") == "True":
            yield moment, _since(conditions[condition])
    containers = status.get("containerStatuses") or []
    starts = [min(each) for each in map(_starts, containers) if each]
    if starts and len(starts) == len(containers) >= count:
        yield "started", max(starts)
    if status.get("phase") in _OVER:
        ends = [(each.get("state") or {}).get("terminated", {}).get("finishedAt") for each in containers]
        yield "over", max((_time(end) for end in ends if end), default=None)


def _since(condition: Manifest | None) -> float | None:
    written = (condition or {}).get("lastTransitionTime")
    return _time(written) if written else None


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _starts(container: Manifest) -> list[float]:
    """Return when a container started, as often as that is still written."""
    parts = [*(container.get("state") or {}).values(), *(container.get("lastState") or {}).values()]
    return [_time(part["startedAt"]) for part in parts if part.get("startedAt")]


def _ends(container: Manifest) -> Iterable[ContainerExit]:
    """Yield how a container ended, as often as that is still written."""
    for state in ("state", "lastState"):
        part = (container.get(state) or {}).get("terminated") or {}
        if part.get("startedAt") and part.get("finishedAt"):
            times = _time(part["startedAt"]), _time(part["finishedAt"])
            yield ContainerExit(
                str(container["name"]), *times, str(part.get("reason") or "Error"), int(part.get("exitCode") or 0)
            )


def _failure(status: Manifest, containers: Sequence[Manifest]) -> tuple[str, int]:
    """Return why a pod failed: what the first container says that did, or else the pod."""
    for each in containers:
        part = (each.get("state") or {}).get("terminated") or {}
        if part.get("exitCode"):
            return str(part.get("reason") or "Error"), int(part["exitCode"])
    return str(status.get("reason") or "Error"), 1
