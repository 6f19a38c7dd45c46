"""What Stages together make of pods and nodes: pods that never complete, nodes that fall silent.

Every answer errs towards "it may": a selector is run on the pod or node as far as that shows
anything, and what depends on its later life is taken as met. So what is reported is certain.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kwokfleet.documents.problems import FieldPath, Finding, Severity
from kwokfleet.stagelint import jq, schema

GRACE_S = 40.0
"""How long kube-controller-manager waits for a sign of life before a node is Unknown (its default)."""
MANY_NODES = 1_000
"""What one kwok keeps alive without effort."""
SHORTEST_S = 0.001
"""The unit of a Stage's delay: what a heartbeat that does not wait is taken to last."""

_LATER = re.compile(
    r"\.status\b|\.metadata\.(?!labels|annotations|ownerReferences)|\bself\b|^\s*\.\s*(?:\||$)|\.\.|to_entries|\bkeys\b"
    r"|imagePullPolicy|terminationMessage|volumeMounts|protocol|\.resources\b|(?:success|failure)Threshold"
)
"""What a pod template does not tell: it comes with the pod's life, or from the API server's defaults."""
_GIVEN = frozenset({
    "apps.kubernetes.io/pod-index", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name", "controller-revision-hash", "controller-uid", "job-name", "pod-template-generation",
    "pod-template-hash", "statefulset.kubernetes.io/pod-name",
})  # fmt: skip
"""The labels and annotations that controllers put on the pods they make."""
_TRAILING_NAME = re.compile(r"\.(?:name|uid)\s*$")
_SPEC_FIELD = re.compile(r"\.spec\.(\w+)")
_COMPLETED = re.compile(r"\b(?:Succeeded|Failed)\b|phase\W{0,4}\{\{|\{\{.*phase")


def can_complete(stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], owner_kind: str = "") -> bool:
    """Return whether any Stage could complete a pod made from the template *pod*, owned by an *owner_kind*."""
    return any(_may_end(stage) and _may_match(stage, _made_from(pod, owner_kind)) for stage in stages)


def pod_findings(
    stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], where: FieldPath = (), owner_kind: str = ""
) -> list[Finding]:
    """Return what the *stages* of a fleet leave to wish for pods made from the template *pod* at *where*."""
    return [*_never_completes(stages, pod, where, owner_kind), *_command_not_read(stages, pod, where, owner_kind)]


def heartbeat_findings(
    stages: Sequence[Mapping[str, Any]],
    node_count: int,
    *,
    lease: bool,
    where: FieldPath = (),
    grace_s: float = GRACE_S,
) -> list[Finding]:
    """Return whether kwok keeps its nodes Ready with these *stages*, and at what cost."""
    if node_count <= 0:
        return []
    periods = [_period_s(stage) for stage in stages if _is_heartbeat(stage)]
    if not lease and (not periods or min(high for _, high in periods) > grace_s):
        what = f"nodes go Unknown after {grace_s:g} s: no Stage renews their status in time, and leases are off"
        hint = "use the Stages node-heartbeat, or turn leases on"
        return [Finding(where, what, hint, rule="nodes-without-heartbeat")]
    per_s = sum(node_count / max((low + high) / 2, SHORTEST_S) for low, high in periods if high <= grace_s)
    if node_count <= MANY_NODES or not per_s:
        return []
    what = f"{node_count} nodes patch their status {per_s:.0f} times per second to stay Ready"
    hint = "use the Stages node-heartbeat-with-lease" + ("" if lease else ", and turn leases on")
    return [Finding(where, what, hint, Severity.WARNING, "heartbeat-load")]


def _never_completes(
    stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], where: FieldPath, owner_kind: str
) -> Iterator[Finding]:
    if owner_kind == "Job" and not can_complete(stages, pod, owner_kind):
        what = "no Stage completes these pods: the Job would run for ever"
        hint = "use the Stages pod-fast, pod-general or job, or labels that one of your Stages selects"
        yield Finding(where, what, hint, rule="workload-never-completes")


def _command_not_read(
    stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], where: FieldPath, owner_kind: str
) -> Iterator[Finding]:
    """Find the pod that says `command: [sleep, "10"]` to a Stage that reads `args`."""
    containers = schema.maps(pod, "spec", "containers")
    if not containers or not containers[0][1].get("command") or containers[0][1].get("args"):
        return
    for stage in stages:
        if schema.kind(stage) == "Pod" and _reads_only_args(stage) and _may_match(stage, _made_from(pod, owner_kind)):
            name = schema.text(stage, "metadata", "name")
            what = f"the Stage {name!r} reads args, and this container gives its program as command"
            place = (*where, "spec", "containers", containers[0][0], "command")
            yield Finding(place, what, "write args instead of command", Severity.WARNING, "workload-command-not-read")
            return


