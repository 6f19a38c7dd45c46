"""Resource usage, kwok's configuration objects and kwok's flags."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.api import decode
from kwokfleet.api.fleet import Fleet
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.documents.parser import Document
from kwokfleet.kube import objects
from kwokfleet.kwok import backend, flags, sharding
from kwokfleet.render import desired as render
from kwokfleet.stagelint import cel
from kwokfleet.validate import kwok_resources

NOW = datetime(2026, 3, 2, tzinfo=UTC)
Manifest = dict[str, Any]
LOGS: Manifest = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "ClusterLogs",
    "metadata": {"name": "all"},
    "spec": {"logs": [{"logsFile": "/var/log/app.log"}]},
}


def fleet(**pool: Any) -> Fleet:  # noqa: ANN401  # fields of a pool
    """Return a Fleet with one pool."""
    spec = {"nodePools": [{"name": "general", "replicas": 4, **pool}]}
    model, findings = decode.to_model(
        Fleet,
        {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec},
    )
    assert model is not None, findings
    return model


def controller(**fields: Any) -> KwokControllerSpec:  # noqa: ANN401  # fields of a KwokController
    """Return the spec of a KwokController."""
    model, findings = decode.to_model(KwokControllerSpec, fields)
    assert model is not None, findings
    return model


def tree(*raw: Manifest, spec: KwokControllerSpec | None = None, **pool: Any) -> render.Tree:  # noqa: ANN401
    """Return a tree of one Fleet, without Stages."""
    sets = ("node-fast", "node-heartbeat-with-lease", "pod-fast", "pod-recover")
    return render.Tree(
        (fleet(**pool),), spec or KwokControllerSpec(), dict.fromkeys(sets, ()), kwok_objects={"lab": raw}
    )


def desired(source_tree: render.Tree) -> list[Manifest]:
    """Return the desired objects."""
    return list(render.Renderer().desired(source_tree, NOW).values())


def nodes(source_tree: render.Tree) -> list[Manifest]:
    """Return the desired nodes."""
    return [manifest for manifest in desired(source_tree) if manifest["kind"] == "Node"]


# usage


def test_without_usage_only_nodes_are_rendered() -> None:
    """No additional kinds are enabled in kwok."""
    assert {manifest["kind"] for manifest in desired(tree())} == {"Node"}
    assert render.kwok_kinds(tree()) == ()


def test_usage_is_one_object_and_one_metric_for_all_fleets() -> None:
    """They are the same for any usage: kwok uses an arbitrary one of several."""
    one = [manifest for manifest in desired(tree(usage={"cpu": "60%"})) if manifest["kind"] != "Node"]
    other = [manifest for manifest in desired(tree(usage={"memory": "1Gi"})) if manifest["kind"] != "Node"]
    assert one == other
    assert [manifest["kind"] for manifest in one] == ["ClusterResourceUsage", "Metric"]
    assert render.kwok_kinds(tree(usage={"cpu": 1})) == ("ClusterResourceUsage", "Metric")


def test_the_usage_of_a_pool_is_annotated_on_its_nodes() -> None:
    """Quantities are unchanged, percentages are fractions: the CEL expression reads both."""
    annotations = nodes(tree(usage={"cpu": "60%", "memory": "1.5Gi"}))[0]["metadata"]["annotations"]
    assert annotations["kwokfleet.dev/usage-cpu-share"] == "0.6"
    assert annotations["kwokfleet.dev/usage-memory"] == "1.5Gi"


def test_the_metric_has_the_names_of_a_kubelet() -> None:
    """metrics-server skips a node or container without one of them."""
    [metric] = [entry for entry in desired(tree(usage={"cpu": 1})) if entry["kind"] == "Metric"]
    names = {entry["name"] for entry in metric["spec"]["metrics"]}
    assert names >= {
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    }
    assert all(entry["dimension"] for entry in metric["spec"]["metrics"])


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_usage_expression_is_short_enough_for_kwok(resource: str) -> None:
    """It is much shorter than the limit of the CEL compiler."""
    [usage] = [manifest for manifest in desired(tree(usage={"cpu": 1})) if manifest["kind"] == "ClusterResourceUsage"]
    assert len(usage["spec"]["usages"][0]["usage"][resource]["expression"]) < cel.MAX_LENGTH / 10


# kubelet endpoints


def test_without_a_port_nodes_have_no_kubelet_endpoint() -> None:
    """They have a generated address and their hostname."""
    node = nodes(tree())[0]
    assert "daemonEndpoints" not in node["status"]
    assert {address["type"] for address in node["status"]["addresses"]} == {"InternalIP", "Hostname"}


def test_with_a_port_nodes_have_the_endpoint_of_kwok() -> None:
    """On loopback; without a hostname, which the API server would try first."""
    node = nodes(tree(spec=controller(port=10247)))[2]
    assert node["status"]["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10247}}
    path = node["metadata"]["annotations"]["metrics.k8s.io/resource-metrics-path"]
    assert path == "/metrics/nodes/lab-general-2/metrics/resource"


def test_each_shard_has_a_port_and_its_nodes_use_it() -> None:
    """The kwok process of a node serves its kubelet endpoint."""
    runs = controller(port=10247, shards=3)
    for node in nodes(tree(spec=runs, replicas=20)):
        shard = sharding.ShardSpec(sharding.shard_index(node["metadata"]["name"], 3), 3)
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        assert port == flags.server_address(runs, shard).port
        assert f"--node-port={port}" in flags.arguments(runs, shard, ())


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({}, ("127.0.0.1", 0)),
        ({"port": 10247}, ("127.0.0.1", 10247)),
        ({"port": 10247, "nodeIP": "192.0.2.7"}, ("192.0.2.7", 10247)),
        ({"port": 10247, "nodeIP": "192.0.2.7", "listen": "0.0.0.0"}, ("0.0.0.0", 10247)),  # noqa: S104  # the tested value
    ],
)
def test_kwok_listens_on_loopback_by_default(fields: Manifest, address: tuple[str, int]) -> None:
    """Its server has no authentication."""
    assert flags.server_address(controller(**fields), sharding.ShardSpec()) == address


def test_the_local_address_of_a_wildcard_is_loopback() -> None:
    """IPv6 addresses are in brackets."""
    assert flags.ServerAddress("0.0.0.0", 80).local.text == "127.0.0.1:80"  # noqa: S104  # the tested value
    assert flags.ServerAddress("::", 80).local.text == "[::1]:80"


# configuration objects


@pytest.mark.parametrize("kind", kwok_resources.KINDS)
def test_a_kind_is_ranked_before_nodes_and_after_its_namespace(kind: str) -> None:
    """Cluster-scoped kinds have the rank of Stages."""
    namespaced = kind in objects.KWOK_NAMESPACED_KINDS
    assert objects.apply_rank("Namespace" if namespaced else "CustomResourceDefinition") < objects.apply_rank(kind)
    assert objects.apply_rank(kind) < objects.apply_rank("Node" if namespaced else "Namespace")


def test_an_owned_manifest_has_the_labels_of_its_fleet() -> None:
    """Its own labels stay; null fields and the status are removed."""
    manifest = {**LOGS, "metadata": {"name": "all", "labels": {"why": "tests"}}, "status": {}}
    manifest["spec"] = {**manifest["spec"], "selector": None}
    owned = kwok_resources.owned_manifest(manifest, "lab")
    assert owned["metadata"]["labels"] == {"why": "tests", objects.MANAGED_BY: "kwokfleet", objects.FLEET: "lab"}
    assert owned["spec"] == LOGS["spec"]
    assert "status" not in owned


def test_defaults_in_lists_are_set() -> None:
    """The API server sets them too, and lists are compared as a whole."""
    metric = {"name": "one", "kind": "gauge", "value": "1.0"}
    manifest = {**LOGS, "kind": "Metric", "spec": {"path": "/metrics/mine", "metrics": [metric]}}
    assert kwok_resources.check(manifest) == []
    assert kwok_resources.owned_manifest(manifest, "lab")["spec"]["metrics"] == [{**metric, "dimension": "node"}]


@pytest.mark.parametrize(
    ("value", "label", "rules"),
    [
        ('pod.Usage("cpu") + node.CumulativeUsage("cpu") * 2.0', "pod.metadata.name", []),
        ("StartedContainersTotal(node.metadata.name)", "container.name", []),
        ('container.resources.requests["cpu"]', '"fixed"', []),
        ("self.metadata.name", "node.metadata.name", ["kwok-bad-cel"]),
        ("pod.Use('cpu')", "pod.metadata.nam", ["kwok-bad-cel", "kwok-bad-cel"]),
        ("node.metadata.name", "1", ["kwok-cel-yields", "kwok-cel-yields"]),
    ],
)
def test_cel_of_a_metric_is_checked(value: str, label: str, rules: list[str]) -> None:
    """At runtime, kwok would return 0 without an error. Node, pod, container and their usage are defined."""
    metric = {"name": "one", "kind": "gauge", "value": value, "labels": [{"name": "who", "value": label}]}
    manifest = {**LOGS, "kind": "Metric", "spec": {"path": "/metrics/mine", "metrics": [metric]}}
    assert [finding.rule for finding in kwok_resources.check(manifest)] == rules


def test_the_cel_of_usage_is_valid() -> None:
    """Of the rendered ClusterResourceUsage and Metric."""
    manifests = [manifest for manifest in desired(tree(usage={"cpu": 1})) if manifest["kind"] in kwok_resources.KINDS]
    assert len(manifests) == 2
    assert [finding for manifest in manifests for finding in kwok_resources.check(manifest)] == []


def test_the_namespace_of_an_object_is_rendered() -> None:
    """As for Waves."""
    logs = {**LOGS, "kind": "Logs", "metadata": {"name": "pod", "namespace": "web"}}
    manifests = desired(tree(kwok_resources.owned_manifest(logs, "lab")))
    assert [manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Namespace"] == ["web"]


def test_a_duplicate_name_is_a_finding() -> None:
    """At the second object."""
    first, second = Document("a.yaml", LOGS), Document("b.yaml", LOGS)
    conflicts = list(kwok_resources.check_conflicts([(LOGS, first), (LOGS, second)], uses=False))
    assert [(document.path, finding.rule) for document, finding in conflicts] == [("b.yaml", "duplicate-name")]


def test_logs_without_a_port_are_a_finding() -> None:
    """They cannot be read without kwok's server."""
    assert [finding.rule for finding in kwok_resources.check_reachable([LOGS], controller())] == ["unreachable-kwok"]
    assert list(kwok_resources.check_reachable([LOGS], controller(port=10247))) == []


