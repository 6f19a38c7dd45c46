"""A unique label and namespace for each test, so that tests can share a cluster."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.harness import control_plane

LABEL = "kwokfleet.dev/test"
CLUSTER_SCOPED = "nodes,namespaces"


@dataclass(frozen=True)
class Sandbox:
    """The label and namespace of one test."""

    cluster: control_plane.ControlPlane
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the test's objects."""
        return {LABEL: self.name}

    @property
    def selector(self) -> str:
        """Label selector of the test's objects."""
        return f"{LABEL}={self.name}"

    def manifest(self, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - a manifest
        """Return an object of this test."""
        metadata = {"name": f"{self.name}-{name}", "labels": self.labels}
        if kind not in ("Node", "Namespace"):
            metadata["namespace"] = self.name
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def opened(cluster: control_plane.ControlPlane) -> Iterator[Sandbox]:
    """Create the namespace; delete the test's objects at the end."""
    box = Sandbox(cluster, f"t-{secrets.token_hex(4)}")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": box.name, "labels": box.labels}})
    try:
        yield box
    finally:
        cluster.kubectl("delete", CLUSTER_SCOPED, "--selector", box.selector, "--wait=false", "--ignore-not-found")
        # Without a kubelet, pods need a forced deletion before the namespace can go.
        cluster.kubectl(
            "delete", "pods", "--all", "--namespace", box.name, "--force", "--grace-period=0", "--wait=false"
        )
