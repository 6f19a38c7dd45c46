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
from dataclasses import dataclass

from kwokfleet.kube.objects import Manifest
from kwokfleet.learn import fitting, pod_history
from kwokfleet.learn.pod_history import PodHistory
from kwokfleet.measure.result import Clock

GRID_S = {Clock.API: 1.0, Clock.WATCH: 0.05}
"""How exact the times of a clock are; what is received is late by some hundredths now and then."""
_LOOPING = 0.5
"""Of so many of the pods the containers crash before that is what such pods do: a Lifecycle speaks of all."""


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """How long one step takes."""

    fit: fitting.Fit
    clock: Clock
    backwards: int
    """How many ended before they began, by clocks that differ; they count as no time at all."""


@dataclass(frozen=True, slots=True)
class FailureStats:
    """How pods fail, or containers crash."""

    count: int
    of: int
    reason: str
    exit_code: int
    others: Mapping[str, int]
    """Other reasons, and how often."""


@dataclass(frozen=True, slots=True)
class LearnedLifecycle:
    """What was learnt."""

    pods: int
    steps: Mapping[str, LearnedStep]
    """`create`, `init`, `ready`, `complete`, `fail`, `every`, `backoff`, `delete`: those of which anything is known."""
    fails: FailureStats | None
    crashes: FailureStats | None
    jobs: bool
    """Whether all pods that completed belong to Jobs."""
    since: float | None
    until: float | None
    notes: tuple[str, ...]
    """What a Lifecycle cannot say, or what makes this one doubtful."""


class LifecycleLearner:
    """Takes in states of pods, and says what they teach. Not for several threads at once."""

    def __init__(self) -> None:
        self._stories: dict[str, PodHistory] = {}
        self._through: set[str] = set()

    def take(self, what: str, pod: Manifest, received: float | None = None) -> None:
        """Take in a state; *what*: DELETED if it is the last one; *received*: seconds since 1970, if that is known.

        Raises ValueError if it is not a pod.
        """
        try:
            metadata = pod["metadata"]
            name = str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}")
            state = pod_history.parse_state(pod, gone=what == "DELETED")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a pod as the API server writes it ({type(error).__name__}: {error})") from None
        story = self._stories.setdefault(name, PodHistory())
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

    def lesson(self) -> LearnedLifecycle:
        """Return what all of them teach."""
        return _lesson(list(self._stories.values()))


StepTimes = Callable[[PodHistory, Mapping[str, float]], tuple[float | None, float | None]]
"""When a step of a pod began and ended, by the times of one clock."""


def _lesson(pods: Sequence[PodHistory]) -> LearnedLifecycle:
    over = [each for each in pods if each.is_over]
    failed = [each for each in over if each.phase == "Failed"]
    done = [each for each in over if each.phase == "Succeeded"]
    started = [each for each in pods if {"started", "ready", "over"} & each.known]
    looping = [each for each in started if each.crashes()]
    crashes = not over and len(looping) >= _LOOPING * len(started) > 0
    steps = {
        "create": _step(pods, _being_created),
        "init": _step([each for each in pods if each.has_init], _initialising),
        "ready": _step(pods, _becoming_ready),
        "complete": _step(done, _running),
        "fail": _step(failed, _running),
        "every": _crash_step(looping, _runs) if crashes else None,
        "backoff": _crash_step(looping, _pauses) if crashes else None,
        "delete": _step(_deleted(pods), _going),
    }
    known = [at for each in pods for at in each.api.values()]
    return LearnedLifecycle(
        pods=len(pods),
        steps={name: step for name, step in steps.items() if step is not None},
        fails=_trouble([each.failure for each in failed], len(over) if done else len(started)),
        crashes=_crash_trouble(looping, len(started)) if crashes else None,
        jobs=bool(done) and all(each.is_job for each in done),
        since=min(known, default=None),
        until=max(known, default=None),
        notes=tuple(_notes(pods, over, [] if crashes else looping)),
    )


