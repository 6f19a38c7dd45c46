"""Rendering of nodes."""

import ipaddress
import itertools
import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.node_pool import NodePool
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import node_templates, nodes
from kwokfleet.stagelint import rules

CONTEXT = nodes.NodeContext("lab")
NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)
ZONE = "topology.kubernetes.io/zone"


def pool(**fields: Any) -> NodePool:  # noqa: ANN401  # any part of a file
    """Return a NodePool."""
    return NodePool.model_validate({"name": "gpu", "replicas": 3, **fields})


def rendered(count: int, templates: tuple[Manifest, ...] = (), **fields: Any) -> list[Manifest]:  # noqa: ANN401  # as above
    """Return a pool's nodes."""
    return nodes.render(pool(**fields), range(count), templates, CONTEXT)


def labels(node: Manifest, key: str) -> str | None:
    """Return a node's label."""
    value: str | None = node["metadata"]["labels"].get(key)
    return value


def test_a_plain_pool_has_everything_a_fake_node_needs() -> None:
    """Name, hostname, fake annotation and taint, providerID, default resources."""
    node = rendered(1)[0]
    assert node["metadata"]["name"] == labels(node, "kubernetes.io/hostname") == "lab-gpu-0"
    assert node["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert node["spec"]["taints"] == [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]
    assert node["spec"]["providerID"] == "kwok://lab-gpu-0"
    assert node["status"]["capacity"] == {"cpu": "32", "memory": "256Gi", "pods": "110"}


def test_names_follow_the_pattern() -> None:
    """{fleet}, {pool}, {index} and zero padding."""
    assert [node["metadata"]["name"] for node in rendered(2, nodeName="{pool}.{fleet}-{index:04}")] == [
        "gpu.lab-0000",
        "gpu.lab-0001",
    ]


def test_taint_false_omits_the_fake_taint() -> None:
    """Other taints of the pool stay."""
    assert "taints" not in rendered(1, taint=False)[0]["spec"]
    assert rendered(1, taint=False, taints=["a=b:NoExecute"])[0]["spec"]["taints"] == [
        {"key": "a", "value": "b", "effect": "NoExecute"}
    ]


def test_extended_resources_are_capacity_and_allocatable() -> None:
    """Also GPUs."""
    status = rendered(1, resources={"nvidia.com/gpu": 8, "example.com/camera": 2, "cpu": "1500m"})[0]["status"]
    assert status["capacity"] == status["allocatable"]
    assert status["capacity"] == {
        "cpu": "1500m",
        "memory": "256Gi",
        "pods": "110",
        "nvidia.com/gpu": "8",
        "example.com/camera": "2",
    }


@pytest.mark.parametrize("sizes", [(3,), (3, 2), (2, 2), (4, 2), (2, 4), (3, 5), (6, 4)])
def test_spread_labels_are_distributed_evenly(sizes: tuple[int, ...]) -> None:
    """Each key for any number of nodes, and all combinations."""
    spread = {f"k{number}": [f"v{value}" for value in range(size)] for number, size in enumerate(sizes)}
    pool_nodes = rendered(120, spread=spread)
    for count in (1, 2, 5, 7, 24, 119, 120):
        for key, values in spread.items():
            counts = Counter(labels(node, key) for node in pool_nodes[:count])
            assert max(counts.values()) - min(counts[value] for value in values) <= 2
    combinations = Counter(tuple(labels(node, key) for key in spread) for node in pool_nodes)
    assert len(combinations) == math.prod(sizes)
    assert max(combinations.values()) - min(combinations.values()) <= 1


def test_scaling_does_not_change_existing_nodes() -> None:
    """A node does not depend on the number of nodes."""
    many = rendered(200, spread={ZONE: ["a", "b", "c"]}, podCIDR="10.64.0.0/12")
    assert many[:50] == rendered(50, spread={ZONE: ["a", "b", "c"]}, podCIDR="10.64.0.0/12")


def test_pod_networks_are_disjoint_and_large_enough() -> None:
    """Each node has a subnet of the pool's podCIDR, with an address for each pod."""
    pool_nodes = rendered(300, podCIDR="10.64.0.0/10", resources={"pods": 500})
    networks = [ipaddress.ip_network(node["spec"]["podCIDR"]) for node in pool_nodes]
    assert all(network.num_addresses >= 500 for network in networks)
    assert all(network.subnet_of(ipaddress.ip_network("10.64.0.0/10")) for network in networks)  # type: ignore[arg-type]  # IPv4 both
    assert not any(first.overlaps(second) for first, second in itertools.pairwise(networks))
    assert len(set(networks)) == 300
    assert rendered(2, podCIDR="fd00::/32")[1]["spec"]["podCIDRs"] == ["fd00:0:0:1::/64"]


def test_fields_override_the_template_and_the_template_overrides_the_file() -> None:
    """Maps merge, taints merge by key and effect; fields of a node's identity are dropped."""
    template = {
        "metadata": {"name": "real-1", "labels": {"kubernetes.io/hostname": "real-1", "a": "file", "b": "file"}},
        "spec": {
            "providerID": "aws://x",
            "podCIDR": "10.0.0.0/24",
            "taints": [{"key": "t", "value": "file", "effect": "NoSchedule"}],
        },
        "status": {
            "capacity": {"cpu": "8", "memory": "16Gi", "pods": "58"},
            "allocatable": {"cpu": "7"},
            "addresses": [{}],
        },
    }
    node = rendered(
        1,
        (template,),
        template={"metadata": {"labels": {"b": "inline"}}, "status": {"capacity": {"memory": "32Gi"}}},
        labels={"c": "short"},
        taints=["t=short:NoSchedule"],
        resources={"nvidia.com/gpu": 4},
    )[0]
    assert (labels(node, "a"), labels(node, "b"), labels(node, "c")) == ("file", "inline", "short")
    assert labels(node, "kubernetes.io/hostname") == "lab-gpu-0"
    assert node["status"]["capacity"] == {"cpu": "8", "memory": "32Gi", "pods": "58", "nvidia.com/gpu": "4"}
    assert node["status"]["allocatable"]["cpu"] == "7"
    assert [taint["value"] for taint in node["spec"]["taints"]] == ["short", "fake"]
    assert node["spec"]["providerID"] == "kwok://lab-gpu-0"
    assert "podCIDR" not in node["spec"]


def test_several_templates_alternate() -> None:
    """A file with two kinds of nodes gives a pool of both."""
    kinds = tuple({"metadata": {"labels": {"kind": kind}}} for kind in ("x", "y"))
    assert [labels(node, "kind") for node in rendered(4, kinds)] == ["x", "y", "x", "y"]


LIVE: Manifest = {
    "metadata": {
        "name": "ip-10-1-2-3",
        "uid": "8a1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "kubernetes.io/hostname": "ip-10-1-2-3",
            "alpha.eksctl.io/instance-id": "i-0123",
            "node.kubernetes.io/instance-type": "m6i.4xlarge",
            ZONE: "eu-1a",
        },
        "annotations": {"csi.volume.kubernetes.io/nodeid": "{}", "node.alpha.kubernetes.io/ttl": "0"},
        "managedFields": [{}],
    },
    "spec": {
        "providerID": "aws:///eu-1a/i-0123",
        "podCIDR": "10.4.3.0/24",
        "unschedulable": True,
        "taints": [
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
            {"key": "dedicated", "value": "db", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"},
        ],
    },
    "status": {
        "capacity": {"cpu": "16", "attachable-volumes-aws-ebs": "39"},
        "allocatable": {"cpu": "15890m"},
        "conditions": [{"type": "Ready", "status": "Unknown"}],
        "images": [{"names": ["x"]}],
        "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": "abc",
            "systemUUID": "def",
            "bootID": "ghi",
            "osImage": "Debian",
            "kubeletVersion": "v1.36.1",
        },
        "volumesAttached": [{}],
    },
}


