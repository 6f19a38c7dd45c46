"""What real pods went through, and the Lifecycle that makes fake ones go through the same.

A pod is told in its states, one after the other; each says what is so by now, and most say since
when. A step of a Lifecycle lies between two such moments. Times that we received states at are exact
to hundredths of a second and known only of what happened while we looked; times that are written in
the pod are whole seconds and known of nearly everything. A step is learnt by one of them alone.

A fake pod starts and is Ready at once. A real one starts, and is Ready when its probes say so: `ready`
lasts until then and `complete` counts from then, so that both moments come when they should.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kwokfleet.core import fitting
from kwokfleet.core.objects import Manifest
from kwokfleet.core.result import Clock

GRID_S = {Clock.API: 1.0, Clock.WATCH: 0.05}
"""How exact the times of a clock are; what is received is late by some hundredths now and then."""
_LOOPING = 0.5
"""Of so many of the pods the containers crash before that is what such pods do: a Lifecycle speaks of all."""
_OVER = {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class Step:
    """How long one step takes."""

    fit: fitting.Fit
    clock: Clock
    backwards: int
    """How many ended before they began, by clocks that differ; they count as no time at all."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """How pods fail, or containers crash."""

    count: int
    of: int
    reason: str
    exit_code: int
    others: Mapping[str, int]
    """Other reasons, and how often."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learnt."""

    pods: int
    steps: Mapping[str, Step]
    """`create`, `init`, `ready`, `complete`, `fail`, `every`, `backoff`, `delete`: those of which anything is known."""
    fails: Trouble | None
    crashes: Trouble | None
    jobs: bool
    """Whether all pods that completed belong to Jobs."""
    since: float | None
    until: float | None
    notes: tuple[str, ...]
    """What a Lifecycle cannot say, or what makes this one doubtful."""


class Study:
    """Takes in states of pods, and says what they teach. Not for several threads at once."""

    def __init__(self) -> None:
        self._stories: dict[str, _Story] = {}
        self._through: set[str] = set()

    def take(self, what: str, pod: Manifest, received: float | None = None) -> None:
        """Take in a state; *what*: DELETED if it is the last one; *received*: seconds since 1970, if that is known.

        Raises ValueError if it is not a pod.
        """
        try:
            metadata = pod["metadata"]
            name = str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}")
            state = _state(pod, gone=what == "DELETED")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a pod as the API server writes it ({type(error).__name__}: {error})") from None
        story = self._stories.setdefault(name, _Story())
        story.take(state, received)
        if story.is_through:
            self._through.add(name)

    @property
    def pods(self) -> int:
        """How many there are."""
        return len(self._stories)

    @property
    def through(self) -> int:
        """How many have nothing more to teach: they are over or gone, or Ready and made to stay so."""
        return len(self._through)

    def lesson(self) -> Lesson:
        """Return what all of them teach."""
        return _lesson(list(self._stories.values()))


# ----------------------------------------------------------------------------------------
# one pod


@dataclass(frozen=True, slots=True)
class _Crash:
    """A container that ended."""

    container: str
    started: float
    ended: float
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class _State:
    """What one state of a pod says."""

    moments: Mapping[str, float | None]
    """What is so by now, and since when it says it is."""
    phase: str
    has_init: bool
    is_job: bool
    stays: bool
    starts: frozenset[tuple[str, float]]
    ends: frozenset[_Crash]
    failure: tuple[str, int]


