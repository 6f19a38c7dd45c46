"""A label of its own for each test, so that tests share a cluster without meeting."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.harness import control_plane

LABEL = "kwokfleet.dev/test"
CLUSTER_SCOPED = "nodes,namespaces"


@dataclass(frozen=True)
class Sandbox:
    """One test's corner of the cluster."""

    cluster: control_plane.ControlPlane
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """What each of the test's objects carries."""
        return {LABEL: self.name}

    @property
    def selector(self) -> str:
        """Finds the test's objects, and nobody else's."""
        return f"{LABEL}={self.name}"

    def manifest(self, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - a manifest
        """Write an object that belongs to this test."""
        metadata = {"name": f"{self.name}-{name}", "labels": self.labels}
        if kind not in ("Node", "Namespace"):
            metadata["namespace"] = self.name
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def opened(cluster: control_plane.ControlPlane) -> Iterator[Sandbox]:
    """Make a corner with a namespace, and clear it away in the end."""
    box = Sandbox(cluster, f"t-{secrets.token_hex(4)}")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": box.name, "labels": box.labels}})
    try:
        yield box
    finally:
        cluster.kubectl("delete", CLUSTER_SCOPED, "--selector", box.selector, "--wait=false", "--ignore-not-found")
        # No kubelet will ever confirm that a pod has stopped, and the namespace would wait for that.
        cluster.kubectl(
            "delete", "pods", "--all", "--namespace", box.name, "--force", "--grace-period=0", "--wait=false"
        )