def test_a_live_node_becomes_a_template_without_its_identity() -> None:
    """Only properties of its kind are kept."""
    assert node_templates.sanitized_template(LIVE) == {
        "metadata": {"labels": {"node.kubernetes.io/instance-type": "m6i.4xlarge", ZONE: "eu-1a"}, "annotations": {}},
        "spec": {"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "16"},
            "allocatable": {"cpu": "15890m"},
            "nodeInfo": {"kubeletVersion": "v1.36.1", "osImage": "Debian"},
        },
    }


def test_a_ready_node_is_created_complete() -> None:
    """All five conditions, the TTL controller's annotation, both spellings of arch and os."""
    node = nodes.NodeCreation(NOW, 600).apply(rendered(1)[0], ready=True)
    ready = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
    assert ready == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "NetworkUnavailable": "False",
    }
    assert {condition["lastHeartbeatTime"] for condition in node["status"]["conditions"]} == {"2026-03-01T08:00:00Z"}
    assert node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] == "30"
    assert labels(node, "beta.kubernetes.io/arch") == labels(node, "kubernetes.io/arch") == "amd64"
    assert node["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("size", "ttl"), [(1, "0"), (100, "0"), (101, "15"), (500, "15"), (1000, "30"), (2000, "60"), (2001, "300")]
)
def test_the_ttl_annotation_equals_that_of_the_ttl_controller(size: int, ttl: str) -> None:
    """It depends on the size of the cluster."""
    node = nodes.NodeCreation(NOW, size).apply(rendered(1)[0], ready=True)
    assert node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] == ttl


