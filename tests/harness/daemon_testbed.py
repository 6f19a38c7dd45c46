"""A folder of fleet files, a real cluster, and daemons on them."""

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.harness import cli, daemon_process, in_process_sync, kwok, waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}}}
spec:
  nodePools:
    - {{name: pool, replicas: {nodes}{more}}}
"""


class DaemonTestbed:
    """A folder of fleet files, a cluster, and the program."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program, self.folder = cluster, program, folder
        self.name = f"d-{secrets.token_hex(3)}"
        self.files = folder / "files"
        self.files.mkdir()

    def text(self, nodes: int, more: str = "", name: str = "") -> str:
        """Return the text of a fleet file."""
        return FLEET.format(name=name or self.name, nodes=nodes, more=f", {more}" if more else "")

    def save(self, nodes: int, more: str = "", name: str = "") -> None:
        """Write a fleet file."""
        (self.files / f"{name or self.name}.yaml").write_text(self.text(nodes, more, name))

    def nodes(self, name: str = "") -> list[Manifest]:
        """Return a fleet's nodes."""
        nodes: list[Manifest] = self.cluster.get("nodes", "-l", f"kwokfleet.dev/fleet={name or self.name}")["items"]
        return nodes

    def wait_for_nodes(self, nodes: int, name: str = "") -> None:
        """Wait until a fleet has so many nodes."""
        waiting.until(lambda: len(self.nodes(name)) == nodes)

    def fleet(self, name: str = "") -> Manifest:
        """Return the Fleet object; empty if it does not exist."""
        done = self.cluster.try_kubectl("get", "fleet", name or self.name, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def reason(self, name: str = "") -> str:
        """Return the reason of a fleet's Ready condition."""
        conditions = (self.fleet(name).get("status") or {}).get("conditions") or []
        return next((str(condition["reason"]) for condition in conditions if condition["type"] == "Ready"), "")

    def wait_for_reason(self, reason: str, name: str = "") -> None:
        """Wait for a reason of a fleet's Ready condition."""
        waiting.until(lambda: self.reason(name) == reason)

    def event_reasons(self) -> set[str]:
        """Return the reasons of the Events about the fleet."""
        events = self.cluster.get("events", "-n", "default", "--field-selector", f"involvedObject.name={self.name}")
        return {event["reason"] for event in events["items"]}

    def run(self, *arguments: str, kwok: bool = False, through: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401  # a context manager
        """Run a daemon on the folder."""
        return daemon_process.running(self.program, *(arguments or (str(self.files),)), kwok=kwok, variables=through)

    def start(self) -> daemon_process.DaemonProcess:
        """Start a daemon on the folder; the caller stops it."""
        return daemon_process.start(self.program, str(self.files))


def opened(cluster: ControlPlane, program: cli.Cli, folder: Path) -> Iterator[DaemonTestbed]:
    """Yield a testbed; delete all managed objects before and after."""
    kwok.install_crds(cluster)
    in_process_sync.delete_managed_objects(cluster)
    environment = program.environment | {"KUBECONFIG": str(cluster.kubeconfig)}
    yield DaemonTestbed(cluster, cli.Cli(program.data_dir, environment), folder)
    in_process_sync.delete_managed_objects(cluster)
