"""Learns a Lifecycle from the states of real pods.

A step of a Lifecycle lies between two moments of a pod. A moment has up to two times: when the watch received it,
exact to hundredths of a second, but only for changes during the watch; and the timestamp in the pod, in whole
seconds, for nearly everything. Each step uses one of the two clocks.

A fake pod is Ready as soon as it starts; a real one when its probes succeed. So `ready` ends, and `complete` starts,
when the real pod is Ready.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kwokfleet.kube.objects import Manifest
from kwokfleet.learn import fitting, pod_history
from kwokfleet.learn.pod_history import PodHistory
from kwokfleet.measure.result import Clock

GRID_S = {Clock.API: 1.0, Clock.WATCH: 0.05}
"""Resolution of each clock; watch events arrive up to some hundredths of a second late."""
_CRASHING_SHARE = 0.5
"""Share of crashing pods from which the Lifecycle restarts containers: it applies to all pods."""


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """The fitted duration of a step."""

    fit: fitting.Fit
    clock: Clock
    backwards: int
    """Number of negative durations, from differing clocks; they count as 0."""


@dataclass(frozen=True, slots=True)
class FailureStats:
    """Failures of pods, or crashes of containers."""

    count: int
    of: int
    reason: str
    exit_code: int
    others: Mapping[str, int]
    """Counts of other reasons."""


@dataclass(frozen=True, slots=True)
class LearnedLifecycle:
    """The learned steps and failures."""

    pods: int
    steps: Mapping[str, LearnedStep]
    """`create`, `init`, `ready`, `complete`, `fail`, `every`, `backoff`, `delete`, if there are samples."""
    fails: FailureStats | None
    crashes: FailureStats | None
    jobs: bool
    """Whether all pods that completed belong to Jobs."""
    since: float | None
    until: float | None
    notes: tuple[str, ...]
    """Observations that the Lifecycle cannot express, and doubts."""


class LifecycleLearner:
    """Collects states of pods and fits a Lifecycle. Not thread-safe."""

    def __init__(self) -> None:
        self._histories: dict[str, PodHistory] = {}
        self._finished: set[str] = set()

    def observe(self, event_type: str, pod: Manifest, received: float | None = None) -> None:
        """Add a state; *event_type* DELETED is the last one; *received* in seconds since 1970, if known.

        Raises ValueError if it is not a pod.
        """
        try:
            metadata = pod["metadata"]
            name = str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}")
            state = pod_history.parse_state(pod, gone=event_type == "DELETED")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a valid pod ({type(error).__name__}: {error})") from None
        history = self._histories.setdefault(name, PodHistory())
        history.add(state, received)
        if history.is_finished:
            self._finished.add(name)

    @property
    def pods(self) -> int:
        """Number of pods."""
        return len(self._histories)

    @property
    def finished(self) -> int:
        """Number of pods without further steps: completed, failed, deleted, or Ready and long-running."""
        return len(self._finished)

    def result(self) -> LearnedLifecycle:
        """Return the Lifecycle of all pods."""
        return _learn(list(self._histories.values()))


StepTimes = Callable[[PodHistory, Mapping[str, float]], tuple[float | None, float | None]]
"""Returns the start and end of a pod's step, by one clock."""


def _learn(pods: Sequence[PodHistory]) -> LearnedLifecycle:
    over = [pod for pod in pods if pod.is_over]
    failed = [pod for pod in over if pod.phase == "Failed"]
    succeeded = [pod for pod in over if pod.phase == "Succeeded"]
    started = [pod for pod in pods if {"started", "ready", "over"} & pod.known]
    crashing = [pod for pod in started if pod.crashes()]
    restarts = not over and len(crashing) >= _CRASHING_SHARE * len(started) > 0
    crashes = [(pod, crash) for pod in crashing for crash in pod.crashes()] if restarts else []
    steps = {
        "create": _step(pods, _between("bound", "creating")),
        "init": _step([pod for pod in pods if pod.has_init], _between("creating", "initialized")),
        "ready": _step(pods, _ready),
        "complete": _step(succeeded, _running),
        "fail": _step(failed, _running),
        "every": _fitted([(crash.started, crash.ended) for _, crash in crashes], Clock.API),
        "backoff": _fitted(_pairs((crash.ended, pod.restarted_at(crash)) for pod, crash in crashes), Clock.API),
        "delete": _step(_deleted(pods), _between("deleting", "gone")),
    }
    timestamps = [at for pod in pods for at in pod.api.values()]
    return LearnedLifecycle(
        pods=len(pods),
        steps={name: step for name, step in steps.items() if step is not None},
        fails=_failure_stats([pod.failure for pod in failed], len(over) if succeeded else len(started)),
        crashes=_failure_stats([(crash.reason, crash.exit_code) for _, crash in crashes], len(started)),
        jobs=bool(succeeded) and all(pod.is_job for pod in succeeded),
        since=min(timestamps, default=None),
        until=max(timestamps, default=None),
        notes=tuple(_notes(pods, over, [] if restarts else crashing)),
    )


