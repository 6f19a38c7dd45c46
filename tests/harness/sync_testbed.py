"""A fleet file, a real cluster, and `kwokfleet sync` between them."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import cli, control_plane, in_process_sync, waiting

FLEET = "scene"
OURS = "app.kubernetes.io/managed-by=kwokfleet"
Manifest = dict[str, Any]
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class SyncTestbed:
    """What a test of syncs looks at."""

    cluster: control_plane.ControlPlane
    program: cli.Cli
    path: Path

    def write(self, *pools: Manifest, **spec: Any) -> None:  # noqa: ANN401  # any part of a Fleet
        """Write the fleet file. JSON is YAML too."""
        spec = {"nodePools": list(pools), **spec}
        document = {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": FLEET}, "spec": spec}
        self.path.write_text(json.dumps(document))

    def sync(self, *arguments: str, **variables: str) -> Done:
        """Sync, whatever comes of it."""
        return self.program.run("sync", str(self.path), *arguments, **variables)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Begin to sync."""
        return self.program.start("sync", str(self.path), *arguments, **variables)

    def diff(self, *arguments: str, **variables: str) -> Done:
        """Say what a sync would do."""
        return self.program.run("diff", str(self.path), *arguments, **variables)

    def nodes(self) -> dict[str, Manifest]:
        """Return our nodes, by name."""
        return {each["metadata"]["name"]: each for each in self.cluster.get("nodes", "--selector", OURS)["items"]}

    def names(self) -> list[str]:
        """Return the names of our nodes; much quicker than the nodes."""
        text = self.cluster.kubectl("get", "nodes", "--selector", OURS, "--output", "name")
        return sorted(line.removeprefix("node/") for line in text.splitlines())

    def assert_settled(self, **sizes: int) -> None:
        """Check that each pool has its nodes and no others, and that nothing is left to do."""
        assert self.names() == node_names(**sizes)
        done = self.diff()
        assert done.returncode == 0, done.stdout + done.stderr

    def sweep(self) -> None:
        """Remove everything that is ours, and return once its namespaces are gone, which take their time."""
        in_process_sync.delete_managed_objects(self.cluster)
        waiting.until(lambda: not self.cluster.kubectl("get", "namespaces", "--selector", OURS, "--output=name"))


def node_names(**sizes: int) -> list[str]:
    """Return the names of the nodes of pools, by their sizes."""
    return sorted(f"{FLEET}-{pool}-{index}" for pool, size in sizes.items() for index in range(size))


def output(done: Done) -> str:
    """Return all that a command said."""
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def wait_for_exit(process: subprocess.Popen[str], timeout_s: float = cli.TIMEOUT_S) -> Done:
    """Wait for a command that was begun, and return what came of it."""
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def opened(cluster: control_plane.ControlPlane, program: cli.Cli, folder: Path) -> Iterator[SyncTestbed]:
    """Begin with nothing of ours, and leave nothing."""
    environment = program.environment | {"KUBECONFIG": str(cluster.kubeconfig)}
    scene = SyncTestbed(cluster, cli.Cli(program.data_dir, environment), folder / "fleet.yaml")
    scene.sweep()
    try:
        yield scene
    finally:
        scene.sweep()
