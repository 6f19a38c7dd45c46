"""A node that kwokfleet did not make is never touched: not by any command, whatever the files say."""

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
    # A kubelet would go on saying so; here the node controllers must have no reason to write to the node.
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
DISGUISES: dict[str, dict[str, Any]] = {
    "a stranger": {},
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


class Scene:
    """A real-looking node in the cluster, and a fleet file that names it."""

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

    def appear(self, disguise: dict[str, Any]) -> None:
        """Create the node, as a kubelet would have, and wait until the node controllers have let pods onto it."""
        text = json.dumps({key: KUBELET[key] | disguise.get(key, {}) for key in KUBELET})
        metadata = {"name": self.node, **json.loads(text.replace("NAME", self.fleet))}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": SPEC, "status": STATUS}
        self.cluster.kubectl("create", "--field-manager=kubelet", "-f", "-", stdin=json.dumps(node))
        waiting.until(lambda: "taints" not in self.seen()["spec"])

    def seen(self) -> Manifest:
        """Return the node as it is, with everything that would tell of a write; kwok's and nodes' own beats aside."""
        return self.cluster.get("node", self.node, "--show-managed-fields")

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command on the files, and return its exit code and all that it said."""
        where = [] if arguments[0] in ("delete", "approve", "get") else [str(self.file.parent)]
        done = self.program.run(arguments[0], *where, *arguments[1:])
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def scene(kwokfleet: cli.Cli, cluster: ControlPlane, tmp_path: Path, kinds: ControlPlane) -> Iterator[Scene]:
    """Prepare names and files; clear away what a test has made."""
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    made = Scene(cluster, program, tmp_path)
    yield made
    cluster.kubectl("delete", "node", made.node, "--ignore-not-found")
    in_process_sync.delete_managed_objects(cluster)


COMMANDS = (("diff", "--details"), ("sync", "--dry-run=server"), ("sync",), ("sync", "--yes", "--no-prune"))


@pytest.mark.parametrize("adopt", [False, True], ids=["", "adopt"])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_command_touches_a_real_node_that_a_file_names(scene: Scene, disguise: str, adopt: bool) -> None:  # noqa: FBT001  # the example
    """Each says whose it is and ends with 5; the node is the same to the last byte, and the fleet's others come."""
    scene.appear(DISGUISES[disguise])
    before = scene.seen()
    scene.write(2, adopt=adopt)
    for command in COMMANDS:
        code, said = scene.run(*command)
        assert (code, scene.node in said) == (5, True), f"{command}: {said}"
        assert "is a real node" in said or "not managed by kwokfleet" in said or "not the annotation" in said
        assert scene.seen() == before, command
    assert scene.cluster.get("node", f"{scene.fleet}-1")["metadata"]["labels"]["mine"] == "yes"


@pytest.mark.parametrize("disguise", list(DISGUISES)[1:])
def test_no_command_deletes_a_real_node_with_our_label(scene: Scene, disguise: str) -> None:
    """Scaled down, its pool renamed, its file removed, its fleet deleted, all of it approved: it stays."""
    scene.appear(DISGUISES[disguise])
    before = scene.seen()
    scene.write(2)
    scene.run("sync", "--yes")
    scene.write(0)
    assert scene.run("sync", "--yes")[0] == 5
    scene.file.write_text(scene.file.read_text().replace("name: pool", "name: renamed"))
    assert scene.run("sync", "--yes")[0] == 5
    scene.file.unlink()
    assert scene.run("sync", "--yes")[0] == 5
    withheld = json.loads(scene.program.run("diff", str(scene.file.parent), "-o", "json").stdout)["withheld"]
    digests = [part for each in withheld if "digest" in each for part in ("--approve", each["digest"])]
    assert scene.run("sync", "--yes", *digests)[0] == 5
    scene.run("delete", scene.fleet, "--yes")
    assert scene.seen() == before


def test_delete_says_what_it_leaves(scene: Scene) -> None:
    """A node with the fleet's labels that is not fake: exit code 5, and the fake ones are gone."""
    scene.write(3)
    scene.appear(DISGUISES["all our labels"])
    before = scene.seen()
    scene.run("sync", "--yes")
    code, said = scene.run("delete", scene.fleet, "--yes")
    assert (code, scene.node in said) == (5, True), said
    assert scene.seen() == before
    left = scene.cluster.get("nodes", "--selector", f"{objects.FLEET}={scene.fleet}")["items"]
    assert [each["metadata"]["name"] for each in left] == [scene.node]


def test_a_fake_node_of_others_is_taken_only_when_told(scene: Scene) -> None:
    """By `adopt: true`, and only if it can become what the file says without being made anew."""
    scene.appear({"annotations": {objects.FAKE_NODE_KEY: objects.FAKE_NODE_VALUE}})
    before = scene.seen()
    scene.write(1)
    code, said = scene.run("sync", "--yes")
    assert (code, "already exists and is not managed by kwokfleet" in said) == (5, True)
    scene.write(1, adopt=True)
    code, said = scene.run("sync", "--yes")
    assert (code, "cannot be adopted: spec.providerID is immutable" in said) == (5, True), said
    assert scene.seen() == before
    scene.file.write_text(scene.file.read_text().replace("name: pool,", "name: pool, providerID: false,"))
    code, said = scene.run("sync", "--yes")
    assert code == 0, said
    after = scene.seen()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"]["mine"] == "yes"
    assert after["metadata"]["labels"][objects.FLEET] == scene.fleet
    assert after["metadata"]["labels"]["topology.kubernetes.io/zone"] == "eu-1a"
    assert scene.run("diff")[0] == 0
