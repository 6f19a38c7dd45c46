"""Checks a set of Stages: pods that no Stage completes, nodes without heartbeat.

Selectors are evaluated on the pod template or node. Requirements that depend on later state count as met:
every Finding is certain.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.stagelint import jq, schema

GRACE_S = 40.0
"""Default node-monitor-grace-period of kube-controller-manager: later, a node without heartbeat is Unknown."""
MANY_NODES = 1_000
"""Nodes that one kwok keeps Ready by status patches without significant load."""
SHORTEST_S = 0.001
"""Resolution of a Stage delay: assumed period of a heartbeat without delay."""

_LATER = re.compile(
    r"\.status\b|\.metadata\.(?!labels|annotations|ownerReferences)|\bself\b|^\s*\.\s*(?:\||$)|\.\.|to_entries|\bkeys\b"
    r"|imagePullPolicy|terminationMessage|volumeMounts|protocol|\.resources\b|(?:success|failure)Threshold"
)
"""Expressions that a pod template does not decide: later state, or defaults of the API server."""
_CONTROLLER_KEYS = frozenset({
    "apps.kubernetes.io/pod-index", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name", "controller-revision-hash", "controller-uid", "job-name", "pod-template-generation",
    "pod-template-hash", "statefulset.kubernetes.io/pod-name",
})  # fmt: skip
"""Labels and annotations that controllers set on their pods."""
_TRAILING_NAME = re.compile(r"\.(?:name|uid)\s*$")
_SPEC_FIELD = re.compile(r"\.spec\.(\w+)")
_COMPLETED = re.compile(r"\b(?:Succeeded|Failed)\b|phase\W{0,4}\{\{|\{\{.*phase")


def can_complete(stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], owner_kind: str = "") -> bool:
    """Return whether a Stage can complete a pod of template *pod* that is owned by an *owner_kind*."""
    return any(_may_complete(stage) and _may_match(stage, _pod_from_template(pod, owner_kind)) for stage in stages)


def pod_findings(
    stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], where: FieldPath = (), owner_kind: str = ""
) -> list[Finding]:
    """Return Findings about pods of template *pod* at *where*: never completed, or command not read."""
    findings = [*_command_not_read(stages, pod, where, owner_kind)]
    if owner_kind == "Job" and not can_complete(stages, pod, owner_kind):
        what = "no Stage completes these pods: the Job never ends"
        hint = "use the Stages pod-fast, pod-general or job, or add labels that one of your Stages selects"
        return [Finding(where, what, hint, rule="workload-never-completes"), *findings]
    return findings


def heartbeat_findings(
    stages: Sequence[Mapping[str, Any]],
    node_count: int,
    *,
    lease: bool,
    where: FieldPath = (),
    grace_s: float = GRACE_S,
) -> list[Finding]:
    """Return Findings about heartbeats: nodes that become Unknown, or a high request rate."""
    if node_count <= 0:
        return []
    periods = [_period_s(stage) for stage in stages if _is_heartbeat(stage)]
    if not lease and (not periods or min(high for _, high in periods) > grace_s):
        what = f"nodes become Unknown after {grace_s:g} s: leases are disabled and no Stage updates the status in time"
        hint = "use the Stages node-heartbeat, or enable leases"
        return [Finding(where, what, hint, rule="nodes-without-heartbeat")]
    per_s = sum(node_count / max((low + high) / 2, SHORTEST_S) for low, high in periods if high <= grace_s)
    if node_count <= MANY_NODES or not per_s:
        return []
    what = f"heartbeats of {node_count} nodes cause {per_s:.0f} status patches per second"
    hint = "use the Stages node-heartbeat-with-lease" + ("" if lease else ", and enable leases")
    return [warning(where, what, hint, "heartbeat-load")]


def _command_not_read(
    stages: Sequence[Mapping[str, Any]], pod: Mapping[str, Any], where: FieldPath, owner_kind: str
) -> Iterator[Finding]:
    """Find pods with `command: [sleep, "10"]` that match a Stage which reads `args`."""
    containers = schema.maps(pod, "spec", "containers")
    if not containers or not containers[0][1].get("command") or containers[0][1].get("args"):
        return
    created = _pod_from_template(pod, owner_kind)
    for stage in stages:
        if schema.kind(stage) == "Pod" and _reads_only_args(stage) and _may_match(stage, created):
            name = schema.text(stage, "metadata", "name")
            what = f"the Stage {name!r} reads args, but this container has only command"
            place = (*where, "spec", "containers", containers[0][0], "command")
            yield warning(place, what, "use args instead of command", "workload-command-not-read")
            return


def _reads_only_args(stage: Mapping[str, Any]) -> bool:
    reads_args, reads_command = (
        any(jq.reads(text, name) for text in _expressions(stage)) for name in ("args", "command")
    )
    return reads_args and not reads_command


def _expressions(stage: Mapping[str, Any]) -> list[str]:
    """Return all jq and CEL expressions of a Stage."""
    texts = [
        schema.text(schema.get(stage, "spec", *place), *field)
        for place in (("delay", "durationFrom"), ("delay", "jitterDurationFrom"), ("weightFrom",))
        for field in (("jq", "expression"), ("cel", "expression"), ("expressionFrom",))
    ]
    for _, language, content in schema.requirements(stage):
        texts.append(schema.text(content, "key" if language == "jq" else "expression"))
    return [text for text in texts if text]


def _pod_from_template(pod: Mapping[str, Any], owner_kind: str) -> dict[str, Any]:
    """Return the pod that a controller creates from a template, as far as it is known in advance."""
    metadata: dict[str, Any] = {name: dict(schema.mapping(pod, "metadata", name)) for name in ("labels", "annotations")}
    if owner_kind:
        version = {"Job": "batch/v1", "ReplicationController": "v1"}.get(owner_kind, "apps/v1")
        owner = {"apiVersion": version, "kind": owner_kind, "name": "?", "uid": "?"}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    # Default of the API server, which selectors may use.
    spec = {"restartPolicy": "Always", **schema.mapping(pod, "spec")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _may_complete(stage: Mapping[str, Any]) -> bool:
    """Return whether a Stage may complete a pod without a deletion request."""
    if schema.kind(stage) != "Pod" or _needs_deletion(stage):
        return False
    actions = schema.actions(stage)
    templates = [
        schema.text(action.content, "template") for action in actions if action.operation in ("patch", "apply")
    ]
    return any(action.operation == "delete" for action in actions) or any(map(_COMPLETED.search, templates))


def _needs_deletion(stage: Mapping[str, Any]) -> bool:
    return any(
        language == "jq"
        and schema.text(content, "key").strip() == ".metadata.deletionTimestamp"
        and schema.text(content, "operator") in ("Exists", "In")
        for _, language, content in schema.requirements(stage)
    )


def _may_match(stage: Mapping[str, Any], obj: Mapping[str, Any]) -> bool:
    """Return whether a Stage may match an object, now or later."""
    if schema.get(stage, "spec", "selector") is None:
        return False
    for field, of in (("matchLabels", "labels"), ("matchAnnotations", "annotations")):
        required = schema.mapping(stage, "spec", "selector", field)
        present = schema.mapping(obj, "metadata", of)
        if any(present.get(name) != value and name not in _CONTROLLER_KEYS for name, value in required.items()):
            return False
    return not any(
        language == "jq" and _surely_unmet(content, obj) for _, language, content in schema.requirements(stage)
    )


def _surely_unmet(content: Mapping[str, Any], obj: Mapping[str, Any]) -> bool:
    key, operator = schema.text(content, "key"), schema.text(content, "operator")
    if "status" not in obj and (_depends_on_later(key, obj) or _reads_owner_identity(key, operator)):
        return False
    return jq.matches(key, operator, schema.texts(content, "values"), obj) is False


def _reads_owner_identity(key: str, operator: str) -> bool:
    """Return whether a requirement reads the name or uid of the owner, unknown before creation."""
    if "ownerReferences" not in key:
        return False
    if operator in ("Exists", "DoesNotExist"):
        key = _TRAILING_NAME.sub("", key)
    return jq.reads(key, "name") or jq.reads(key, "uid")


def _depends_on_later(key: str, obj: Mapping[str, Any]) -> bool:
    absent = any(name not in obj["spec"] for name in _SPEC_FIELD.findall(key))
    return absent or _LATER.search(key) is not None or any(name in key for name in _CONTROLLER_KEYS)


def _is_heartbeat(stage: Mapping[str, Any]) -> bool:
    """Return whether a Stage updates the conditions of every healthy node."""
    healthy_node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"labels": {}, "annotations": {}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return (
        schema.kind(stage) == "Node"
        and any("lastHeartbeatTime" in schema.text(action.content, "template") for action in schema.actions(stage))
        and _may_match(stage, healthy_node)
    )


def _period_s(stage: Mapping[str, Any]) -> tuple[float, float]:
    """Return the minimum and maximum delay of a Stage in seconds."""
    low = (schema.number(stage, "spec", "delay", "durationMilliseconds") or 0) / 1000
    jitter = schema.number(stage, "spec", "delay", "jitterDurationMilliseconds")
    high = low if jitter is None else jitter / 1000
    return min(low, high), high