# flags


def test_only_declared_kinds_are_enabled() -> None:
    """Exec runs commands: its kinds and endpoints are off by default."""
    runs, shard = KwokControllerSpec(), sharding.ShardSpec()
    logs = kwok_resources.owned_manifest(LOGS, "lab")
    assert render.kwok_kinds(tree(logs)) == ("ClusterLogs",)
    assert '"enableDebuggingHandlers":false' in flags.config_file(runs, shard, (), ("ClusterResourceUsage", "Metric"))
    assert '"enableDebuggingHandlers":true' in flags.config_file(runs, shard, (), ("ClusterLogs",))
    assert "--enable-crds=Stage,ClusterLogs" in flags.arguments(runs, shard, render.kwok_kinds(tree(logs)))


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": ("Metric",)},
        {"mark": "another"},
        {"spec": controller(port=10247)},
        {"spec": controller(port=10248, listen="0.0.0.0")},  # noqa: S104  # the tested value
    ],
)
def test_a_changed_static_configuration_needs_a_restart(change: Manifest) -> None:
    """Flags, address and Metrics."""
    before: Manifest = {"program": Path("kwok"), "spec": controller(), "kubeconfig": None}
    assert backend.DesiredKwok(**before | change).differs(backend.DesiredKwok(**before), 0)
    assert not backend.DesiredKwok(**before).differs(backend.DesiredKwok(**before), 0)


def test_the_static_digest_covers_only_metrics() -> None:
    """Changes of usage need no restart of kwok."""
    manifests = desired(tree(usage={"cpu": 1}))
    assert flags.static_digest(manifests)
    assert flags.static_digest(manifests) == flags.static_digest(reversed(manifests))
    assert not flags.static_digest(manifest for manifest in manifests if manifest["kind"] != "Metric")
