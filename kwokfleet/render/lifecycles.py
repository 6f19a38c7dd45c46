"""Compiles Lifecycles to kwok Stages.

A Lifecycle declares delays and probabilities. The patches come from the library in stages/, so pods of a Lifecycle
have the same statuses as pods of pod-general. Name, selector (the Lifecycle label), delay and weight are replaced.

kwok loses a pending delay when it restarts or when the object changes. Delays from ten seconds are therefore absolute:
they count from a timestamp in the status. Shorter delays of pods stay relative, because timestamps are whole seconds.
All delays of nodes are absolute, because the controller manager changes nodes often.
"""

from collections.abc import Mapping
from datetime import timedelta

from kwokfleet.api import delay as delays
from kwokfleet.api import lifecycle as lifecycle_api
from kwokfleet.api import units
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import distributions
from kwokfleet.render.distributions import Distribution
from kwokfleet.render.seeded_random import SeededRandom

Library = Mapping[str, Manifest]
"""Library Stages by name."""
STAGE_SETS = (
    "node-chaos", "node-fast", "node-heartbeat", "node-heartbeat-with-lease", "pod-chaos", "pod-general", "pod-recover",
)  # fmt: skip
"""Library sets that Lifecycles are compiled from."""

TOTAL_WEIGHT = 10_000
"""Sum of the weights of alternative Stages."""
ABSOLUTE_FROM = timedelta(seconds=10)
HEARTBEAT_WITH_LEASE = timedelta(seconds=605)
HEARTBEAT_WITHOUT_LEASE = timedelta(seconds=22.5)
SPARED_ANNOTATION = f"{objects.PREFIX}/spared"
"""Annotation of a pod that was chosen not to fail."""

_ANNOTATIONS = "or .metadata.annotations dict"
"""Expression from which the library's templates read reason, message and exit code."""
_STARTED = "[.status.containerStatuses[].state.running.startedAt // empty] | max"
_CREATED = 'first(.status.conditions[]? | select(.type == "Initialized") | .lastTransitionTime) // .status.startTime'
_CRASHED = "[.status.containerStatuses[].lastState.terminated.finishedAt // empty] | max"
_BORN = ".metadata.creationTimestamp"
_READY = '.status.conditions[] | select(.type == "Ready")'
_FAILED = f'select(.status.phase == "Running") | {_READY} | select(.status == "False") | .reason'
"""Reason of a node that was Ready and failed. A booting node has the same reason, but another phase."""

_LEFT = (
    "def left($s): (now - fromdate) as $age "
    '| "\\(($s - (if $age < 1.25 then 0 else $age - 0.5 end)) * 1000 | round | . / 1000)s";'
)
"""Remaining part of $s seconds since a timestamp of whole seconds; a recent timestamp counts as now.

Rounded, because Go cannot parse 1e-07s.
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
"""Whether a container of a pod sleeps forever."""


def label(fleet: str, lifecycle: str) -> str:
    """Return the value of the label that scopes a Lifecycle's Stages."""
    return f"{fleet}.{lifecycle}"


def delay_annotation(part: str) -> str:
    """Return the annotation with the drawn delay of one object."""
    return f"{objects.PREFIX}/{part}-after"


def stages(fleet: str, lifecycle: lifecycle_api.Lifecycle, library: Library, *, lease: bool) -> list[Manifest]:
    """Return the Stages of a Lifecycle."""
    scope = _Scope(fleet, lifecycle.name, library)
    if lifecycle.pod is not None:
        return _pod_stages(scope, lifecycle.pod)
    if lifecycle.node is not None:
        return _node_stages(scope, lifecycle.node, lease=lease)
    return []


def drawn_delays(lifecycle: lifecycle_api.Lifecycle) -> dict[str, Distribution]:
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
    drawn = {part: distributions.from_model(delay) for part, delay in parts.items() if delay}
    return {part: distribution for part, distribution in drawn.items() if distribution}


def draw_delay(distribution: Distribution, random: SeededRandom, index: int) -> str:
    """Return the delay of one object, as kwok parses it."""
    return f"{max(0.0, random.draw(index, distribution)):.3f}s"


