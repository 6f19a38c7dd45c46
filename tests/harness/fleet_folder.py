"""A folder of fleet files, and the commands run on it."""

import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

from kwokfleet.kube import objects
from tests.harness import cli, in_process_sync
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
Done = subprocess.CompletedProcess[str]


class FleetFolder:
    """A folder of fleet files with the names of two fleets, `a` and `b`."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program, self.folder = cluster, program, folder
        token = secrets.token_hex(3)
        self.a, self.b = f"t-{token}-a", f"t-{token}-b"
        folder.mkdir()

    def file(self, fleet: str) -> Path:
        """Return the path of a fleet's file."""
        return self.folder / f"{fleet}.yaml"

    def write(self, fleet: str, spec: Manifest | None = None, **sizes: int) -> None:
        """Write a fleet with pools of these sizes."""
        pools = [{"name": name, "replicas": size} for name, size in sizes.items()]
        content = {
            "apiVersion": "kwokfleet.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": fleet},
            "spec": {"nodePools": pools, **(spec or {})},
        }
        self.file(fleet).write_text(json.dumps(content))

    def run(self, command: str, *arguments: str, **variables: str) -> Done:
        """Run a command, with the folder as argument if it reads files."""
        where = [str(self.folder)] if command in ("diff", "sync", "status") else []
        done = self.program.run(command, *where, *arguments, **variables)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def sync(self, *arguments: str, code: int = 0) -> str:
        """Sync; return standard output and standard error."""
        done = self.run("sync", "--yes", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def count(self, fleet: str, pool: str = "") -> int:
        """Return the number of a fleet's nodes, or of one pool's."""
        chosen = f"{objects.FLEET}={fleet}" + (f",{objects.POOL}={pool}" if pool else "")
        return len(self.cluster.kubectl("get", "nodes", "--selector", chosen, "--output=name").splitlines())

    def plan(self, *arguments: str) -> Manifest:
        """Return the JSON output of `diff`."""
        plan: Manifest = json.loads(self.run("diff", "-o", "json", *arguments).stdout)
        return plan

    def state(self) -> dict[str, str]:
        """Return the resourceVersion of every managed Node and Stage."""
        items = self.cluster.get("nodes,stages.kwok.x-k8s.io", *in_process_sync.OURS[:2])["items"]
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}
