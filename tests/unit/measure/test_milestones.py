"""How far an object has come, read from its manifest: any kind that people put into a Wave."""

from math import isnan
from typing import Any

import pytest

from kwokfleet.kube.objects import Manifest
from kwokfleet.measure import milestones, pod_requests
from tests.harness.pod_timelines import T0, PodTimeline, condition, timestamp


def thing(kind: str, status: Manifest | None, spec: Manifest | None = None, **metadata: Any) -> Manifest:  # noqa: ANN401  # of a manifest
    """Return an object of a kind."""
    made: Manifest = {"kind": kind, "metadata": {"name": "a", "creationTimestamp": timestamp(T0), **metadata}}
    return made | ({"status": status} if status is not None else {}) | ({"spec": spec} if spec is not None else {})


@pytest.mark.parametrize(
    ("kind", "status", "want"),
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
def test_each_kind_says_in_its_own_way_how_far_it_is(kind: str, status: Manifest, want: str) -> None:
    """Conditions first, else one word."""
    state = milestones.parse_workload(thing(kind, status, {"replicas": 2}))
    words = ("completed", "failed", "ready", "started")
    assert next((word for word in words if getattr(state, word)), "") == want


def test_a_controller_that_has_not_seen_the_wish_says_nothing_of_it() -> None:
    """Two replicas were ready before four were asked for."""
    behind = thing("Deployment", {"readyReplicas": 2, "observedGeneration": 1}, {"replicas": 2}, generation=2)
    assert not milestones.parse_workload(behind).ready


def test_what_has_no_spec_is_complete_at_once() -> None:
    """There is nothing to wait for, and it happened when it was made."""
    state = milestones.parse_workload(thing("ConfigMap", None))
    assert (state.ready, state.ready_at) == (True, T0)


def test_times_come_from_their_own_fields_or_from_conditions() -> None:
    """To the microsecond where a kind writes that."""
    done = {
        "startTime": timestamp(T0 + 1),
        "completionTime": timestamp(T0 + 9),
        "conditions": [condition("Complete", 10)],
    }
    state = milestones.parse_workload(thing("Job", done, {}))
    assert (state.started_at, state.over_at) == (T0 + 1, T0 + 9)
    micro = [{"type": "Completed", "status": "True", "lastTransitionMicroTime": "2027-01-15T08:00:05.250000Z"}]
    assert milestones.parse_workload(thing("AppWrapper", {"conditions": micro}, {})).over_at == T0 + 5.25
    rolled = condition("Progressing", 3, reason="NewReplicaSetAvailable", lastUpdateTime=timestamp(T0 + 7))
    assert (
        milestones.parse_workload(thing("Deployment", {"readyReplicas": 1, "conditions": [rolled]}, {})).ready_at
        == T0 + 7
    )


def test_a_pod_starts_when_its_last_container_does() -> None:
    """And is over when the last of them is."""
    pod = PodTimeline(0, 0, 1, 2, 12).at(13)
    later = {"terminated": {"startedAt": timestamp(T0 + 4), "finishedAt": timestamp(T0 + 9)}}
    pod["status"]["containerStatuses"].append({"name": "d", "state": later})
    state = milestones.parse_pod(pod)
    assert (state.started_at, state.over_at) == (T0 + 4, T0 + 12)


def test_a_container_of_a_pending_pod_says_nothing_of_its_start() -> None:
    """The others are still to come."""
    pod = PodTimeline(0, 0, 1, 2).at(3)
    pod["status"]["phase"] = "Pending"
    assert isnan(milestones.parse_pod(pod).started_at)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "²"])
def test_a_time_that_is_none_is_unknown(text: str) -> None:
    """Whoever wrote it."""
    assert isnan(milestones.seconds(text))


def test_an_empty_pod_is_read() -> None:
    """Manifests come from outside: anything may be missing."""
    state = milestones.parse_pod({"metadata": {"name": "a"}})
    assert (state.node, state.phase, state.ready) == ("", "", False)


def test_a_pod_takes_the_sum_of_its_containers_or_its_largest_init_container() -> None:
    """As the scheduler reckons: sidecars run beside both, overhead comes on top."""

    def asks(**requests: str) -> Manifest:
        return {"resources": {"requests": requests}}

    spec = {
        "containers": [asks(cpu="500m", memory="1Gi"), asks(cpu="1")],
        "initContainers": [asks(cpu="250m") | {"restartPolicy": "Always"}, asks(cpu="3", memory="10Mi"), {}],
        "overhead": {"cpu": "100m"},
    }
    found = dict(pod_requests.total_requests({"spec": spec}))
    assert found == {"cpu": pytest.approx(3.35), "memory": 2**30, "pods": 1}
    assert dict(pod_requests.total_requests({})) == {"pods": 1}