@dataclass(slots=True)
class _Story:
    """What is known of a pod."""

    api: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    starts: set[tuple[str, float]] = field(default_factory=set)
    ends: set[_Crash] = field(default_factory=set)
    phase: str = ""
    killed: bool = False
    """Whether it was over only because somebody deleted it."""
    has_init: bool = False
    is_job: bool = False
    stays: bool = False
    """Whether its containers are started again whenever they end."""
    failure: tuple[str, int] = ("", 0)

    def take(self, state: _State, received: float | None) -> None:
        """Take in a state. In the first one much may be so already: what is seen then has not happened then."""
        if not self.known and "creating" in state.moments:
            received = None
        for moment, written in state.moments.items():
            if moment not in self.known and received is not None:
                self.seen[moment] = received
            if written is not None:
                self.api.setdefault(moment, written)
        if "over" in state.moments and "over" not in self.known:
            self.killed = "deleting" in {*self.known, *state.moments} and not self._was_over_first()
        self.known |= state.moments.keys()
        self.phase, self.has_init, self.is_job, self.stays = state.phase, state.has_init, state.is_job, state.stays
        self.starts |= state.starts
        self.ends |= state.ends
        self.failure = state.failure if state.phase == "Failed" else self.failure

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


def _state(pod: Manifest, *, gone: bool) -> _State:
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
    return _State(
        moments=moments,
        phase=str(status.get("phase") or ""),
        has_init=bool(spec.get("initContainers")),
        is_job=any(each.get("kind") == "Job" for each in metadata.get("ownerReferences") or ()),
        stays=spec.get("restartPolicy", "Always") == "Always",
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


def _ends(container: Manifest) -> Iterable[_Crash]:
    """Yield how a container ended, as often as that is still written."""
    for state in ("state", "lastState"):
        part = (container.get(state) or {}).get("terminated") or {}
        if part.get("startedAt") and part.get("finishedAt"):
            times = _time(part["startedAt"]), _time(part["finishedAt"])
            yield _Crash(
                str(container["name"]), *times, str(part.get("reason") or "Error"), int(part.get("exitCode") or 0)
            )


def _failure(status: Manifest, containers: Sequence[Manifest]) -> tuple[str, int]:
    """Return why a pod failed: what the first container says that did, or else the pod."""
    for each in containers:
        part = (each.get("state") or {}).get("terminated") or {}
        if part.get("exitCode"):
            return str(part.get("reason") or "Error"), int(part["exitCode"])
    return str(status.get("reason") or "Error"), 1


# ----------------------------------------------------------------------------------------
# all pods

Times = Callable[["_Story", Mapping[str, float]], tuple[float | None, float | None]]
"""When a step of a pod began and ended, by the times of one clock."""


def _lesson(stories: Sequence[_Story]) -> Lesson:
    over = [each for each in stories if each.is_over]
    failed = [each for each in over if each.phase == "Failed"]
    done = [each for each in over if each.phase == "Succeeded"]
    started = [each for each in stories if {"started", "ready", "over"} & each.known]
    looping = [each for each in started if _crashes(each)]
    crashes = not over and len(looping) >= _LOOPING * len(started) > 0
    steps = {
        "create": _step(stories, _being_created),
        "init": _step([each for each in stories if each.has_init], _initialising),
        "ready": _step(stories, _becoming_ready),
        "complete": _step(done, _running),
        "fail": _step(failed, _running),
        "every": _crash_step(looping, _runs) if crashes else None,
        "backoff": _crash_step(looping, _pauses) if crashes else None,
        "delete": _step(_deleted(stories), _going),
    }
    known = [at for each in stories for at in each.api.values()]
    return Lesson(
        pods=len(stories),
        steps={name: step for name, step in steps.items() if step is not None},
        fails=_trouble([each.failure for each in failed], len(over) if done else len(started)),
        crashes=_crash_trouble(looping, len(started)) if crashes else None,
        jobs=bool(done) and all(each.is_job for each in done),
        since=min(known, default=None),
        until=max(known, default=None),
        notes=tuple(_notes(stories, over, [] if crashes else looping)),
    )


def _being_created(_story: _Story, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("bound"), times.get("creating")


def _initialising(_story: _Story, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("creating"), times.get("initialized")


def _becoming_ready(story: _Story, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("initialized" if story.has_init else "creating"), story.up(times)


def _running(story: _Story, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return story.up(times), times.get("over")


def _going(_story: _Story, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("deleting"), times.get("gone")


def _deleted(stories: Sequence[_Story]) -> Sequence[_Story]:
    """Return pods that were deleted: those that ran, if there are any; others have nothing to end."""
    gone = [each for each in stories if "gone" in each.known]
    return [each for each in gone if not each.is_over] or gone


def _step(stories: Sequence[_Story], step: Times) -> Step | None:
    """Return how long a step takes, by the exacter clock if it knows of enough pods, or of as many."""
    watched = _pairs(step(each, each.seen) for each in stories)
    written = _pairs(step(each, each.api) for each in stories)
    exact = watched and (len(watched) >= fitting.FEW or len(watched) >= len(written))
    return _fitted(watched, Clock.WATCH) if exact else _fitted(written, Clock.API)


def _pairs(found: Iterable[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(begun, ended) for begun, ended in found if begun is not None and ended is not None]


def _fitted(pairs: Sequence[tuple[float, float]], clock: Clock) -> Step | None:
    if not pairs:
        return None
    backwards = sum(ended < begun for begun, ended in pairs)
    return Step(fitting.fit(fitting.sample(pairs, GRID_S[clock])), clock, backwards)


# ----------------------------------------------------------------------------------------
# containers that crash


def _crashes(story: _Story) -> list[_Crash]:
    """Return the ends of containers that were to go on, or did."""
    asked = story.api.get("deleting")
    return [
        crash
        for crash in story.ends
        if (asked is None or crash.ended < asked) and (story.stays or _again(story, crash) is not None)
    ]


def _again(story: _Story, crash: _Crash) -> float | None:
    """Return when a container started again, if that is known."""
    own = [at for container, at in story.starts if container == crash.container]
    starts = [at for at in own if at >= crash.ended and at > crash.started]
    later = [each.ended for each in story.ends if each.container == crash.container and each.ended > crash.ended]
    first = min(starts, default=None)
    return first if first is not None and not any(at < first for at in later) else None


def _crash_step(stories: Sequence[_Story], pairs: Callable[[_Story], Iterable[tuple[float, float]]]) -> Step | None:
    return _fitted([pair for each in stories for pair in pairs(each)], Clock.API)


def _runs(story: _Story) -> Iterable[tuple[float, float]]:
    return ((crash.started, crash.ended) for crash in _crashes(story))


def _pauses(story: _Story) -> Iterable[tuple[float, float]]:
    return _pairs((crash.ended, _again(story, crash)) for crash in _crashes(story))


def _crash_trouble(looping: Sequence[_Story], of: int) -> Trouble | None:
    return _trouble([(crash.reason, crash.exit_code) for each in looping for crash in _crashes(each)], of)


def _trouble(found: Sequence[tuple[str, int]], of: int) -> Trouble | None:
    if not found:
        return None
    (reason, exit_code), _ = min(Counter(found).items(), key=lambda pair: (-pair[1], pair[0]))
    others = Counter(f"{other} ({code})" for other, code in found if (other, code) != (reason, exit_code))
    return Trouble(len(found), of, reason, exit_code, others)


# ----------------------------------------------------------------------------------------
# what else there is to say


def _notes(stories: Sequence[_Story], over: Sequence[_Story], crashed: Sequence[_Story]) -> Iterable[str]:
    unbound = sum("bound" not in each.known for each in stories)
    if unbound:
        yield f"{unbound} of {len(stories)} pods were not bound to a node: nothing is known of what came after"
    going = [each for each in stories if not each.known & {"over", "deleting", "gone"} and "ready" in each.known]
    if over and going:
        yield (
            f"{len(going)} pods were still running in the end: complete and fail know only those that were over, "
            "and are too short if the others are the longer ones"
        )
    if crashed:
        count = sum(len(_crashes(each)) for each in crashed)
        yield (
            f"containers of {len(crashed)} pods crashed and were started again, {count} times in all: "
            "left out, since a lifecycle lets the containers of every pod do so, and none beside complete or fail"
        )
    killed = sum(each.killed for each in stories)
    if killed:
        yield f"{killed} pods were over because they were deleted: they count neither as completed nor as failed"