def _being_created(_story: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("bound"), times.get("creating")


def _initialising(_story: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("creating"), times.get("initialized")


def _becoming_ready(story: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("initialized" if story.has_init else "creating"), story.up(times)


def _running(story: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return story.up(times), times.get("over")


def _going(_story: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("deleting"), times.get("gone")


def _deleted(pods: Sequence[PodHistory]) -> Sequence[PodHistory]:
    """Return pods that were deleted: those that ran, if there are any; others have nothing to end."""
    gone = [each for each in pods if "gone" in each.known]
    return [each for each in gone if not each.is_over] or gone


def _step(pods: Sequence[PodHistory], step: StepTimes) -> LearnedStep | None:
    """Return how long a step takes, by the exacter clock if it knows of enough pods, or of as many."""
    watched = _pairs(step(each, each.seen) for each in pods)
    written = _pairs(step(each, each.api) for each in pods)
    exact = watched and (len(watched) >= fitting.MIN_SAMPLES or len(watched) >= len(written))
    return _fitted(watched, Clock.WATCH) if exact else _fitted(written, Clock.API)


def _pairs(found: Iterable[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(begun, ended) for begun, ended in found if begun is not None and ended is not None]


def _fitted(pairs: Sequence[tuple[float, float]], clock: Clock) -> LearnedStep | None:
    if not pairs:
        return None
    backwards = sum(ended < begun for begun, ended in pairs)
    return LearnedStep(fitting.fit(fitting.make_sample(pairs, GRID_S[clock])), clock, backwards)


# ----------------------------------------------------------------------------------------
# containers that crash


def _crash_step(
    pods: Sequence[PodHistory], pairs: Callable[[PodHistory], Iterable[tuple[float, float]]]
) -> LearnedStep | None:
    return _fitted([pair for each in pods for pair in pairs(each)], Clock.API)


def _runs(story: PodHistory) -> Iterable[tuple[float, float]]:
    return ((crash.started, crash.ended) for crash in story.crashes())


def _pauses(story: PodHistory) -> Iterable[tuple[float, float]]:
    return _pairs((crash.ended, story.again(crash)) for crash in story.crashes())


def _crash_trouble(looping: Sequence[PodHistory], of: int) -> FailureStats | None:
    return _trouble([(crash.reason, crash.exit_code) for each in looping for crash in each.crashes()], of)


def _trouble(found: Sequence[tuple[str, int]], of: int) -> FailureStats | None:
    if not found:
        return None
    (reason, exit_code), _ = min(Counter(found).items(), key=lambda pair: (-pair[1], pair[0]))
    others = Counter(f"{other} ({code})" for other, code in found if (other, code) != (reason, exit_code))
    return FailureStats(len(found), of, reason, exit_code, others)


# ----------------------------------------------------------------------------------------
# what else there is to say


def pod_count_text(number: int) -> str:
    """Return a number of pods, in words."""
    return f"{number:,} pod{'' if number == 1 else 's'}"


def _notes(pods: Sequence[PodHistory], over: Sequence[PodHistory], crashed: Sequence[PodHistory]) -> Iterable[str]:
    unbound = sum("bound" not in each.known for each in pods)
    if unbound:
        yield f"{unbound:,} of {pod_count_text(len(pods))} had no node: nothing is known of what came after"
    going = [each for each in pods if not each.known & {"over", "deleting", "gone"} and "ready" in each.known]
    if over and going:
        yield (
            f"still running at the end: {pod_count_text(len(going))}; complete and fail are learned from pods that "
            "ended, and are too short if the others run longer"
        )
    if crashed:
        count = sum(len(each.crashes()) for each in crashed)
        yield (
            f"containers of {pod_count_text(len(crashed))} crashed and were started again, {count:,} times in all: "
            "left out, since a lifecycle lets the containers of every pod do so, and none beside complete or fail"
        )
    killed = sum(each.killed for each in pods)
    if killed:
        yield f"over because of a deletion: {pod_count_text(killed)}, neither completed nor failed"
