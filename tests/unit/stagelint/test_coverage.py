from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.documents.problems import Severity
from kwokfleet.stagelint import coverage

JOB = {"jq": {"key": ".metadata.ownerReferences.[].kind", "operator": "In", "values": ["Job"]}}
RUNNING = {"jq": {"key": ".status.phase", "operator": "In", "values": ["Running"]}}
READY = {
    "jq": {"key": '.status.conditions.[] | select( .type == "Ready" ) | .status', "operator": "In", "values": ["True"]}
}
DELETED = {"jq": {"key": ".metadata.deletionTimestamp", "operator": "Exists"}}
SUCCEED = {"patch": {"subresource": "status", "root": "status", "template": "phase: Succeeded"}}
POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "args": ["sleep", "10"]}]},
}


def stage(*needs: object, step: object = SUCCEED, kind: str = "Pod", **fields: object) -> dict[str, Any]:
    """Return a Stage with these requirements that does one step."""
    selector = fields.pop("selector", {"matchExpressions": list(needs)})
    spec = {"resourceRef": {"kind": kind}, "selector": selector, "steps": [step], **fields}
    return {"metadata": {"name": "a-stage"}, "spec": spec}


def need(key: str, operator: str = "Exists", *values: str) -> dict[str, Any]:
    """Return a requirement in jq."""
    return {"jq": {"key": key, "operator": operator, "values": list(values)}}


def test_a_stage_for_jobs_completes_a_job() -> None:
    """The owner's kind is known before the pod is made."""
    assert coverage.can_complete([stage(RUNNING, JOB)], POD, "Job")
    assert not coverage.can_complete([stage(RUNNING, JOB)], POD, "ReplicaSet")


def test_a_job_that_nothing_completes_is_an_error() -> None:
    """It would run for ever."""
    ready = stage(RUNNING, step={"patch": {"template": "phase: Running"}})
    found = coverage.pod_findings([ready], POD, ("spec", "workloads", 0), "Job")
    assert [(each.rule, each.severity, each.field_path) for each in found] == [
        ("workload-never-completes", Severity.ERROR, ("spec", "workloads", 0))
    ]


def test_pods_of_other_owners_need_not_complete() -> None:
    """A Deployment's pods are meant to stay."""
    assert coverage.pod_findings([], POD, (), "ReplicaSet") == []


def test_next_counts_like_steps() -> None:
    """The deprecated spelling completes pods as well."""
    old = {"spec": {"resourceRef": {"kind": "Pod"}, "selector": {}, "next": {"statusTemplate": "phase: Succeeded"}}}
    assert coverage.can_complete([old], POD, "Job")


@pytest.mark.parametrize(
    "needs",
    [
        [DELETED],
        [need('.metadata.labels["app"]', "In", "db")],
        [need(".spec.restartPolicy", "In", "Always")],
        [need('.metadata.annotations["opt-in"]')],
        [need('.metadata.ownerReferences[] | select(.kind == "Batch") | .name')],
    ],
)
def test_a_stage_that_surely_does_not_match_completes_nothing(needs: list[Any]) -> None:
    """What the template and the owner tell is enough to know."""
    assert not coverage.can_complete([stage(*needs)], POD, "Job")


@pytest.mark.parametrize(
    "needs",
    [
        [],
        [need(".spec.nodeName")],
        [need(".spec.schedulerName", "In", "default-scheduler")],
        [need('.metadata.labels["job-name"]')],
        [need(".metadata.name", "In", "x")],
        [need(".metadata.ownerReferences[].name", "In", "x")],
        [need('.metadata.ownerReferences[] | select(.kind == "Job") | .name')],
        [need("[repeat(1)]")],
        [{"cel": {"expression": "false"}}],
    ],
)
def test_in_doubt_a_stage_may_match(needs: list[Any]) -> None:
    """What comes later, from defaults or controllers, and what is not run, counts as met."""
    assert coverage.can_complete([stage(*needs)], POD, "Job")


def test_labels_of_a_selector_are_compared_exactly() -> None:
    """Both matchLabels and matchAnnotations."""
    assert coverage.can_complete([stage(selector={"matchLabels": {"app": "web"}})], POD, "Job")
    assert not coverage.can_complete([stage(selector={"matchLabels": {"app": "db"}})], POD, "Job")
    assert not coverage.can_complete([stage(selector={"matchAnnotations": {"app": "web"}})], POD, "Job")


def test_a_stage_without_a_selector_completes_nothing() -> None:
    """It is dropped."""
    assert not coverage.can_complete([stage(selector=None)], POD, "Job")


def test_deleting_completes_too() -> None:
    """A pod that is gone does not run for ever."""
    assert coverage.can_complete([stage(RUNNING, step={"delete": True})], POD, "Job")


