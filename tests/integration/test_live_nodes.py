"""Templates from live nodes: `kwokfleet render` copies the hardware and drops the identity of a node."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.harness import cli
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

NOW = "2026-03-02T06:00:00Z"
Manifest = dict[str, Any]

FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: copies}
spec:
  nodePools:
    - name: like-live
      replicas: 2
      templateFrom: {nodes: {matchLabels: {kwokfleet.dev/test: BOX}}}
      template:
        metadata: {labels: {disk: nvme, tier: overlaid}}
        spec: {taints: [{key: dedicated, value: tests, effect: NoSchedule}]}
        status: {capacity: {nvidia.com/gpu: "16"}, allocatable: {nvidia.com/gpu: "16"}}
"""
LIVE = """
metadata:
  labels:
    kubernetes.io/arch: arm64
    kubernetes.io/hostname: ip-10-1-2-3.internal
    kubernetes.io/os: linux
    node.kubernetes.io/instance-type: m7g.4xlarge
    example.com/instance-id: i-0123456789abcdef0
    tier: gold
    topology.kubernetes.io/zone: eu-1a
  annotations:
    csi.volume.kubernetes.io/nodeid: '{"ebs.csi.aws.com":"i-0123456789abcdef0"}'
    volumes.kubernetes.io/controller-managed-attach-detach: "true"
    alpha.kubernetes.io/provided-node-ip: 10.1.2.3
    cluster-autoscaler.kubernetes.io/scale-down-disabled: "true"
spec:
  podCIDR: 10.4.3.0/24
  podCIDRs: [10.4.3.0/24]
  providerID: aws:///eu-1a/i-0123456789abcdef0
  unschedulable: true
  taints:
    - {key: node.kubernetes.io/unreachable, effect: NoExecute, timeAdded: "2026-01-02T03:04:05Z"}
    - {key: team, value: blue, effect: NoSchedule}
    - {key: ToBeDeletedByClusterAutoscaler, value: "1700000000", effect: NoSchedule}
status:
  addresses:
    - {type: InternalIP, address: 10.1.2.3}
    - {type: Hostname, address: ip-10-1-2-3.internal}
  capacity: {cpu: "16", memory: 64Gi, pods: "234", ephemeral-storage: 100Gi, attachable-volumes-aws-ebs: "25"}
  allocatable: {cpu: 15890m, memory: 60Gi, pods: "234", ephemeral-storage: 95Gi, attachable-volumes-aws-ebs: "25"}
  conditions:
    - {type: Ready, status: Unknown, reason: NodeStatusUnknown, message: Kubelet stopped posting node status.}
    - {type: KernelDeadlock, status: "False", reason: KernelHasNoDeadlock, message: kernel has no deadlock}
  daemonEndpoints: {kubeletEndpoint: {Port: 10250}}
  images:
    - {names: ["registry/secret-app@sha256:0123"], sizeBytes: 123456}
  nodeInfo:
    architecture: arm64
    bootID: 6ba7b810-9dad-11d1-80b4-00c04fd430c8
    containerRuntimeVersion: containerd://2.0.5
    kernelVersion: 6.12.40
    kubeProxyVersion: ""
    kubeletVersion: v1.36.1
    machineID: ec2a1b2c3d4e5f60718293a4b5c6d7e8
    operatingSystem: linux
    osImage: Amazon Linux 2023
    systemUUID: ec2a1b2c-3d4e-5f60-7182-93a4b5c6d7e8
  volumesAttached:
    - {name: kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b2c, devicePath: ""}
  volumesInUse: [kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b2c]
"""
IDENTITY = re.compile(
    "i-0123|ip-10-1-2-3|10[.]1[.]2[.]3|10[.]4[.]3|aws|ec2a1b2c|6ba7b810|vol-0a1b|secret-app|10250|25"
    "|unreachable|ToBeDeleted|Unknown|KernelDeadlock|attach|unschedulable"
)
"""Text that must not be in a copy."""


@pytest.fixture
def live_node(box: Sandbox) -> Manifest:
    """Create a node with the fields of a kubelet and a cloud provider, and return it."""
    parts = YAML(typ="safe").load(LIVE)
    node = box.manifest("v1", "Node", "live", spec=parts["spec"], status=parts["status"])
    node["metadata"]["labels"] |= parts["metadata"]["labels"]
    node["metadata"]["annotations"] = parts["metadata"]["annotations"]
    created: Manifest = json.loads(box.cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(node)))
    return created


@pytest.fixture
def fleet(tmp_path: Path, box: Sandbox) -> Path:
    """Write a fleet file with the sandbox's nodes as templates."""
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("BOX", box.name))
    return path


@pytest.fixture
def program(kwokfleet: cli.Cli, cluster: ControlPlane) -> cli.Cli:
    """Return the CLI for the session's cluster."""
    return cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})


def rendered_nodes(program: cli.Cli, fleet: Path, *arguments: str) -> list[Manifest]:
    """Return the rendered nodes of a fleet file."""
    text = program.ok("render", str(fleet), "--kind", "Node", "--output", "json", "--now", NOW, *arguments)
    return [json.loads(line) for line in text.splitlines()]


