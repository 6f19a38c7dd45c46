"""kwok's pods, installed into the namespace of one test from the files of deploy/, and run by the tests' kubelet."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import deploy_manifests, kubelet, supervised_kwok
from tests.harness.control_plane import ControlPlane

NAME = "kwokfleet-kwok"
_FILES = ("components/kwok-pods/serviceaccount", "components/kwok-pods/configmap", "components/kwok-pods/statefulset")


def install(cluster: ControlPlane, namespace: str) -> None:
    """Put the StatefulSet, without a pod, and what it needs into a namespace; kwok's account gets kwok's rights."""
    install_statefulset(cluster, namespace)
    for each in _rights(namespace):
        cluster.apply(each)


def install_statefulset(cluster: ControlPlane, namespace: str) -> None:
    """Put the StatefulSet, its configuration and its account into a namespace."""
    for file in _FILES:
        for each in deploy_manifests.parse((deploy_manifests.DEPLOY / f"{file}.yaml").read_text()):
            each["metadata"]["namespace"] = namespace
            if each["kind"] == "StatefulSet":  # the class is the whole cluster's
                del each["spec"]["template"]["spec"]["priorityClassName"]
            cluster.apply(each)


def _rights(namespace: str) -> Iterator[dict[str, Any]]:
    """Yield kwok's rights under names of the test's own."""
    for each in deploy_manifests.parse((deploy_manifests.DEPLOY / "base" / "rights.yaml").read_text()):
        if each["metadata"]["name"] == NAME:
            each["metadata"]["name"] = namespace
            if "subjects" in each:
                each["roleRef"]["name"] = namespace
                each["subjects"] = [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}]
            yield each


def uninstall(cluster: ControlPlane, namespace: str) -> None:
    """Take away what lies outside of the namespace."""
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", namespace, "--ignore-not-found")
    cluster.kubectl("delete", "role,rolebinding", namespace, "--namespace=kube-node-lease", "--ignore-not-found")


@contextmanager
def supervised(
    cluster: ControlPlane,
    folder: Path,
    fleet: str,
    **fields: Any,  # noqa: ANN401 - fields of the spec
) -> Iterator[tuple[supervised_kwok.SupervisedKwok, kubelet.Kubelet]]:
    """Keep a kwok in pods for the nodes of one fleet, whose name is also its namespace's."""
    install(cluster, fleet)
    try:
        with (
            kubelet.running(cluster, folder / "machine", fleet) as machine,
            supervised_kwok.running(cluster, folder, fleet, fleet, statefulSet=NAME, **fields) as made,
        ):
            yield made, machine
    finally:
        cluster.kubectl("delete", "statefulset", NAME, "--namespace", fleet, "--wait=false")
        uninstall(cluster, fleet)