def with_container(**fields: object) -> dict[str, Any]:
    """Return the template of a pod with one container."""
    return {"spec": {"containers": [{"name": "a", **fields}]}}


READS_ARGS = stage(RUNNING, delay={"durationFrom": {"jq": {"expression": '.spec.containers[0].args[1] + "s"'}}})


def test_a_command_where_the_stage_reads_args_is_a_warning() -> None:
    """`command: [sleep, "10"]` would complete at once."""
    found = coverage.pod_findings([READS_ARGS], with_container(command=["sleep", "10"]))
    assert [(each.rule, each.severity, each.field_path) for each in found] == [
        ("workload-command-not-read", Severity.WARNING, ("spec", "containers", 0, "command"))
    ]


@pytest.mark.parametrize("fields", [{"args": ["sleep", "10"]}, {"command": ["sh"], "args": ["10"]}, {}])
def test_args_are_fine_where_the_stage_reads_args(fields: dict[str, Any]) -> None:
    """There is something to read, or nothing was meant."""
    assert coverage.pod_findings([READS_ARGS], with_container(**fields)) == []


def test_a_stage_that_reads_command_as_well_is_fine() -> None:
    """It finds the program wherever it is."""
    both = stage(
        RUNNING, delay={"durationFrom": {"jq": {"expression": "[.spec.containers[0] | .command[]?, .args[]?] | last"}}}
    )
    assert coverage.pod_findings([both], with_container(command=["sleep", "10"])) == []


def beat(low_ms: int, high_ms: int | None = None) -> dict[str, Any]:
    """Return a Stage that renews the conditions of Ready nodes."""
    step = {
        "patch": {"subresource": "status", "root": "status", "template": "conditions:\n- lastHeartbeatTime: {{ Now }}"}
    }
    delay = {"durationMilliseconds": low_ms} | ({"jitterDurationMilliseconds": high_ms} if high_ms else {})
    return stage(READY, step=step, kind="Node", delay=delay)


def test_a_few_nodes_with_a_quick_heartbeat_are_fine() -> None:
    """That is kwok without leases."""
    assert coverage.heartbeat_findings([beat(20_000, 25_000)], 1_000, lease=False) == []


def test_many_nodes_with_a_quick_heartbeat_are_a_warning() -> None:
    """Each beat is a patch of the whole status."""
    found = coverage.heartbeat_findings([beat(20_000, 25_000)], 5_000, lease=False, where=("spec",))
    assert [(each.rule, each.severity, each.field_path) for each in found] == [
        ("heartbeat-load", Severity.WARNING, ("spec",))
    ]
    assert "222 status patches per second" in found[0].what


@pytest.mark.parametrize("stages", [[], [beat(600_000, 610_000)], [stage(READY, kind="Node")]])
def test_nodes_without_a_quick_heartbeat_and_without_leases_are_an_error(stages: list[dict[str, Any]]) -> None:
    """The controller manager takes them for lost."""
    found = coverage.heartbeat_findings(stages, 1, lease=False)
    assert [(each.rule, each.severity) for each in found] == [("nodes-without-heartbeat", Severity.ERROR)]


def test_a_longer_grace_allows_a_slower_heartbeat() -> None:
    """It is a setting of the controller manager."""
    assert coverage.heartbeat_findings([beat(60_000)], 1, lease=False, grace_s=200) == []


def test_a_slow_heartbeat_with_leases_is_fine() -> None:
    """The lease is the sign of life."""
    assert coverage.heartbeat_findings([beat(600_000, 610_000)], 20_000, lease=True) == []


def test_a_stage_for_some_nodes_is_no_heartbeat() -> None:
    """An opt-in label keeps it from the others."""
    some = beat(20_000)
    some["spec"]["selector"]["matchLabels"] = {"opt": "in"}
    assert coverage.heartbeat_findings([some], 1, lease=False) != []


def test_no_nodes_need_no_heartbeat() -> None:
    """Nothing can fall silent."""
    assert coverage.heartbeat_findings([], 0, lease=False) == []


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["metadata", "spec", "containers", "labels", "selector", "command"]), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON), JSON)
@settings(max_examples=100, deadline=None)
def test_any_pod_and_any_stage_get_an_answer(pod: dict[str, Any], wild: object) -> None:
    """However broken they are: their own rules tell, these do not raise."""
    wild_stage = {"spec": {"resourceRef": {"kind": "Pod"}, "selector": wild, "delay": wild, "steps": [SUCCEED]}}
    stages = [wild_stage, READS_ARGS, stage(JOB, need('.metadata.labels["a"]', "In", "b"))]
    coverage.pod_findings(stages, pod, (), "Job")
    coverage.heartbeat_findings(stages, 2_000, lease=False)
