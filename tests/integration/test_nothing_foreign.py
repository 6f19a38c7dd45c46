"""Nodes that kwokfleet did not create are never changed, by any command."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import objects
from tests.harness import cli, in_process_sync, waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]

KUBELET = {
    "labels": {
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "ip-10-1-2-3",
        "node.kubernetes.io/instance-type": "m7i.4xlarge",
        "topology.kubernetes.io/zone": "eu-1a",
    },
    "annotations": {
        "csi.volume.kubernetes.io/nodeid": '{"ebs.csi.aws.com":"i-0123"}',
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    },
}
SPEC = {"providerID": "aws:///eu-1a/i-0123", "podCIDR": "10.200.0.0/24", "podCIDRs": ["10.200.0.0/24"]}
STATUS = {
    "capacity": {"cpu": "16", "memory": "64Gi", "pods": "234"},
    "allocatable": {"cpu": "15890m", "memory": "60Gi", "pods": "234"},
    # No kubelet updates it: the node controllers must have no reason to write to the node.
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
    "nodeInfo": {
        "architecture": "amd64", "bootID": "1", "containerRuntimeVersion": "containerd://2", "kernelVersion": "6",
        "kubeProxyVersion": "", "kubeletVersion": "v1.36.1", "machineID": "2", "operatingSystem": "linux",
        "osImage": "Linux", "systemUUID": "3",
    },
}  # fmt: skip
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: NAME}
spec:
  adopt: ADOPT
  prune: {maxPercent: 100}
  nodePools:
    - {name: pool, replicas: SIZE, nodeName: "NAME-{index}", labels: {mine: "yes"}, adopt: ADOPT}
"""
VARIANTS: dict[str, dict[str, Any]] = {
    "no kwokfleet labels": {},
    "our label alone": {"labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
    "all our labels": {
        "labels": {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: "NAME", objects.POOL: "pool"},
        "annotations": {objects.INDEX: "0"},
    },
    "our label, and not quite fake": {
        "labels": {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: "NAME", objects.POOL: "pool"},
        "annotations": {objects.FAKE_NODE_KEY: "real"},
    },
}


class RealNodeTestbed:
    """A node without the fake annotation, and a fleet file with a node of that name."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program = cluster, program
        self.fleet = f"t-{secrets.token_hex(4)}"
        self.node = f"{self.fleet}-0"
        self.file = folder / "fleets" / "fleet.yaml"
        self.file.parent.mkdir()
        (self.file.parent / "other.yaml").write_text(self._text(f"{self.fleet}-other", 0, adopt=False))

    @staticmethod
    def _text(name: str, size: int, *, adopt: bool) -> str:
        return FLEET.replace("NAME", name).replace("SIZE", str(size)).replace("ADOPT", str(adopt).lower())

    def write(self, size: int, *, adopt: bool = False) -> None:
        """Write the fleet file."""
        self.file.write_text(self._text(self.fleet, size, adopt=adopt))

    def create_node(self, variant: dict[str, Any]) -> None:
        """Create the node as a kubelet does, and wait until the node controllers have removed its taint."""
        text = json.dumps({key: KUBELET[key] | variant.get(key, {}) for key in KUBELET})
        metadata = {"name": self.node, **json.loads(text.replace("NAME", self.fleet))}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": SPEC, "status": STATUS}
        self.cluster.kubectl("create", "--field-manager=kubelet", "-f", "-", stdin=json.dumps(node))
        waiting.until(lambda: "taints" not in self.live_node()["spec"])

    def live_node(self) -> Manifest:
        """Return the node with its managed fields, which show every write."""
        return self.cluster.get("node", self.node, "--show-managed-fields")

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command on the files; return its exit code and output."""
        where = [] if arguments[0] in ("delete", "approve", "get") else [str(self.file.parent)]
        done = self.program.run(arguments[0], *where, *arguments[1:])
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def testbed(
    kwokfleet: cli.Cli, cluster: ControlPlane, tmp_path: Path, kinds: ControlPlane
) -> Iterator[RealNodeTestbed]:
    """Return a testbed; delete its node and the managed objects at the end."""
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    testbed = RealNodeTestbed(cluster, program, tmp_path)
    yield testbed
    cluster.kubectl("delete", "node", testbed.node, "--ignore-not-found")
    in_process_sync.delete_managed_objects(cluster)


COMMANDS = (("diff", "--details"), ("sync", "--dry-run=server"), ("sync",), ("sync", "--yes", "--no-prune"))


@pytest.mark.parametrize("adopt", [False, True], ids=["", "adopt"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_command_changes_a_real_node_with_a_desired_name(
    testbed: RealNodeTestbed,
    variant: str,
    adopt: bool,  # noqa: FBT001  # the example
) -> None:
    """Exit code 5 names it, the node stays byte-identical, and the other nodes are created."""
    testbed.create_node(VARIANTS[variant])
    before = testbed.live_node()
    testbed.write(2, adopt=adopt)
    for command in COMMANDS:
        code, output = testbed.run(*command)
        assert (code, testbed.node in output) == (5, True), f"{command}: {output}"
        assert "is a real node" in output or "not managed by kwokfleet" in output or "not the annotation" in output
        assert testbed.live_node() == before, command
    assert testbed.cluster.get("node", f"{testbed.fleet}-1")["metadata"]["labels"]["mine"] == "yes"


@pytest.mark.parametrize("variant", list(VARIANTS)[1:])
def test_no_command_deletes_a_real_node_with_our_label(testbed: RealNodeTestbed, variant: str) -> None:
    """Neither by scale-down, a renamed pool, a removed file, an approval, nor deletion of the fleet."""
    testbed.create_node(VARIANTS[variant])
    before = testbed.live_node()
    testbed.write(2)
    testbed.run("sync", "--yes")
    testbed.write(0)
    assert testbed.run("sync", "--yes")[0] == 5
    testbed.file.write_text(testbed.file.read_text().replace("name: pool", "name: renamed"))
    assert testbed.run("sync", "--yes")[0] == 5
    testbed.file.unlink()
    assert testbed.run("sync", "--yes")[0] == 5
    withheld = json.loads(testbed.program.run("diff", str(testbed.file.parent), "-o", "json").stdout)["withheld"]
    digests = [part for item in withheld if "digest" in item for part in ("--approve", item["digest"])]
    assert testbed.run("sync", "--yes", *digests)[0] == 5
    testbed.run("delete", testbed.fleet, "--yes")
    assert testbed.live_node() == before


def test_delete_reports_the_real_node_it_leaves(testbed: RealNodeTestbed) -> None:
    """Exit code 5; the fake nodes are deleted."""
    testbed.write(3)
    testbed.create_node(VARIANTS["all our labels"])
    before = testbed.live_node()
    testbed.run("sync", "--yes")
    code, output = testbed.run("delete", testbed.fleet, "--yes")
    assert (code, testbed.node in output) == (5, True), output
    assert testbed.live_node() == before
    remaining = testbed.cluster.get("nodes", "--selector", f"{objects.FLEET}={testbed.fleet}")["items"]
    assert [node["metadata"]["name"] for node in remaining] == [testbed.node]


def test_a_foreign_fake_node_is_adopted_only_on_request(testbed: RealNodeTestbed) -> None:
    """By `adopt: true`, and only if no immutable field differs."""
    testbed.create_node({"annotations": {objects.FAKE_NODE_KEY: objects.FAKE_NODE_VALUE}})
    before = testbed.live_node()
    testbed.write(1)
    code, output = testbed.run("sync", "--yes")
    assert (code, "already exists and is not managed by kwokfleet" in output) == (5, True)
    testbed.write(1, adopt=True)
    code, output = testbed.run("sync", "--yes")
    assert (code, "cannot be adopted: spec.providerID is immutable" in output) == (5, True), output
    assert testbed.live_node() == before
    testbed.file.write_text(testbed.file.read_text().replace("name: pool,", "name: pool, providerID: false,"))
    code, output = testbed.run("sync", "--yes")
    assert code == 0, output
    after = testbed.live_node()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"]["mine"] == "yes"
    assert after["metadata"]["labels"][objects.FLEET] == testbed.fleet
    assert after["metadata"]["labels"]["topology.kubernetes.io/zone"] == "eu-1a"
    assert testbed.run("diff")[0] == 0
