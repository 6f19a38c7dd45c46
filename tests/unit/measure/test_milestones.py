"""Milestones of workloads and pods, parsed from manifests."""

from math import isnan
from typing import Any

import pytest

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import milestones, pod_requests
from tests.harness.pod_timelines import T0, PodTimeline, condition, timestamp


def manifest_of(kind: str, status: Manifest | None, spec: Manifest | None = None, **metadata: Any) -> Manifest:  # noqa: ANN401  # of a manifest
    """Return a manifest."""
    manifest: Manifest = {"kind": kind, "metadata": {"name": "a", "creationTimestamp": timestamp(T0), **metadata}}
    return manifest | ({"status": status} if status is not None else {}) | ({"spec": spec} if spec is not None else {})


@pytest.mark.parametrize(
    ("kind", "status", "milestone"),
    [
        ("Job", {}, ""),
        ("Job", {"startTime": timestamp(T0)}, "started"),
        ("Job", {"conditions": [condition("SuccessCriteriaMet", 1)]}, ""),
        ("Job", {"conditions": [condition("Complete", 5)]}, "completed"),
        ("Job", {"conditions": [condition("Failed", 5)]}, "failed"),
        ("JobSet", {"conditions": [condition("Completed", 5)]}, "completed"),
        ("PyTorchJob", {"conditions": [condition("Created", 1), condition("Running", 2)]}, "started"),
        ("PyTorchJob", {"conditions": [condition("Running", 2), condition("Succeeded", 5)]}, "completed"),
        ("Workload", {"conditions": [condition("Admitted", 2)]}, "started"),
        ("Workload", {"conditions": [condition("Admitted", 2), condition("Finished", 5)]}, "completed"),
        ("AppWrapper", {"state": "Dispatched"}, "started"),
        ("AppWrapper", {"state": "Failed"}, "failed"),
        ("Job", {"state": {"phase": "Completed"}}, "completed"),
        ("Workflow", {"phase": "Succeeded", "startedAt": timestamp(T0), "finishedAt": timestamp(T0 + 5)}, "completed"),
        ("Widget", {"conditions": [{"type": "Ready", "status": "False"}]}, ""),
        ("Widget", {"conditions": [condition("Ready", 5)]}, "ready"),
        ("PersistentVolumeClaim", {"phase": "Bound"}, "ready"),
        ("Service", {"loadBalancer": {}}, "ready"),
        ("Deployment", {"readyReplicas": 1}, ""),
        ("Deployment", {"readyReplicas": 2}, "ready"),
        ("StatefulSet", {"readyReplicas": 2}, "ready"),
        ("DaemonSet", {}, ""),
        ("DaemonSet", {"desiredNumberScheduled": 3, "numberReady": 2}, ""),
        ("DaemonSet", {"desiredNumberScheduled": 3, "numberReady": 3}, "ready"),
    ],
)
def test_the_milestone_of_each_kind(kind: str, status: Manifest, milestone: str) -> None:
    """Conditions take precedence over a phase or state."""
    state = milestones.parse_workload(manifest_of(kind, status, {"replicas": 2}))
    words = ("completed", "failed", "ready", "started")
    assert next((word for word in words if getattr(state, word)), "") == milestone


def test_a_stale_observed_generation_is_not_ready() -> None:
    """The status describes the previous spec."""
    behind = manifest_of("Deployment", {"readyReplicas": 2, "observedGeneration": 1}, {"replicas": 2}, generation=2)
    assert not milestones.parse_workload(behind).ready


def test_an_object_without_spec_is_ready_at_creation() -> None:
    """No controller acts on it."""
    state = milestones.parse_workload(manifest_of("ConfigMap", None))
    assert (state.ready, state.ready_at) == (True, T0)


def test_times_come_from_their_own_fields_or_from_conditions() -> None:
    """Microseconds are kept where a kind has them."""
    done = {
        "startTime": timestamp(T0 + 1),
        "completionTime": timestamp(T0 + 9),
        "conditions": [condition("Complete", 10)],
    }
    state = milestones.parse_workload(manifest_of("Job", done, {}))
    assert (state.started_at, state.over_at) == (T0 + 1, T0 + 9)
    micro = [{"type": "Completed", "status": "True", "lastTransitionMicroTime": "2027-01-15T08:00:05.250000Z"}]
    assert milestones.parse_workload(manifest_of("AppWrapper", {"conditions": micro}, {})).over_at == T0 + 5.25
    rolled = condition("Progressing", 3, reason="NewReplicaSetAvailable", lastUpdateTime=timestamp(T0 + 7))
    assert (
        milestones.parse_workload(manifest_of("Deployment", {"readyReplicas": 1, "conditions": [rolled]}, {})).ready_at
        == T0 + 7
    )


def test_a_pod_starts_when_its_last_container_does() -> None:
    """It ends when its last container ends."""
    pod = PodTimeline(0, 0, 1, 2, 12).at(13)
    later = {"terminated": {"startedAt": timestamp(T0 + 4), "finishedAt": timestamp(T0 + 9)}}
    pod["status"]["containerStatuses"].append({"name": "d", "state": later})
    state = milestones.parse_pod(pod)
    assert (state.started_at, state.over_at) == (T0 + 4, T0 + 12)


def test_a_pending_pod_has_no_start_time() -> None:
    """Other containers have not started."""
    pod = PodTimeline(0, 0, 1, 2).at(3)
    pod["status"]["phase"] = "Pending"
    assert isnan(milestones.parse_pod(pod).started_at)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "²"])
def test_an_invalid_time_is_nan(text: str) -> None:
    """Manifests may contain any text."""
    assert isnan(milestones.seconds(text))


def test_an_empty_pod_is_parsed() -> None:
    """Any field may be missing."""
    state = milestones.parse_pod({"metadata": {"name": "a"}})
    assert (state.node, state.phase, state.ready) == ("", "", False)


def test_pod_requests_are_the_sum_of_containers_or_the_largest_init_container() -> None:
    """As in the scheduler: sidecars count for both, overhead is added."""

    def container(**requests: str) -> Manifest:
        return {"resources": {"requests": requests}}

    spec = {
        "containers": [container(cpu="500m", memory="1Gi"), container(cpu="1")],
        "initContainers": [container(cpu="250m") | {"restartPolicy": "Always"}, container(cpu="3", memory="10Mi"), {}],
        "overhead": {"cpu": "100m"},
    }
    requests = dict(pod_requests.total_requests({"spec": spec}))
    assert requests == {"cpu": pytest.approx(3.35), "memory": 2**30, "pods": 1}
    assert dict(pod_requests.total_requests({})) == {"pods": 1}