def starts_not_ready(lifecycle: lifecycle_api.Lifecycle | None) -> bool:
    """Return whether nodes with this Lifecycle are created not Ready."""
    return lifecycle is not None and lifecycle.node is not None and lifecycle.node.boot is not None


# pods


def _pod_stages(scope: "_Scope", pod: lifecycle_api.PodLifecycle) -> list[Manifest]:
    stages = [
        scope.stage("create", "pod-general-create", _delay(pod.create, "create", None)),
        scope.stage("init-running", "pod-general-init-running", {"durationMilliseconds": 0}),
        scope.stage("init-completed", "pod-general-init-completed", _delay(pod.init, "init", None)),
        scope.stage("ready", "pod-general-ready", _delay(pod.ready, "ready", _CREATED)),
        *_endings(scope, pod),
        *_restarts(scope, pod.restart),
        scope.stage("recover", "pod-recover-ready", None, weight=100 * TOTAL_WEIGHT),
        scope.stage("delete", "pod-general-delete", _delay(pod.delete, "delete", None)),
    ]
    return [stage for stage in stages if stage["spec"].get("weight") != 0]


def _endings(scope: "_Scope", pod: lifecycle_api.PodLifecycle) -> list[Manifest]:
    """Return the Stages that complete or fail a pod: both match, and kwok chooses by weight."""
    stages: list[Manifest] = []
    failing = _weight(pod.fail.probability) if pod.fail else 0
    any_owner = pod.complete is None or pod.complete.when == "always"
    if pod.complete is not None:
        delay = _delay(pod.complete.after, "complete", _STARTED)
        stages.append(
            scope.stage("complete", "pod-general-complete", delay, weight=TOTAL_WEIGHT - failing, any_owner=any_owner)
        )
        if pod.complete.after.args:
            stages[-1]["spec"]["selector"]["matchExpressions"].append(_jq(_SLEEPS_ON, "NotIn", ["true"]))
    if pod.fail is None or not failing:
        return stages
    after = pod.fail.after or (pod.complete.after if pod.complete else delays.fixed_delay("0s"))
    part = "fail" if pod.fail.after else "complete"
    failure = {
        "reason": pod.fail.reason,
        "exit-code": str(pod.fail.exit_code),
        "message": pod.fail.message or pod.fail.reason,
    }
    delay = _delay(after, part, _STARTED)
    failed = scope.stage("fail", "pod-chaos-container-failed", delay, weight=failing, failure=failure)
    if not any_owner:
        complete = scope.library["pod-general-complete"]["spec"]["selector"]["matchExpressions"]
        failed["spec"]["selector"]["matchExpressions"] += [
            entry for entry in complete if "ownerReferences" in _key(entry)
        ]
    stages.append(failed)
    if pod.complete is None and failing < TOTAL_WEIGHT:
        is_spared = f'.metadata.annotations["{SPARED_ANNOTATION}"]'
        failed["spec"]["selector"]["matchExpressions"].append({"jq": {"key": is_spared, "operator": "DoesNotExist"}})
        stages.append(_spare(scope, failed, TOTAL_WEIGHT - failing))
    return stages


def _weight(probability: float) -> int:
    """Return a probability as a weight; a small one is at least 1."""
    return max(1, round(probability * TOTAL_WEIGHT)) if probability > 0 else 0


def _spare(scope: "_Scope", failed: Manifest, weight: int) -> Manifest:
    """Return the Stage for pods that do not fail: kwok cannot choose to do nothing.

    It has the delay of the failure. With a shorter one, a change of the pod would repeat the choice only for pods
    that are to fail.
    """
    patch = {"root": "metadata", "template": f'annotations:\n  {SPARED_ANNOTATION}: "true"\n', "type": "merge"}
    spec = {**failed["spec"], "weight": weight, "steps": [{"patch": patch}]}
    return {**failed, "metadata": scope.metadata("spare"), "spec": spec}


