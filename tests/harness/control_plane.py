"""The real control plane of a test session."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kwokfleet import settings
from kwokfleet.embedded import binaries, cluster, health, locks, progress, state, versions
from tests.harness import request_counts, waiting

STATE = Path(__file__).parents[2] / ".test-state"
"""In the checkout, so that the next session finds and removes the cluster of a killed session."""
TAIL_LINES = 40


@dataclass(frozen=True)
class ControlPlane:
    """A running cluster."""

    where: state.ClusterFolder
    tools: binaries.Binaries

    @property
    def kubeconfig(self) -> Path:
        """For clients."""
        return self.where.kubeconfig

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl; return its result, also when it fails."""
        command = [str(self.tools.path("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl, which must succeed; return its output."""
        done = self.try_kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return `kubectl get … -o json`, parsed."""
        got: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return got

    def apply(self, manifest: dict[str, Any]) -> None:
        """Create or change one object."""
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(manifest))

    def kubeconfig_of(self, account: str, path: Path, namespace: str = "default") -> Path:
        """Write a kubeconfig for a ServiceAccount; return its path."""
        token = self.kubectl("create", "token", account, f"--namespace={namespace}").strip()
        server = self.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "me", "user": {"token": token}}],
        }
        path.write_text(json.dumps(content))
        return path

    @contextmanager
    def counted_requests(self) -> Iterator[request_counts.RequestCounts]:
        """Count the API server's requests, by verb and resource, from here to the end of the block."""
        waiting.until(self._namespaces_are_settled)
        counted = request_counts.RequestCounts()
        before = request_counts.read_settled(self._metrics)
        yield counted
        counted.fill(before, request_counts.read_settled(self._metrics))

    def _namespaces_are_settled(self) -> bool:
        """Return whether namespaces of earlier tests are gone; their deletion causes requests."""
        return all(item["status"]["phase"] == "Active" for item in self.get("namespaces")["items"])

    def _metrics(self) -> str:
        return self.kubectl("get", "--raw", "/metrics")

    def log_tails(self) -> list[tuple[str, str]]:
        """Return the log tails of the components."""
        return log_tails(self.where)


def log_tails(where: state.ClusterFolder) -> list[tuple[str, str]]:
    """Return a title and the log tail of each component."""
    return [(f"log of {component}", health.log_end(where, component, TAIL_LINES)) for component in versions.COMPONENTS]


def running(name: str = "session", spec: state.Spec | None = None) -> Iterator[ControlPlane]:
    """Start a control plane for the session; remove it at the end."""
    config = replace(settings.from_environment(os.environ), data_dir=STATE)
    # One session at a time in a checkout.
    with locks.exclusive(STATE.with_suffix(f".{name}.lock"), deadline_s=1800, on_wait=lambda _holder: None):
        cluster.down(config, name, progress.discard)  # of a killed session
        tools = binaries.ensure(config, progress.discard)
        cluster.up(config, name, spec or state.Spec(), progress.discard)
        try:
            yield ControlPlane(state.cluster_folder(config.data_dir, name), tools)
        finally:
            cluster.down(config, name, progress.discard)
