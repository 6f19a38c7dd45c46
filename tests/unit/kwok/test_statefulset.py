"""The StatefulSet of kwok: its manifest, its flags and the state of its pods."""

import json
from typing import Any

import pytest

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.api.node_pool import NodePool
from kwokfleet.kwok import exits, flags, log_lines, statefulset
from kwokfleet.render import nodes

NAME = statefulset.StatefulSetName("lab", "kwokfleet-kwok")


def spec(**fields: Any) -> KwokControllerSpec:  # noqa: ANN401 - fields of the spec
    """Return the spec of a KwokController."""
    return KwokControllerSpec.model_validate({"statefulSet": "kwokfleet-kwok", **fields})


def pod(**status: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a status
    """Return a pod."""
    return {"metadata": {"uid": "u"}, "status": status}


def test_a_name_without_a_namespace_is_in_the_namespace_of_kwokfleet() -> None:
    """Without a name, kwok does not run in pods."""
    assert statefulset.from_spec(spec(), "home") == statefulset.StatefulSetName("home", "kwokfleet-kwok")
    assert statefulset.from_spec(spec(statefulSet="lab/kwok"), "home") == statefulset.StatefulSetName("lab", "kwok")
    assert statefulset.from_spec(KwokControllerSpec(), "home") is None


@pytest.mark.parametrize(
    ("holder", "ours"),
    [
        ("kwokfleet-kwok-0_2f1c-aa", True),
        ("kwokfleet-kwok-12_2f1c-aa", True),
        ("kwokfleet-kwok_2f1c-aa", False),
        ("other-kwokfleet-kwok-0_2f1c-aa", False),
        ("kwokfleet-kwok-0", False),
        ("kwok-controller-7d9f-x2v_2f1c", False),
    ],
)
def test_a_holder_identity_names_its_pod(holder: str, ours: bool) -> None:  # noqa: FBT001 - a parameter
    """The identity starts with the host name, which is the pod's name."""
    assert NAME.holds(holder) is ours


def test_all_pods_have_the_same_flags() -> None:
    """Environment variables are the only difference, also for a single pod."""
    arguments = flags.pod_arguments(spec(shards=1), ())
    assert "--manage-nodes-with-label-selector=kwokfleet.dev/shard=$(POD_INDEX)" in arguments
    assert "--node-ip=10.0.0.1" in arguments
    assert "--server-address=0.0.0.0:10247" in arguments
    assert "--node-ip=$(POD_IP)" in flags.pod_arguments(spec(port=10250), ())
    assert flags.pod_arguments(spec(shards=1), ()) == flags.pod_arguments(spec(shards=7), ())


@pytest.mark.parametrize(
    "change", [{"leaseDuration": "80s"}, {"parallelism": {"pods": 8}}, {"port": 10250}, {"logLevel": "debug"}]
)
def test_the_configuration_changes_the_digest(change: dict[str, Any]) -> None:
    """A new digest replaces the pods; the number of pods does not change it."""
    before = statefulset.pod_config(spec(), (), "")
    assert statefulset.pod_config(spec(**change), (), "").digest != before.digest
    assert statefulset.pod_config(spec(shards=3, memoryLimit="1Gi"), (), "").digest == before.digest
    assert statefulset.pod_config(spec(), (), "metrics").digest != before.digest


def test_a_scale_to_zero_keeps_the_configuration() -> None:
    """Only the replicas are written."""
    assert json.loads(statefulset.scale_patch(NAME, 0).body or b"") == {"spec": {"replicas": 0}}


def test_the_run_of_a_running_pod() -> None:
    """A restart is another run."""
    running = {
        "name": "kwok",
        "ready": True,
        "restartCount": 2,
        "state": {"running": {"startedAt": "2026-03-02T08:00:00Z"}},
    }
    life = statefulset.container_run(pod(podIP="192.0.2.1", containerStatuses=[running]))
    assert (life.ready, life.address, life.restarts, life.not_running_reason) == (True, "192.0.2.1", 2, "")
    assert life.started_at is not None
    again = statefulset.container_run(pod(containerStatuses=[{**running, "restartCount": 3}]))
    assert not life.is_same(again)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, "Pending"),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
                ]
            },
            "Unschedulable: no room",
        ),
        (
            {"containerStatuses": [{"name": "kwok", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "ImagePullBackOff",
        ),
    ],
)
def test_a_pod_that_does_not_run_has_a_reason(status: dict[str, Any], why: str) -> None:
    """It is the text of Kubernetes."""
    assert statefulset.container_run(pod(**status)).not_running_reason == why


def test_the_end_of_the_last_log_is_kept() -> None:
    """It tells a rejected configuration from a crash."""
    ended = {
        "terminated": {"exitCode": 1, "message": '{"level":"ERROR","msg":"Execute exit","err":"no stages found"}\n'}
    }
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    life = statefulset.container_run(
        pod(containerStatuses=[{"name": "kwok", "restartCount": 1, "state": waiting, "lastState": ended}])
    )
    assert exits.exit_reason(life.last_exit_code, life.last_log, asked=False) is exits.ExitReason.CONFIGURATION
    assert log_lines.last_error(life.last_log.splitlines()) == "Execute exit: no stages found"


def test_nodes_of_pods_have_a_shard_label_and_no_address() -> None:
    """Kwokfleet writes the address when the pod is known; the port is the same for all."""
    pool = NodePool.model_validate({"name": "pool", "replicas": 1})
    [node] = nodes.render(pool, [0], [], nodes.NodeContext("lab", in_pods=True, port=10250))
    assert node["metadata"]["labels"]["kwokfleet.dev/shard"] == "0"
    assert "addresses" not in node["status"]
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    [plain] = nodes.render(pool, [0], [], nodes.NodeContext("lab"))
    assert "kwokfleet.dev/shard" not in plain["metadata"]["labels"]
