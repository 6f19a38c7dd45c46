"""Lifecycles into kwok Stages: the short form says how long and how likely, the library says how.

The patches come from the library in stages/, so a pod driven by a Lifecycle goes through the same
statuses as one driven by pod-general. What is replaced: the name, whom it acts on (the label that
pools and Waves put on their objects), the delay and the weight.

kwok forgets a pending delay when it restarts or when the object changes. Delays of ten seconds and
more are therefore reckoned from a time that the status keeps; shorter ones of pods are left
relative, since those times are whole seconds. Nodes are changed by the controller manager whenever
they come or go, so their delays are all reckoned.
"""

from collections.abc import Mapping
from datetime import timedelta

from kwokfleet.api import delay as delays
from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import units
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import distributions
from kwokfleet.render.distributions import Distribution
from kwokfleet.render.seeded_random import SeededRandom

Library = Mapping[str, Manifest]
"""The library's Stages by their names."""
STAGE_SETS = (
    "node-chaos",
    "node-fast",
    "node-heartbeat",
    "node-heartbeat-with-lease",
    "pod-chaos",
    "pod-general",
    "pod-recover",
)
"""The sets of the library whose Stages Lifecycles are made of."""

TOTAL_WEIGHT = 10_000
"""The weights of Stages between which a die decides add up to this."""
ABSOLUTE_FROM = timedelta(seconds=10)
HEARTBEAT_WITH_LEASE = timedelta(seconds=605)
HEARTBEAT_WITHOUT_LEASE = timedelta(seconds=22.5)
SPARED_ANNOTATION = f"{objects.PREFIX}/spared"
"""The annotation of a pod for which the die said that it does not fail."""

_ANNOTATIONS = "or .metadata.annotations dict"
"""What the library's templates read their reason, message and exit code from."""
_STARTED = "[.status.containerStatuses[].state.running.startedAt // empty] | max"
_CREATED = 'first(.status.conditions[]? | select(.type == "Initialized") | .lastTransitionTime) // .status.startTime'
_CRASHED = "[.status.containerStatuses[].lastState.terminated.finishedAt // empty] | max"
_BORN = ".metadata.creationTimestamp"
_READY = '.status.conditions[] | select(.type == "Ready")'
_FAILED = f'select(.status.phase == "Running") | {_READY} | select(.status == "False") | .reason'
"""Why a node is away that has been Ready; one that boots gives the same reason, but has yet to run."""

_LEFT = (
    "def left($s): (now - fromdate) as $age "
    '| "\\(($s - (if $age < 1.25 then 0 else $age - 0.5 end)) * 1000 | round | . / 1000)s";'
)
"""What is left of so many seconds since a time of whole seconds; one that is fresh is taken as now.

Rounded, since Go reads no 1e-07s.
"""
_SECONDS = (
    'def seconds: [scan("([0-9.]+)(ms|[smhd])?") '
    '| (.[0] | tonumber) * {ms: 0.001, s: 1, m: 60, h: 3600, d: 86400}[.[1] // "s"]] | add // 0;'
)
_SLEEPS = (
    '[.spec.containers[] | [.command[]?, .args[]?] | join(" ") '
    '| capture("(^|[^[:alnum:]])sleep +(?<t>([0-9.]+(ms|[smhd])?)+)").t | seconds] | max // 0'
)

_SLEEPS_ON = '.spec.containers[] | [.command[]?, .args[]?] | join(" ") | test("(^|[^[:alnum:]])sleep +inf")'
"""Whether a container of a pod sleeps for ever."""


def label(fleet: str, lifecycle: str) -> str:
    """Return the value of the label that scopes a Lifecycle's Stages."""
    return f"{fleet}.{lifecycle}"


def delay_annotation(part: str) -> str:
    """Return the annotation that carries a duration drawn for one object."""
    return f"{objects.PREFIX}/{part}-after"


def stages(fleet: str, lifecycle: fleet_api.Lifecycle, library: Library, *, lease: bool) -> list[Manifest]:
    """Return the Stages that a Lifecycle stands for."""
    scope = _Scope(fleet, lifecycle.name, library)
    if lifecycle.pod is not None:
        return _pod_stages(scope, lifecycle.pod)
    if lifecycle.node is not None:
        return _node_stages(scope, lifecycle.node, lease=lease)
    return []