def test_a_copy_has_the_resources_labels_and_system_of_the_live_node(
    program: cli.Cli, live_node: Manifest, fleet: Path
) -> None:
    """The fields of the template override them."""
    for node in rendered_nodes(program, fleet):
        labels, status = node["metadata"]["labels"], node["status"]
        assert labels["node.kubernetes.io/instance-type"] == "m7g.4xlarge"
        assert labels["kubernetes.io/arch"] == labels["beta.kubernetes.io/arch"] == "arm64"
        assert (labels["topology.kubernetes.io/zone"], labels["disk"], labels["tier"]) == ("eu-1a", "nvme", "overlaid")
        gpu = {"nvidia.com/gpu": "16"}
        assert status["capacity"] == {"cpu": "16", "memory": "64Gi", "pods": "234", "ephemeral-storage": "100Gi"} | gpu
        assert status["allocatable"] == status["capacity"] | {
            "cpu": "15890m",
            "memory": "60Gi",
            "ephemeral-storage": "95Gi",
        }
        assert (status["nodeInfo"]["osImage"], status["nodeInfo"]["kubeletVersion"]) == ("Amazon Linux 2023", "v1.36.1")
        assert {taint["key"] for taint in node["spec"]["taints"]} == {"team", "dedicated", "kwok.x-k8s.io/node"}
        assert node["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/scale-down-disabled"] == "true"


def test_a_copy_has_nothing_of_the_live_nodes_identity(
    program: cli.Cli, cluster: ControlPlane, live_node: Manifest, fleet: Path
) -> None:
    """No names, addresses, ids, images, volumes or conditions; the API server accepts the copy."""
    copies = rendered_nodes(program, fleet)
    for number, node in enumerate(copies):
        name = f"copies-like-live-{number}"
        text = json.dumps(node)
        assert IDENTITY.findall(text) == []
        assert live_node["metadata"]["uid"] not in text
        assert live_node["metadata"]["name"] not in text
        assert node["metadata"]["name"] == node["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert node["spec"]["providerID"] == f"kwok://{name}"
        assert {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}["Ready"] == "True"
    strict = ("--server-side", "--dry-run=server", "--validate=strict", "--output=name", "--filename", "-")
    assert len(cluster.kubectl("apply", *strict, stdin="\n".join(map(json.dumps, copies))).splitlines()) == 2


def test_a_saved_node_list_renders_the_same_bytes(
    program: cli.Cli, cluster: ControlPlane, live_node: Manifest, fleet: Path, tmp_path: Path
) -> None:
    """`kubectl get nodes -o json` replaces the cluster."""
    saved = tmp_path / "nodes.json"
    saved.write_text(cluster.kubectl("get", "nodes", "--output", "json"))
    command = ("render", str(fleet), "--now", NOW)
    assert program.ok(*command, "--live", str(saved), KUBECONFIG="/no/such/file") == program.ok(*command)


def test_several_live_nodes_are_used_in_turn(program: cli.Cli, box: Sandbox, live_node: Manifest, fleet: Path) -> None:
    """Sorted by name, so that node 0 always copies the first."""
    other = box.manifest("v1", "Node", "another", status={"capacity": {"cpu": "96"}, "allocatable": {"cpu": "95"}})
    box.cluster.apply(other)
    assert [node["status"]["capacity"]["cpu"] for node in rendered_nodes(program, fleet)] == ["96", "16"]


def test_fake_nodes_are_not_templates(program: cli.Cli, box: Sandbox, fleet: Path) -> None:
    """A fleet does not copy its own nodes: exit code 2 with the line of the file."""
    fake = box.manifest("v1", "Node", "fake")
    fake["metadata"]["annotations"] = {"kwok.x-k8s.io/node": "fake"}
    box.cluster.apply(fake)
    done = program.run("render", str(fleet))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(rf"^{fleet}:9:\d+: spec.nodePools\[0\].templateFrom.nodes: none of the cluster's", done.stderr)
    assert "kubectl get nodes --show-labels" in done.stderr


@pytest.fixture
def assert_render_fails(program: cli.Cli, fleet: Path) -> Callable[..., None]:
    """Return a function that renders the fleet and checks the error: exit code 4, a message and a hint."""

    def run(*, message: str, **variables: str) -> None:
        done = program.run("render", str(fleet), **variables)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "Traceback" not in done.stderr
        error, hint = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert hint.startswith(" next: ")
        assert message in error

    return run


def kubeconfig(path: Path, server: str, **user: str) -> str:
    """Write a kubeconfig for *server* without certificate verification."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(content))
    return str(path)


def test_an_unknown_context_is_an_error_with_its_name(assert_render_fails: Callable[..., None], fleet: Path) -> None:
    """Exit code 4, a message and a hint."""
    fleet.write_text(fleet.read_text().replace("templateFrom: {", "templateFrom: {context: prod, "))
    assert_render_fails(message="prod")


@pytest.mark.parametrize("content", [None, "", "nothing: here", "{", "- a list", "\0", "current-context: gone"])
def test_an_invalid_kubeconfig_is_an_error_with_its_path(
    assert_render_fails: Callable[..., None], tmp_path: Path, content: str | None
) -> None:
    """Missing, empty, of another kind or broken; the in-cluster configuration is not mentioned."""
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    assert_render_fails(message=str(path), KUBECONFIG=str(path))


def test_a_refused_connection_is_an_error_with_the_address(
    assert_render_fails: Callable[..., None], tmp_path: Path
) -> None:
    """No process listens on the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert_render_fails(
        message=f"127.0.0.1:{port}", KUBECONFIG=kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}")
    )


def test_a_silent_server_is_an_error_with_the_address(assert_render_fails: Callable[..., None], tmp_path: Path) -> None:
    """It accepts the connection and sends nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert_render_fails(message=address, KUBECONFIG=kubeconfig(tmp_path / "config", f"https://{address}"))


def test_missing_rights_are_an_error_with_the_rejection(
    assert_render_fails: Callable[..., None], box: Sandbox, tmp_path: Path
) -> None:
    """A ServiceAccount without the right to list nodes."""
    token = box.cluster.kubectl("create", "token", "default", "--namespace", box.name).strip()
    server = box.cluster.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
    path = kubeconfig(tmp_path / "config", server, token=token)
    assert_render_fails(message="refused to list nodes: 403 nodes is forbidden", KUBECONFIG=path)
