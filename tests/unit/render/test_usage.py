"""Usage and kwok's own objects, purely: what is rendered, what is read, and what kwok is started with."""

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
    made, wrong = decode.to_model(
        Fleet,
        {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec},
    )
    assert made is not None, wrong
    return made


def controller(**fields: Any) -> KwokControllerSpec:  # noqa: ANN401  # fields of a KwokController
    """Return how kwok runs."""
    made, wrong = decode.to_model(KwokControllerSpec, fields)
    assert made is not None, wrong
    return made


def tree(*raw: Manifest, runs: KwokControllerSpec | None = None, **pool: Any) -> render.Tree:  # noqa: ANN401
    """Return a tree of one Fleet whose Stages are nobody's concern here."""
    sets = ("node-fast", "node-heartbeat-with-lease", "pod-fast", "pod-recover")
    return render.Tree(
        (fleet(**pool),), runs or KwokControllerSpec(), dict.fromkeys(sets, ()), kwok_objects={"lab": raw}
    )


def desired(made: render.Tree) -> list[Manifest]:
    """Return everything that should be there."""
    return list(render.Renderer().desired(made, NOW).values())


def nodes(made: render.Tree) -> list[Manifest]:
    """Return the nodes that should be there."""
    return [each for each in desired(made) if each["kind"] == "Node"]


# usage


def test_without_usage_nothing_is_rendered_for_it() -> None:
    """A tree that says nothing of it has what it had."""
    assert {each["kind"] for each in desired(tree())} == {"Node"}
    assert render.kwok_kinds(tree()) == ()


def test_usage_is_one_object_and_one_metric_for_all_fleets() -> None:
    """The same, whatever is used: two of them would be a matter of luck."""
    one = [each for each in desired(tree(usage={"cpu": "60%"})) if each["kind"] != "Node"]
    other = [each for each in desired(tree(usage={"memory": "1Gi"})) if each["kind"] != "Node"]
    assert one == other
    assert [each["kind"] for each in one] == ["ClusterResourceUsage", "Metric"]
    assert render.kwok_kinds(tree(usage={"cpu": 1})) == ("ClusterResourceUsage", "Metric")


def test_a_pool_s_usage_is_told_by_its_nodes() -> None:
    """Amounts as they are, shares as numbers: that is what the expression can read."""
    found = nodes(tree(usage={"cpu": "60%", "memory": "1.5Gi"}))[0]["metadata"]["annotations"]
    assert found["kwokfleet.dev/usage-cpu-share"] == "0.6"
    assert found["kwokfleet.dev/usage-memory"] == "1.5Gi"


def test_the_metric_has_the_names_that_a_kubelet_has() -> None:
    """metrics-server reads these, and a node or container without one of them is left out."""
    [metric] = [each for each in desired(tree(usage={"cpu": 1})) if each["kind"] == "Metric"]
    names = {each["name"] for each in metric["spec"]["metrics"]}
    assert names >= {
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    }
    assert all(each["dimension"] for each in metric["spec"]["metrics"])


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_an_expression_is_short_enough_for_kwok(resource: str) -> None:
    """Far below what the compiler of CEL gives up at."""
    [made] = [each for each in desired(tree(usage={"cpu": 1})) if each["kind"] == "ClusterResourceUsage"]
    assert len(made["spec"]["usages"][0]["usage"][resource]["expression"]) < cel.MAX_LENGTH / 10


# where kwok answers


def test_without_a_port_nodes_point_nowhere() -> None:
    """They show an address that is made up, and their name."""
    node = nodes(tree())[0]
    assert "daemonEndpoints" not in node["status"]
    assert {each["type"] for each in node["status"]["addresses"]} == {"InternalIP", "Hostname"}


def test_with_a_port_nodes_point_at_their_kwok() -> None:
    """On loopback, and without a hostname, which the API server would ask first."""
    node = nodes(tree(runs=controller(port=10247)))[2]
    assert node["status"]["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10247}}
    path = node["metadata"]["annotations"]["metrics.k8s.io/resource-metrics-path"]
    assert path == "/metrics/nodes/lab-general-2/metrics/resource"


def test_each_shard_has_a_port_and_its_nodes_show_it() -> None:
    """The process that drives a node is the one that answers for it."""
    runs = controller(port=10247, shards=3)
    for node in nodes(tree(runs=runs, replicas=20)):
        shard = sharding.ShardSpec(sharding.shard_index(node["metadata"]["name"], 3), 3)
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        assert port == flags.server_address(runs, shard).port
        assert f"--node-port={port}" in flags.arguments(runs, shard, ())


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({}, ("127.0.0.1", 0)),
        ({"port": 10247}, ("127.0.0.1", 10247)),
        ({"port": 10247, "nodeIP": "192.0.2.7"}, ("192.0.2.7", 10247)),
        ({"port": 10247, "nodeIP": "192.0.2.7", "listen": "0.0.0.0"}, ("0.0.0.0", 10247)),  # noqa: S104  # what is asked for
    ],
)
def test_kwok_listens_on_loopback_unless_told_otherwise(fields: Manifest, at: tuple[str, int]) -> None:
    """Nobody has to log in there."""
    assert flags.server_address(controller(**fields), sharding.ShardSpec()) == at