def drawn_delays(lifecycle: fleet_api.Lifecycle) -> dict[str, Distribution]:
    """Return the delays of a Lifecycle that are drawn for each object, by part."""
    parts: dict[str, delays.Delay | None] = {}
    if lifecycle.pod is not None:
        pod = lifecycle.pod
        parts = {"create": pod.create, "init": pod.init, "ready": pod.ready, "delete": pod.delete}
        parts["complete"] = pod.complete.after if pod.complete else None
        parts["fail"] = pod.fail.after if pod.fail else None
        parts["crash"] = pod.restart.every if pod.restart else None
        parts["restart"] = pod.restart.backoff if pod.restart else None
    if lifecycle.node is not None:
        parts["boot"] = lifecycle.node.boot
        parts["recover"] = lifecycle.node.not_ready.for_ if lifecycle.node.not_ready else None
    drawn = {part: distributions.of_delay(delay) for part, delay in parts.items() if delay}
    return {part: distribution for part, distribution in drawn.items() if distribution}


def draw_delay(distribution: Distribution, random: SeededRandom, index: int) -> str:
    """Return the delay of one object, as kwok parses it."""
    return f"{max(0.0, random.draw(index, distribution)):.3f}s"


def starts_not_ready(lifecycle: fleet_api.Lifecycle | None) -> bool:
    """Return whether nodes with this Lifecycle are born not ready."""
    return lifecycle is not None and lifecycle.node is not None and lifecycle.node.boot is not None


# ----------------------------------------------------------------------------------------
# pods


def _pod_stages(scope: "_Scope", pod: fleet_api.PodLifecycle) -> list[Manifest]:
    made = [
        scope.stage("create", "pod-general-create", _delay(pod.create, "create", None)),
        scope.stage("init-running", "pod-general-init-running", {"durationMilliseconds": 0}),
        scope.stage("init-completed", "pod-general-init-completed", _delay(pod.init, "init", None)),
        scope.stage("ready", "pod-general-ready", _delay(pod.ready, "ready", _CREATED)),
        *_endings(scope, pod),
        *_restarts(scope, pod.restart),
        scope.stage("recover", "pod-recover-ready", None, weight=100 * TOTAL_WEIGHT),
        scope.stage("delete", "pod-general-delete", _delay(pod.delete, "delete", None)),
    ]
    return [stage for stage in made if stage["spec"].get("weight") != 0]


def _endings(scope: "_Scope", pod: fleet_api.PodLifecycle) -> list[Manifest]:
    """Return how a pod completes or fails: two Stages that match at once, and kwok throws the die."""
    made: list[Manifest] = []
    failing = _weight(pod.fail.probability) if pod.fail else 0
    any_owner = pod.complete is None or pod.complete.when == "always"
    if pod.complete is not None:
        delay = _delay(pod.complete.after, "complete", _STARTED)
        made.append(
            scope.stage("complete", "pod-general-complete", delay, weight=TOTAL_WEIGHT - failing, any_owner=any_owner)
        )
        if pod.complete.after.args:
            made[-1]["spec"]["selector"]["matchExpressions"].append(_jq(_SLEEPS_ON, "NotIn", ["true"]))
    if pod.fail is None or not failing:
        return made
    after = pod.fail.after or (pod.complete.after if pod.complete else delays.fixed_delay("0s"))
    part = "fail" if pod.fail.after else "complete"
    said = {
        "reason": pod.fail.reason,
        "exit-code": str(pod.fail.exit_code),
        "message": pod.fail.message or pod.fail.reason,
    }
    failed = scope.stage("fail", "pod-chaos-container-failed", _delay(after, part, _STARTED), weight=failing, said=said)
    if not any_owner:
        failed["spec"]["selector"]["matchExpressions"] += _owner_requirements(scope.library["pod-general-complete"])
    made.append(failed)
    if pod.complete is None and failing < TOTAL_WEIGHT:
        failed["spec"]["selector"]["matchExpressions"].append(_absent(f'.metadata.annotations["{SPARED_ANNOTATION}"]'))
        made.append(_spare(scope, failed, TOTAL_WEIGHT - failing))
    return made


def _weight(probability: float) -> int:
    """Return a probability as a weight; however small, it is not never."""
    return max(1, round(probability * TOTAL_WEIGHT)) if probability > 0 else 0


def _spare(scope: "_Scope", failed: Manifest, weight: int) -> Manifest:
    """Return the Stage that lets a pod live on: kwok has no way to choose that nothing happens.

    It comes when the failure would. Sooner, a change of the pod on the way would throw the die again
    for those that are to fail, but not for those that were spared.
    """
    patch = {"root": "metadata", "template": f'annotations:\n  {SPARED_ANNOTATION}: "true"\n', "type": "merge"}
    spec = {**failed["spec"], "weight": weight, "steps": [{"patch": patch}]}
    return {**failed, "metadata": scope.metadata("spare"), "spec": spec}