def _reads_only_args(stage: Mapping[str, Any]) -> bool:
    written = _written(stage)
    return any(jq.reads(text, "args") for text in written) and not any(jq.reads(text, "command") for text in written)


def _written(stage: Mapping[str, Any]) -> list[str]:
    """Return every expression of a Stage."""
    found = [
        schema.text(schema.get(stage, "spec", *place), *field)
        for place in (("delay", "durationFrom"), ("delay", "jitterDurationFrom"), ("weightFrom",))
        for field in (("jq", "expression"), ("cel", "expression"), ("expressionFrom",))
    ]
    for _, language, content in schema.requirements(stage):
        found.append(schema.text(content, "key" if language == "jq" else "expression"))
    return [text for text in found if text]


def _made_from(pod: Mapping[str, Any], owner_kind: str) -> dict[str, Any]:
    """Return the pod that a controller makes from a template, as far as that is known before."""
    metadata: dict[str, Any] = {name: dict(schema.mapping(pod, "metadata", name)) for name in ("labels", "annotations")}
    if owner_kind:
        version = {"Job": "batch/v1", "ReplicationController": "v1"}.get(owner_kind, "apps/v1")
        owner = {"apiVersion": version, "kind": owner_kind, "name": "?", "uid": "?"}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    # The API server's own default, which selectors may ask for.
    spec = {"restartPolicy": "Always", **schema.mapping(pod, "spec")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _may_end(stage: Mapping[str, Any]) -> bool:
    """Return whether a Stage may end a pod that nobody has asked to go."""
    if schema.kind(stage) != "Pod" or _needs_deletion(stage):
        return False
    return any(
        action.operation == "delete"
        or (
            action.operation in ("patch", "apply")
            and _COMPLETED.search(schema.text(action.content, "template")) is not None
        )
        for action in schema.actions(stage)
    )


def _needs_deletion(stage: Mapping[str, Any]) -> bool:
    return any(
        language == "jq"
        and schema.text(content, "key").strip() == ".metadata.deletionTimestamp"
        and schema.text(content, "operator") in ("Exists", "In")
        for _, language, content in schema.requirements(stage)
    )


def _may_match(stage: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Return whether a Stage may match an object, now or later in its life."""
    if schema.get(stage, "spec", "selector") is None:
        return False
    for field, of in (("matchLabels", "labels"), ("matchAnnotations", "annotations")):
        wanted = schema.mapping(stage, "spec", "selector", field)
        given = schema.mapping(made, "metadata", of)
        if any(given.get(name) != value and name not in _GIVEN for name, value in wanted.items()):
            return False
    return not any(
        language == "jq" and _surely_unmet(content, made) for _, language, content in schema.requirements(stage)
    )


def _surely_unmet(content: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    key, operator = schema.text(content, "key"), schema.text(content, "operator")
    if "status" not in made and (_depends_on_later(key, made) or _asks_which_owner(key, operator)):
        return False
    return jq.matches(key, operator, schema.texts(content, "values"), made) is False


def _asks_which_owner(key: str, operator: str) -> bool:
    """Return whether a requirement needs the owner's name or uid, which it gets only when it is made."""
    if "ownerReferences" not in key:
        return False
    if operator in ("Exists", "DoesNotExist"):
        key = _TRAILING_NAME.sub("", key)
    return jq.reads(key, "name") or jq.reads(key, "uid")


def _depends_on_later(key: str, made: Mapping[str, Any]) -> bool:
    absent = any(name not in made["spec"] for name in _SPEC_FIELD.findall(key))
    return absent or _LATER.search(key) is not None or any(name in key for name in _GIVEN)


def _is_heartbeat(stage: Mapping[str, Any]) -> bool:
    """Return whether a Stage renews the conditions of any node that is well."""
    well = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"labels": {}, "annotations": {}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return (
        schema.kind(stage) == "Node"
        and any("lastHeartbeatTime" in schema.text(each.content, "template") for each in schema.actions(stage))
        and _may_match(stage, well)
    )


def _period_s(stage: Mapping[str, Any]) -> tuple[float, float]:
    """Return the shortest and longest delay of a Stage in seconds."""
    low = (schema.number(stage, "spec", "delay", "durationMilliseconds") or 0) / 1000
    jitter = schema.number(stage, "spec", "delay", "jitterDurationMilliseconds")
    high = low if jitter is None else jitter / 1000
    return min(low, high), high