def test_a_booting_node_is_created_not_ready() -> None:
    """Its Stage makes it Ready."""
    node = nodes.NodeCreation(NOW, 1).apply(rendered(1)[0], ready=False)
    assert [condition["status"] for condition in node["status"]["conditions"] if condition["type"] == "Ready"] == [
        "False"
    ]


def test_the_autoscaler_template_is_valid() -> None:
    """It has the group label and valid counts, but no ownership label."""
    owned = pool(replicas=None, autoscaler={"min": 2, "max": 50})
    node = nodes.autoscaler_template(owned, (), CONTEXT, ready=True)
    annotations = node["metadata"]["annotations"]
    assert labels(node, "kwok-nodegroup") == "lab-gpu"
    assert annotations["cluster-autoscaler.kwok.nodegroup/min-count"] == "2"
    assert annotations["cluster-autoscaler.kwok.nodegroup/max-count"] == "50"
    assert annotations["cluster-autoscaler.kwok.nodegroup/desired-count"] == "2"
    assert labels(node, "app.kubernetes.io/managed-by") is None
    by_annotation = nodes.NodeContext("lab", groups=fleet_api.NodeGroups(annotation="example.com/group"))
    assert (
        nodes.autoscaler_template(owned, (), by_annotation, ready=True)["metadata"]["annotations"]["example.com/group"]
        == "lab-gpu"
    )


@pytest.mark.parametrize("serves_kubelet", [False, True])
def test_a_stage_sets_the_hostname_of_autoscaler_nodes(*, serves_kubelet: bool) -> None:
    """The autoscaler's provider copies that of the template. The Stage passes the linter."""
    stage = nodes.hostname_stage(pool(replicas=None, autoscaler={}), "lab", serves_kubelet=serves_kubelet)
    assert rules.check(stage) == []
    assert ("resource-metrics-path" in stage["spec"]["steps"][0]["patch"]["template"]) == serves_kubelet


def test_a_partial_capacity_keeps_the_other_defaults() -> None:
    """Memory and pods are set if only cpu is given."""
    node = rendered(1, template={"status": {"capacity": {"cpu": 64}}})[0]
    assert node["status"]["capacity"] == {"cpu": "64", "memory": "256Gi", "pods": "110"}


def test_a_saved_node_is_sanitized() -> None:
    """Cordons, transient taints and annotations of the kubelet are removed; user annotations stay."""
    annotations = {"example.com/mine": "x", "csi.volume.kubernetes.io/nodeid": "{}"}
    saved = {**LIVE, "metadata": {**LIVE["metadata"], "annotations": annotations}}
    template = node_templates.sanitized_template(saved, saved=True)
    assert template["metadata"]["annotations"] == {"example.com/mine": "x"}
    assert "unschedulable" not in template["spec"]


def test_taints_of_a_pool_include_all_sources() -> None:
    """The pool, its template and files."""
    taints = nodes.taints(
        pool(taints=["a=b:NoSchedule"], template={"spec": {"taints": [{"key": "c", "effect": "NoExecute"}]}}),
        ({"spec": {"taints": [{"key": "d", "effect": "NoSchedule"}]}},),
    )
    assert [taint["key"] for taint in taints] == ["d", "c", "a", "kwok.x-k8s.io/node"]