def _restarts(scope: "_Scope", restart: lifecycle_api.Restart | None) -> list[Manifest]:
    if restart is None:
        return []
    failure = {"reason": restart.reason, "exit-code": str(restart.exit_code), "message": restart.reason}
    return [
        scope.stage("crash", "pod-chaos-crash", _delay(restart.every, "crash", _STARTED), failure=failure),
        scope.stage("restart", "pod-chaos-restart", _delay(restart.backoff, "restart", _CRASHED)),
    ]


# nodes


def _node_stages(scope: "_Scope", node: lifecycle_api.NodeLifecycle, *, lease: bool) -> list[Manifest]:
    boot = _delay(node.boot, "boot", _BORN, absolute_from=units.ZERO) if node.boot else None
    beat = "node-heartbeat-with-lease-beat" if lease else "node-heartbeat-beat"
    fails = node.not_ready
    initialize = scope.stage("initialize", "node-fast-initialize", boot)
    if fails is None:
        return [initialize, scope.stage("beat", beat, None)]
    initialize["spec"]["selector"]["matchExpressions"].append(_jq(_FAILED, "NotIn", [fails.reason]))
    period = HEARTBEAT_WITH_LEASE if lease else HEARTBEAT_WITHOUT_LEASE
    weight, delay = _failing(fails.every, period)
    failure = {"reason": fails.reason, "message": fails.message}
    fail = scope.stage("fail", "node-chaos-not-ready", delay, weight=weight, failure=failure)
    fail["spec"]["selector"]["matchExpressions"] = [_jq(f"{_READY} | .status", "In", ["True"])]
    away = _delay(fails.for_, "recover", f"{_READY} | .lastTransitionTime", absolute_from=units.ZERO)
    recover = scope.stage("recover", "node-fast-initialize", away)
    recover["spec"]["selector"]["matchExpressions"].append(_jq(_FAILED, "In", [fails.reason]))
    beats = [] if weight == TOTAL_WEIGHT else [scope.stage("beat", beat, None, weight=TOTAL_WEIGHT - weight)]
    return [initialize, *beats, fail, recover]


def _failing(every: timedelta, period: timedelta) -> tuple[int, Manifest]:
    """Return the weight and delay of a failure once in *every*, on average.

    At each heartbeat kwok chooses between the next heartbeat and a failure, so failures are memoryless, like
    real ones. Failures that are more frequent than heartbeats replace them.
    """
    if every <= period:
        low, high = every / 2, every * 3 / 2
        return TOTAL_WEIGHT, {"durationMilliseconds": _ms(low), "jitterDurationMilliseconds": _ms(high)}
    weight = max(1, round(TOTAL_WEIGHT * (period / (every + period / 2))))
    return weight, {"durationMilliseconds": 0, "jitterDurationMilliseconds": _ms(period)}


# Stages