def _restarts(scope: "_Scope", restart: fleet_api.Restart | None) -> list[Manifest]:
    if restart is None:
        return []
    said = {"reason": restart.reason, "exit-code": str(restart.exit_code), "message": restart.reason}
    return [
        scope.stage("crash", "pod-chaos-crash", _delay(restart.every, "crash", _STARTED), said=said),
        scope.stage("restart", "pod-chaos-restart", _delay(restart.backoff, "restart", _CRASHED)),
    ]


def _owner_requirements(stage: Manifest) -> list[Manifest]:
    return [entry for entry in stage["spec"]["selector"]["matchExpressions"] if "ownerReferences" in _key(entry)]


# ----------------------------------------------------------------------------------------
# nodes


def _node_stages(scope: "_Scope", node: fleet_api.NodeLifecycle, *, lease: bool) -> list[Manifest]:
    boot = _delay(node.boot, "boot", _BORN, reckon_from=units.ZERO) if node.boot else None
    beat = "node-heartbeat-with-lease-beat" if lease else "node-heartbeat-beat"
    fails = node.not_ready
    initialize = scope.stage("initialize", "node-fast-initialize", boot)
    if fails is None:
        return [initialize, scope.stage("beat", beat, None)]
    initialize["spec"]["selector"]["matchExpressions"].append(_jq(_FAILED, "NotIn", [fails.reason]))
    period = HEARTBEAT_WITH_LEASE if lease else HEARTBEAT_WITHOUT_LEASE
    weight, delay = _failing(fails.every, period)
    said = {"reason": fails.reason, "message": fails.message}
    fail = scope.stage("fail", "node-chaos-not-ready", delay, weight=weight, said=said)
    fail["spec"]["selector"]["matchExpressions"] = [_ready("In", "True")]
    away = _delay(fails.for_, "recover", f"{_READY} | .lastTransitionTime", reckon_from=units.ZERO)
    recover = scope.stage("recover", "node-fast-initialize", away)
    recover["spec"]["selector"]["matchExpressions"].append(_jq(_FAILED, "In", [fails.reason]))
    beats = [] if weight == TOTAL_WEIGHT else [scope.stage("beat", beat, None, weight=TOTAL_WEIGHT - weight)]
    return [initialize, *beats, fail, recover]


def _failing(every: timedelta, period: timedelta) -> tuple[int, Manifest]:
    """Return the weight and delay with which a node fails once in *every*, on average.

    With each heartbeat kwok throws the die between the next heartbeat and a failure, so failures
    come without memory, as real ones do. What is due more often than heartbeats replaces them.
    """
    if every <= period:
        low, high = every / 2, every * 3 / 2
        return TOTAL_WEIGHT, {"durationMilliseconds": _ms(low), "jitterDurationMilliseconds": _ms(high)}
    weight = max(1, round(TOTAL_WEIGHT * (period / (every + period / 2))))
    return weight, {"durationMilliseconds": 0, "jitterDurationMilliseconds": _ms(period)}


def _ready(operator: str, status: str) -> Manifest:
    return _jq(f"{_READY} | .status", operator, [status])


# ----------------------------------------------------------------------------------------
# Stages