def _between(start: str, end: str) -> StepTimes:
    return lambda _history, times: (times.get(start), times.get(end))


def _ready(history: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return times.get("initialized" if history.has_init else "creating"), history.ready_time(times)


def _running(history: PodHistory, times: Mapping[str, float]) -> tuple[float | None, float | None]:
    return history.ready_time(times), times.get("over")


def _deleted(pods: Sequence[PodHistory]) -> Sequence[PodHistory]:
    """Return the deleted pods; only running ones, if there are any: others have no container to stop."""
    gone = [pod for pod in pods if "gone" in pod.known]
    return [pod for pod in gone if not pod.is_over] or gone


def _step(pods: Sequence[PodHistory], step: StepTimes) -> LearnedStep | None:
    """Fit a step, by the watch clock if it has enough samples, or as many as the API clock."""
    watched = _pairs(step(pod, pod.seen) for pod in pods)
    written = _pairs(step(pod, pod.api) for pod in pods)
    exact = watched and (len(watched) >= fitting.MIN_SAMPLES or len(watched) >= len(written))
    return _fitted(watched, Clock.WATCH) if exact else _fitted(written, Clock.API)


def _pairs(times: Iterable[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(start, end) for start, end in times if start is not None and end is not None]


def _fitted(pairs: Sequence[tuple[float, float]], clock: Clock) -> LearnedStep | None:
    if not pairs:
        return None
    backwards = sum(end < start for start, end in pairs)
    return LearnedStep(fitting.fit(fitting.make_sample(pairs, GRID_S[clock])), clock, backwards)


def _failure_stats(failures: Sequence[tuple[str, int]], of: int) -> FailureStats | None:
    if not failures:
        return None
    (reason, exit_code), _ = min(Counter(failures).items(), key=lambda pair: (-pair[1], pair[0]))
    others = Counter(f"{other} ({code})" for other, code in failures if (other, code) != (reason, exit_code))
    return FailureStats(len(failures), of, reason, exit_code, others)


# ----------------------------------------------------------------------------------------
# notes


def pod_count_text(number: int) -> str:
    """Return `1 pod` or `2 pods`."""
    return f"{number:,} pod{'' if number == 1 else 's'}"


def _notes(pods: Sequence[PodHistory], over: Sequence[PodHistory], crashed: Sequence[PodHistory]) -> Iterable[str]:
    unbound = sum("bound" not in pod.known for pod in pods)
    if unbound:
        yield f"{unbound:,} of {pod_count_text(len(pods))} had no node; their later steps are unknown"
    running = [pod for pod in pods if not pod.known & {"over", "deleting", "gone"} and "ready" in pod.known]
    if over and running:
        yield (
            f"still running at the end: {pod_count_text(len(running))}; complete and fail are learned from pods that "
            "ended, and are too short if the others run longer"
        )
    if crashed:
        count = sum(len(pod.crashes()) for pod in crashed)
        yield (
            f"containers of {pod_count_text(len(crashed))} crashed and restarted, {count:,} times in total; not in the "
            "lifecycle, because restart applies to every pod and excludes complete and fail"
        )
    killed = sum(pod.killed for pod in pods)
    if killed:
        yield f"ended by deletion: {pod_count_text(killed)}; counted neither as completed nor as failed"