class _Scope:
    """Creates Stages for the objects of one Lifecycle."""

    def __init__(self, fleet: str, lifecycle: str, library: Library) -> None:
        self.fleet, self.lifecycle, self.library = fleet, lifecycle, library

    def metadata(self, part: str) -> Manifest:
        return {
            "name": f"{self.fleet}-{self.lifecycle}-{part}",
            "labels": {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: self.fleet},
        }

    def stage(  # noqa: PLR0913  # the parts of a Stage
        self,
        part: str,
        source: str,
        delay: Manifest | None,
        *,
        weight: int = 1,
        any_owner: bool = False,
        failure: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Return the library Stage *source* for this Lifecycle; *delay* None keeps its delay."""
        spec = {key: value for key, value in self.library[source]["spec"].items() if key != "weightFrom"}
        dropped = (objects.LIFECYCLE, "ownerReferences") if any_owner else (objects.LIFECYCLE,)
        entries = spec["selector"].get("matchExpressions", ())
        spec["selector"] = {
            "matchLabels": {objects.LIFECYCLE: label(self.fleet, self.lifecycle)},
            "matchExpressions": [entry for entry in entries if not any(key in _key(entry) for key in dropped)],
        }
        spec["weight"] = weight
        if delay is not None:
            spec["delay"] = delay
        if failure:
            spec["steps"] = [_with_failure(step, failure) for step in spec["steps"]]
        return {"apiVersion": objects.STAGE_API_VERSION, "kind": "Stage", "metadata": self.metadata(part), "spec": spec}


def _with_failure(step: Manifest, failure: Mapping[str, str]) -> Manifest:
    """Return a step whose template reads *failure* instead of the object's annotations."""
    patch = step.get("patch")
    if not patch or _ANNOTATIONS not in patch["template"]:
        return step
    keys = {line.split('"')[1] for line in patch["template"].splitlines() if "index $annotations" in line}
    prefix = min(keys).rpartition("/")[0]
    pairs = " ".join(f"{_quoted(f'{prefix}/{name}')} {_quoted(text)}" for name, text in sorted(failure.items()))
    return {**step, "patch": {**patch, "template": patch["template"].replace(_ANNOTATIONS, f"dict {pairs}")}}


def _quoted(text: str) -> str:
    """Return *text* as a Go template string, escaped so that it cannot end the string or open an action."""
    escaped = "".join(char if char.isalnum() or char in " -_./" else f"\\U{ord(char):08x}" for char in text)
    return f'"{escaped}"'


def _key(entry: Manifest) -> str:
    return str(entry.get("jq", {}).get("key", ""))


def _jq(key: str, operator: str, values: list[str]) -> Manifest:
    return {"jq": {"key": key, "operator": operator, "values": values}}


def _ms(value: timedelta) -> int:
    return round(value / timedelta(milliseconds=1))


def _delay(delay: delays.Delay, part: str, since: str | None, absolute_from: timedelta = ABSOLUTE_FROM) -> Manifest:
    """Return a Stage's delay; *since* is the jq expression of its start time, if the status has one."""
    if delay.span is not None:
        return _span_delay(delay.span, since if delay.span.low >= absolute_from else None)
    fallback = {"durationMilliseconds": _ms(_typical(delay))}
    if delay.args:
        return {**fallback, "durationFrom": _from(f"({_SLEEPS}) as $s", since, _SECONDS)}
    key = delay.annotation or delay_annotation(part)
    given = f'(.metadata.annotations["{key}"] | select(. != null and . != "")) as $given'
    if since is None:
        return {**fallback, "durationFrom": _expression(f"{given} | $given")}
    is_instant = '$given | test("^[0-9]{4}-[0-9]{2}-[0-9]{2}T")'  # fromdate cannot parse fractions of seconds
    remaining = f"($given | seconds) as $s | ({since}) | left($s)"
    lines = [_LEFT, _SECONDS, given, f"| if ({is_instant}) then $given else {remaining} end"]
    return {**fallback, "durationFrom": _expression(*lines)}


def _span_delay(span: units.Span, since: str | None) -> Manifest:
    delay: Manifest = {"durationMilliseconds": _ms(span.low)}
    if not span.fixed:
        delay["jitterDurationMilliseconds"] = _ms(span.high)
    if since is not None:
        delay["durationFrom"] = _from(f"{span.low.total_seconds():.10g} as $s", since)
        if not span.fixed:
            delay["jitterDurationFrom"] = _from(f"{span.high.total_seconds():.10g} as $s", since)
    return delay


def _from(bind: str, since: str | None, *definitions: str) -> Manifest:
    if since:
        return _expression(_LEFT, *definitions, f"{bind} | ({since}) | left($s)")
    return _expression(*definitions, f'{bind} | "\\($s)s"')


def _expression(*lines: str) -> Manifest:
    return {"jq": {"expression": "\n".join(lines) + "\n" if len(lines) > 1 else lines[0]}}


def _typical(delay: delays.Delay) -> timedelta:
    """Return the delay of an object without a drawn or annotated one."""
    if delay.exponential is not None:
        return delay.exponential.mean
    if delay.normal is not None:
        return delay.normal.mean
    return delay.lognormal.median if delay.lognormal is not None else units.ZERO
