"""A fleet file, a real cluster, and `kwokfleet sync`."""

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
    """A fleet file, a cluster and the program."""

    cluster: control_plane.ControlPlane
    program: cli.Cli
    path: Path

    def write(self, *pools: Manifest, **spec: Any) -> None:  # noqa: ANN401  # any part of a Fleet
        """Write the fleet file. JSON is YAML too."""
        spec = {"nodePools": list(pools), **spec}
        document = {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": FLEET}, "spec": spec}
        self.path.write_text(json.dumps(document))

    def sync(self, *arguments: str, **variables: str) -> Done:
        """Run `sync`; return its result, also when it fails."""
        return self.program.run("sync", str(self.path), *arguments, **variables)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `sync` in the background."""
        return self.program.start("sync", str(self.path), *arguments, **variables)

    def diff(self, *arguments: str, **variables: str) -> Done:
        """Run `diff`."""
        return self.program.run("diff", str(self.path), *arguments, **variables)

    def nodes(self) -> dict[str, Manifest]:
        """Return the managed nodes by name."""
        return {node["metadata"]["name"]: node for node in self.cluster.get("nodes", "--selector", OURS)["items"]}

    def names(self) -> list[str]:
        """Return the names of the managed nodes; faster than nodes()."""
        text = self.cluster.kubectl("get", "nodes", "--selector", OURS, "--output", "name")
        return sorted(line.removeprefix("node/") for line in text.splitlines())

    def assert_settled(self, **sizes: int) -> None:
        """Check that each pool has exactly its nodes and that `diff` is empty."""
        assert self.names() == node_names(**sizes)
        done = self.diff()
        assert done.returncode == 0, done.stdout + done.stderr

    def sweep(self) -> None:
        """Delete all managed objects; wait until their namespaces are gone."""
        in_process_sync.delete_managed_objects(self.cluster)
        waiting.until(lambda: not self.cluster.kubectl("get", "namespaces", "--selector", OURS, "--output=name"))


def node_names(**sizes: int) -> list[str]:
    """Return the node names of pools with these sizes."""
    return sorted(f"{FLEET}-{pool}-{index}" for pool, size in sizes.items() for index in range(size))


def output(done: Done) -> str:
    """Return exit code, standard output and standard error."""
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def wait_for_exit(process: subprocess.Popen[str], timeout_s: float = cli.TIMEOUT_S) -> Done:
    """Wait for a background command; return its result."""
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def opened(cluster: control_plane.ControlPlane, program: cli.Cli, folder: Path) -> Iterator[SyncTestbed]:
    """Yield a testbed; delete all managed objects before and after."""
    environment = program.environment | {"KUBECONFIG": str(cluster.kubeconfig)}
    testbed = SyncTestbed(cluster, cli.Cli(program.data_dir, environment), folder / "fleet.yaml")
    testbed.sweep()
    try:
        yield testbed
    finally:
        testbed.sweep()
