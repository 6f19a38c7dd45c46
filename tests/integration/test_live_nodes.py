"""Templates from live nodes: `kwokfleet render` reads a real cluster, keeps a node's kind and drops its identity."""

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
"""What must not be found in a copy."""


@pytest.fixture
def live(box: Sandbox) -> Manifest:
    """Put a node into the cluster as a kubelet and a cloud would have made it, and return it as it is there."""
    parts = YAML(typ="safe").load(LIVE)
    node = box.manifest("v1", "Node", "live", spec=parts["spec"], status=parts["status"])
    node["metadata"]["labels"] |= parts["metadata"]["labels"]
    node["metadata"]["annotations"] = parts["metadata"]["annotations"]
    made: Manifest = json.loads(box.cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(node)))
    return made


@pytest.fixture
def fleet(tmp_path: Path, box: Sandbox) -> Path:
    """Write a fleet file that takes the box's nodes as templates."""
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("BOX", box.name))
    return path


@pytest.fixture
def program(kwokfleet: cli.Cli, cluster: ControlPlane) -> cli.Cli:
    """Run the command line for the session's cluster."""
    return cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})


def nodes(program: cli.Cli, fleet: Path, *arguments: str) -> list[Manifest]:
    """Return the nodes that a fleet file stands for."""
    text = program.ok("render", str(fleet), "--kind", "Node", "--output", "json", "--now", NOW, *arguments)
    return [json.loads(line) for line in text.splitlines()]


def test_a_copy_is_of_the_live_nodes_kind(program: cli.Cli, live: Manifest, fleet: Path) -> None:
    """Capacity, what of it can be allocated, labels and system are the live node's; the template lies over them."""
    for node in nodes(program, fleet):
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


def test_nothing_of_a_live_nodes_identity_is_in_a_copy(
    program: cli.Cli, cluster: ControlPlane, live: Manifest, fleet: Path
) -> None:
    """Names, addresses, ids, images, volumes, states: each copy is itself, Ready, and the API server takes it."""
    copies = nodes(program, fleet)
    for number, node in enumerate(copies):
        name = f"copies-like-live-{number}"
        text = json.dumps(node)
        assert IDENTITY.findall(text) == []
        assert live["metadata"]["uid"] not in text
        assert live["metadata"]["name"] not in text
        assert node["metadata"]["name"] == node["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert node["spec"]["providerID"] == f"kwok://{name}"
        assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"
    strict = ("--server-side", "--dry-run=server", "--validate=strict", "--output=name", "--filename", "-")
    assert len(cluster.kubectl("apply", *strict, stdin="\n".join(map(json.dumps, copies))).splitlines()) == 2


def test_a_saved_list_gives_the_same_bytes(
    program: cli.Cli, cluster: ControlPlane, live: Manifest, fleet: Path, tmp_path: Path
) -> None:
    """`kubectl get nodes -o json`, and no cluster at all."""
    saved = tmp_path / "nodes.json"
    saved.write_text(cluster.kubectl("get", "nodes", "--output", "json"))
    command = ("render", str(fleet), "--now", NOW)
    assert program.ok(*command, "--live", str(saved), KUBECONFIG="/no/such/file") == program.ok(*command)


def test_several_live_nodes_take_turns(program: cli.Cli, box: Sandbox, live: Manifest, fleet: Path) -> None:
    """By their names, so that node 0 is always like the first of them."""
    other = box.manifest("v1", "Node", "another", status={"capacity": {"cpu": "96"}, "allocatable": {"cpu": "95"}})
    box.cluster.apply(other)
    assert [node["status"]["capacity"]["cpu"] for node in nodes(program, fleet)] == ["96", "16"]


def test_fake_nodes_are_no_templates(program: cli.Cli, box: Sandbox, fleet: Path) -> None:
    """A fleet does not copy its own copies: nothing that matches is a line of the file, and exit code 2."""
    fake = box.manifest("v1", "Node", "fake")
    fake["metadata"]["annotations"] = {"kwok.x-k8s.io/node": "fake"}
    box.cluster.apply(fake)
    done = program.run("render", str(fleet))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(rf"^{fleet}:9:\d+: spec.nodePools\[0\].templateFrom.nodes: none of the cluster's", done.stderr)
    assert "kubectl get nodes --show-labels" in done.stderr


@pytest.fixture
def trouble(program: cli.Cli, fleet: Path) -> Callable[..., None]:
    """Return what renders a fleet file in vain, and gives what was said; what hangs is killed, and no answer."""

    def run(*, wanted: str, **variables: str) -> None:
        done = program.run("render", str(fleet), **variables)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "Traceback" not in done.stderr
        error, following = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert following.startswith(" next: ")
        assert wanted in error

    return run


def kubeconfig(path: Path, server: str, **user: str) -> str:
    """Write a kubeconfig for *server*, whose certificate nobody looks at."""
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


def test_a_context_that_is_not_there_is_named(trouble: Callable[..., None], fleet: Path) -> None:
    """Exit code 4, a sentence and a next step."""
    fleet.write_text(fleet.read_text().replace("templateFrom: {", "templateFrom: {context: prod, "))
    trouble(wanted="prod")


@pytest.mark.parametrize("content", [None, "", "nothing: here", "{", "- a list", "\0", "current-context: gone"])
def test_a_kubeconfig_that_cannot_be_used_is_named(
    trouble: Callable[..., None], tmp_path: Path, content: str | None
) -> None:
    """Not there, empty, of another kind, broken: each is said of the file, not of a pod that this is not."""
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    trouble(wanted=str(path), KUBECONFIG=str(path))


def test_a_server_that_is_not_there_is_named(trouble: Callable[..., None], tmp_path: Path) -> None:
    """Nobody listens at its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    trouble(wanted=f"127.0.0.1:{port}", KUBECONFIG=kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}"))


def test_a_server_that_never_answers_is_given_up(trouble: Callable[..., None], tmp_path: Path) -> None:
    """It takes the connection, and then says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        trouble(wanted=address, KUBECONFIG=kubeconfig(tmp_path / "config", f"https://{address}"))


def test_without_rights_the_refusal_is_said(trouble: Callable[..., None], box: Sandbox, tmp_path: Path) -> None:
    """A service account that may not list nodes."""
    token = box.cluster.kubectl("create", "token", "default", "--namespace", box.name).strip()
    server = box.cluster.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
    path = kubeconfig(tmp_path / "config", server, token=token)
    trouble(wanted="refused to list nodes: 403 nodes is forbidden", KUBECONFIG=path)
