"""kwok's StatefulSet from deploy/, installed into the namespace of one test and run by the test kubelet."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import deploy_manifests, kubelet, supervised_kwok
from tests.harness.control_plane import ControlPlane

NAME = "kwokfleet-kwok"
_FILES = ("components/kwok-pods/serviceaccount", "components/kwok-pods/configmap", "components/kwok-pods/statefulset")


def install(cluster: ControlPlane, namespace: str) -> None:
    """Install the StatefulSet with 0 replicas, its configuration, its ServiceAccount and its rights."""
    install_statefulset(cluster, namespace)
    for manifest in _rights(namespace):
        cluster.apply(manifest)


def install_statefulset(cluster: ControlPlane, namespace: str) -> None:
    """Install the StatefulSet, its configuration and its ServiceAccount."""
    for file in _FILES:
        for manifest in deploy_manifests.parse((deploy_manifests.DEPLOY / f"{file}.yaml").read_text()):
            manifest["metadata"]["namespace"] = namespace
            if manifest["kind"] == "StatefulSet":  # the PriorityClass is cluster-scoped and not installed
                del manifest["spec"]["template"]["spec"]["priorityClassName"]
            cluster.apply(manifest)


def _rights(namespace: str) -> Iterator[dict[str, Any]]:
    """Yield kwok's roles and bindings, named after the namespace."""
    for manifest in deploy_manifests.parse((deploy_manifests.DEPLOY / "base" / "rights.yaml").read_text()):
        if manifest["metadata"]["name"] == NAME:
            manifest["metadata"]["name"] = namespace
            if "subjects" in manifest:
                manifest["roleRef"]["name"] = namespace
                manifest["subjects"] = [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}]
            yield manifest


def uninstall(cluster: ControlPlane, namespace: str) -> None:
    """Delete the roles and bindings outside of the namespace."""
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", namespace, "--ignore-not-found")
    cluster.kubectl("delete", "role,rolebinding", namespace, "--namespace=kube-node-lease", "--ignore-not-found")


@contextmanager
def supervised(
    cluster: ControlPlane,
    folder: Path,
    fleet: str,
    **fields: Any,  # noqa: ANN401 - fields of the spec
) -> Iterator[tuple[supervised_kwok.SupervisedKwok, kubelet.Kubelet]]:
    """Supervise kwok in pods for one fleet; its namespace has the fleet's name."""
    install(cluster, fleet)
    try:
        with (
            kubelet.running(cluster, folder / "machine", fleet) as node_kubelet,
            supervised_kwok.running(cluster, folder, fleet, fleet, statefulSet=NAME, **fields) as supervised,
        ):
            yield supervised, node_kubelet
    finally:
        cluster.kubectl("delete", "statefulset", NAME, "--namespace", fleet, "--wait=false")
        uninstall(cluster, fleet)