def test_who_listens_everywhere_is_found_on_loopback() -> None:
    """Also by IPv6, whose addresses are put in brackets."""
    assert flags.ServerAddress("0.0.0.0", 80).local.text == "127.0.0.1:80"  # noqa: S104  # what is asked for
    assert flags.ServerAddress("::", 80).local.text == "[::1]:80"


# kwok's own objects


@pytest.mark.parametrize("kind", kwok_resources.KINDS)
def test_a_kind_is_ranked_before_nodes_and_after_its_namespace(kind: str) -> None:
    """Those that act cluster-wide go with the Stages."""
    namespaced = kind in objects.KWOK_NAMESPACED_KINDS
    assert objects.apply_rank("Namespace" if namespaced else "CustomResourceDefinition") < objects.apply_rank(kind)
    assert objects.apply_rank(kind) < objects.apply_rank("Node" if namespaced else "Namespace")


def test_an_object_becomes_ours() -> None:
    """With our label and its Fleet's, and its own kept; without what is null."""
    given = {**LOGS, "metadata": {"name": "all", "labels": {"why": "tests"}}, "status": {}}
    given["spec"] = {**given["spec"], "selector": None}
    made = kwok_resources.owned_manifest(given, "lab")
    assert made["metadata"]["labels"] == {"why": "tests", objects.MANAGED_BY: "kwokfleet", objects.FLEET: "lab"}
    assert made["spec"] == LOGS["spec"]
    assert "status" not in made


def test_defaults_inside_lists_are_filled_in() -> None:
    """The API server does it too, and a list is compared as a whole."""
    metric = {"name": "one", "kind": "gauge", "value": "1.0"}
    given = {**LOGS, "kind": "Metric", "spec": {"path": "/metrics/mine", "metrics": [metric]}}
    assert kwok_resources.check(given) == []
    assert kwok_resources.owned_manifest(given, "lab")["spec"]["metrics"] == [{**metric, "dimension": "node"}]


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
def test_cel_of_a_metric_is_compiled_before_kwok_does(value: str, label: str, rules: list[str]) -> None:
    """It knows a node, a pod and a container, and what they use; kwok would show 0, and say nothing."""
    metric = {"name": "one", "kind": "gauge", "value": value, "labels": [{"name": "who", "value": label}]}
    given = {**LOGS, "kind": "Metric", "spec": {"path": "/metrics/mine", "metrics": [metric]}}
    assert [each.rule for each in kwok_resources.check(given)] == rules


def test_our_own_cel_compiles() -> None:
    """What usage is shown by."""
    made = [each for each in desired(tree(usage={"cpu": 1})) if each["kind"] in kwok_resources.KINDS]
    assert len(made) == 2
    assert [finding for each in made for finding in kwok_resources.check(each)] == []


def test_a_namespace_that_an_object_needs_is_made() -> None:
    """As for waves."""
    given = {**LOGS, "kind": "Logs", "metadata": {"name": "pod", "namespace": "web"}}
    found = desired(tree(kwok_resources.owned_manifest(given, "lab")))
    assert [each["metadata"]["name"] for each in found if each["kind"] == "Namespace"] == ["web"]


def test_two_objects_of_one_name_are_one_too_many() -> None:
    """Said at the second."""
    first, second = Document("a.yaml", LOGS), Document("b.yaml", LOGS)
    found = list(kwok_resources.check_conflicts([(LOGS, first), (LOGS, second)], uses=False))
    assert [(document.path, finding.rule) for document, finding in found] == [("b.yaml", "duplicate-name")]


def test_logs_without_a_way_to_kwok_are_warned_of() -> None:
    """Nobody could read them."""
    assert [each.rule for each in kwok_resources.check_reachable([LOGS], controller())] == ["unreachable-kwok"]
    assert list(kwok_resources.check_reachable([LOGS], controller(port=10247))) == []


# what kwok is started with


def test_kwok_follows_only_what_is_declared() -> None:
    """Exec runs commands: it is off unless a file declares it, and so are the endpoints for it."""
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
        {"spec": controller(port=10248, listen="0.0.0.0")},  # noqa: S104  # what is asked for
    ],
)
def test_what_kwok_reads_once_takes_a_restart(change: Manifest) -> None:
    """Its flags, its address, and Metrics, though it follows them."""
    before: Manifest = {"program": Path("kwok"), "spec": controller(), "kubeconfig": None}
    assert backend.DesiredKwok(**before | change).differs(backend.DesiredKwok(**before), 0)
    assert not backend.DesiredKwok(**before).differs(backend.DesiredKwok(**before), 0)


def test_metrics_are_what_kwok_reads_once() -> None:
    """Usage may change under way."""
    made = desired(tree(usage={"cpu": 1}))
    assert flags.static_digest(made)
    assert flags.static_digest(made) == flags.static_digest(reversed(made))
    assert not flags.static_digest(each for each in made if each["kind"] != "Metric")