class _Scope:
    """Makes Stages that act on the objects of one Lifecycle only."""

    def __init__(self, fleet: str, lifecycle: str, library: Library) -> None:
        self.fleet, self.lifecycle, self.library = fleet, lifecycle, library

    def metadata(self, part: str) -> Manifest:
        return {
            "name": f"{self.fleet}-{self.lifecycle}-{part}",
            "labels": {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: self.fleet},
        }

    def stage(  # noqa: PLR0913  # what a Stage is made of
        self,
        part: str,
        source: str,
        delay: Manifest | None,
        *,
        weight: int = 1,
        any_owner: bool = False,
        said: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Return the library's Stage *source*, acting for this Lifecycle; without a *delay*, at its own."""
        spec = dict(self.library[source]["spec"])
        entries = [
            entry for entry in spec["selector"].get("matchExpressions", ()) if objects.LIFECYCLE not in _key(entry)
        ]
        if any_owner:
            entries = [entry for entry in entries if "ownerReferences" not in _key(entry)]
        spec["selector"] = {"matchLabels": {objects.LIFECYCLE: label(self.fleet, self.lifecycle)}}
        spec["selector"]["matchExpressions"] = entries
        spec.pop("weightFrom", None)
        spec["weight"] = weight
        if delay is not None:
            spec["delay"] = delay
        if said:
            spec["steps"] = [_saying(step, said) for step in spec["steps"]]
        return {
            "apiVersion": objects.STAGE_API_VERSION,
            "kind": "Stage",
            "metadata": self.metadata(part),
            "spec": spec,
        }


def _saying(step: Manifest, said: Mapping[str, str]) -> Manifest:
    """Return a step whose template finds *said* where it looks for the object's annotations."""
    patch = step.get("patch")
    if not patch or _ANNOTATIONS not in patch["template"]:
        return step
    keys = {line.split('"')[1] for line in patch["template"].splitlines() if "index $annotations" in line}
    prefix = min(keys).rpartition("/")[0]
    pairs = " ".join(f"{_quoted(f'{prefix}/{name}')} {_quoted(text)}" for name, text in sorted(said.items()))
    return {**step, "patch": {**patch, "template": patch["template"].replace(_ANNOTATIONS, f"dict {pairs}")}}


def _quoted(text: str) -> str:
    """Return *text* as a string of Go's templates, with nothing in it that could end it or open an action."""
    escaped = "".join(char if char.isalnum() or char in " -_./" else f"\\U{ord(char):08x}" for char in text)
    return f'"{escaped}"'


def _key(entry: Manifest) -> str:
    return str(entry.get("jq", {}).get("key", ""))


def _jq(key: str, operator: str, values: list[str]) -> Manifest:
    return {"jq": {"key": key, "operator": operator, "values": values}}


def _absent(key: str) -> Manifest:
    return {"jq": {"key": key, "operator": "DoesNotExist"}}


def _ms(value: timedelta) -> int:
    return round(value / timedelta(milliseconds=1))


def _delay(delay: delays.Delay, part: str, since: str | None, reckon_from: timedelta = ABSOLUTE_FROM) -> Manifest:
    """Return a Stage's delay; *since* is the jq path of the time it counts from, if the status keeps one."""
    if delay.span is not None:
        return _span_delay(delay.span, since if delay.span.low >= reckon_from else None)
    fallback = {"durationMilliseconds": _ms(_usual(delay))}
    if delay.args:
        return {**fallback, **_from(f"({_SLEEPS}) as $s", since, seconds=True)}
    key = delay.annotation or delay_annotation(part)
    given = f'(.metadata.annotations["{key}"] | select(. != null and . != "")) as $given'
    if since is None:
        return {**fallback, "durationFrom": _expression(f"{given} | $given")}
    is_instant = '$given | test("^[0-9]{4}-[0-9]{2}-[0-9]{2}T")'  # fromdate knows no parts of seconds
    reckoned = f"($given | seconds) as $s | ({since}) | left($s)"
    lines = [_LEFT, _SECONDS, given, f"| if ({is_instant}) then $given else {reckoned} end"]
    return {**fallback, "durationFrom": _expression(*lines)}


def _span_delay(span: units.Span, since: str | None) -> Manifest:
    made: Manifest = {"durationMilliseconds": _ms(span.low)}
    if not span.fixed:
        made["jitterDurationMilliseconds"] = _ms(span.high)
    if since is not None:
        made |= _from(f"{_number(span.low)} as $s", since)
        if not span.fixed:
            later = _from(f"{_number(span.high)} as $s", since)
            made["jitterDurationFrom"] = later["durationFrom"]
    return made


def _from(bind: str, since: str | None, *, seconds: bool = False) -> Manifest:
    definitions = [_LEFT] if since else []
    if seconds:
        definitions.append(_SECONDS)
    what = f"({since}) | left($s)" if since else '"\\($s)s"'
    return {"durationFrom": _expression(*definitions, f"{bind} | {what}")}


def _expression(*lines: str) -> Manifest:
    return {"jq": {"expression": "\n".join(lines) + "\n" if len(lines) > 1 else lines[0]}}


def _number(value: timedelta) -> str:
    return f"{value.total_seconds():.10g}"


def _usual(delay: delays.Delay) -> timedelta:
    """Return the delay of an object for which none was drawn or told."""
    if delay.exponential is not None:
        return delay.exponential.mean
    if delay.normal is not None:
        return delay.normal.mean
    return delay.lognormal.median if delay.lognormal is not None else units.ZERO
