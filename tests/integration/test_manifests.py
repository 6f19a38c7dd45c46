"""deploy/ on a real API server: strict validation, pod security, and no pod on a fake node."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet import settings
from kwokfleet.embedded import crds, progress
from tests import tools
from tests.harness import deploy_manifests, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

Manifest = dict[str, Any]
RESOURCES = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"}


def submit(cluster: ControlPlane, manifests: list[Manifest], *options: str) -> None:
    """Apply objects with strict field validation."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.kubectl("apply", "--server-side", "--validate=strict", *options, "-f", "-", stdin=json.dumps(listed))


@pytest.fixture
def prometheus_crds(cluster: ControlPlane) -> Iterator[None]:
    """Install the CRDs of the Prometheus operator."""
    definitions = crds.files(settings.from_environment(os.environ), progress.discard, tools.PROMETHEUS_OPERATOR)
    kinds = ("prometheusrules", "servicemonitors")
    files = [word for path in definitions if path.stem.endswith(kinds) for word in ("-f", str(path))]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.kubectl("wait", "--for=condition=Established", *files)
    yield
    cluster.kubectl("delete", *files)  # waits: the next test must not apply to a CRD that is being deleted


VARIANTS = [variant for variant in deploy_manifests.VARIANTS if variant != "components/monitoring"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_passes_strict_validation(variant: str, box: Sandbox, tmp_path: Path) -> None:
    """Unknown and duplicate fields are rejected."""
    objects = deploy_manifests.in_namespace(deploy_manifests.kustomize(variant, tmp_path), box.name)
    submit(box.cluster, objects, "--dry-run=server")


def test_the_monitoring_component_passes_strict_validation(prometheus_crds: None, box: Sandbox, tmp_path: Path) -> None:
    """Validated by the CRDs that the Prometheus operator publishes."""
    objects = deploy_manifests.in_namespace(deploy_manifests.kustomize("components/monitoring", tmp_path), box.name)
    assert {"ServiceMonitor", "PrometheusRule"} <= {manifest["kind"] for manifest in objects}
    submit(box.cluster, objects, "--dry-run=server")


def test_the_chart_with_all_options_passes_strict_validation(prometheus_crds: None, box: Sandbox) -> None:
    """In a namespace other than the default."""
    objects = deploy_manifests.helm_template(
        *deploy_manifests.VARIANTS["overlays/git-sync"],
        "--set",
        "replicas=3,kwokPods.enabled=true,monitoring.enabled=true,viewer.enabled=true",
        namespace=box.name,
    )
    submit(box.cluster, objects, "--dry-run=server")


def test_strict_validation_rejects_an_unknown_field(box: Sandbox, tmp_path: Path) -> None:
    """Shows that the tests above can fail."""
    [service] = [manifest for manifest in deploy_manifests.kustomize("base", tmp_path) if manifest["kind"] == "Service"]
    [wrong] = deploy_manifests.in_namespace([{**service, "spec": {**service["spec"], "port": 8265}}], box.name)
    done = box.cluster.try_kubectl(
        "apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong)
    )
    assert done.returncode != 0
    assert "spec.port" in done.stderr


def test_a_helm_release_is_installed_upgraded_and_uninstalled(box: Sandbox) -> None:
    """Only the CRD stays."""
    kinds = ("all,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies", "-A")
    selector = ("-l", "app.kubernetes.io/part-of=kwokfleet", "-o", "name")
    release = ("kwokfleet", str(deploy_manifests.CHART))
    deploy_manifests.helm(box.cluster.kubeconfig, box.name, "install", *release)
    deploy_manifests.helm(
        box.cluster.kubeconfig, box.name, "upgrade", *release, "--set", "replicas=2,viewer.enabled=true"
    )
    deployment = box.cluster.get("deployment", "kwokfleet", "-n", box.name)
    assert deployment["spec"]["replicas"] == 2
    assert "clusterrole.rbac.authorization.k8s.io/kwokfleet-viewer" in box.cluster.kubectl("get", *kinds, *selector)
    deploy_manifests.helm(box.cluster.kubeconfig, box.name, "uninstall", "kwokfleet")
    waiting.until(lambda: not box.cluster.kubectl("get", *kinds, *selector))


@pytest.fixture
def restricted(box: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """Return a sandbox with our pod security labels, ServiceAccounts and PriorityClass."""
    objects = deploy_manifests.kustomize("components/kwok-pods", tmp_path)
    by_kind = {manifest["kind"]: manifest for manifest in objects}
    labels = {**by_kind["Namespace"]["metadata"]["labels"], **box.labels}
    submit(
        box.cluster, [{**by_kind["Namespace"], "metadata": {"name": box.name, "labels": labels}}], "--force-conflicts"
    )
    accounts = [manifest for manifest in objects if manifest["kind"] == "ServiceAccount"]
    submit(box.cluster, [by_kind["PriorityClass"], *deploy_manifests.in_namespace(accounts, box.name)])
    yield box
    box.cluster.kubectl("delete", "priorityclass", by_kind["PriorityClass"]["metadata"]["name"], "--wait=false")


def variant_pods(variant: str, box: Sandbox, folder: Path) -> list[Manifest]:
    """Return a pod for each pod template of a variant."""
    pods = []
    for manifest in deploy_manifests.kustomize(variant, folder):
        template = (manifest.get("spec") or {}).get("template")
        if template:
            metadata = {**template["metadata"], "name": manifest["metadata"]["name"], "namespace": box.name}
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return pods


@pytest.mark.parametrize("variant", ["overlays/shards", "overlays/git", "overlays/git-sync"])
def test_pods_are_admitted_to_a_restricted_namespace(variant: str, restricted: Sandbox, tmp_path: Path) -> None:
    """They are created; a privileged pod is rejected."""
    pods = variant_pods(variant, restricted, tmp_path)
    submit(restricted.cluster, pods)
    names = {pod["metadata"]["name"] for pod in restricted.cluster.get("pods", "-n", restricted.name)["items"]}
    assert names == {pod["metadata"]["name"] for pod in pods}
    privileged = json.loads(json.dumps(pods[0]))
    privileged["metadata"]["name"] = "privileged"
    privileged["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    done = restricted.cluster.try_kubectl("create", "-f", "-", stdin=json.dumps(privileged))
    assert "violates PodSecurity" in done.stderr


def create_ready_node(box: Sandbox, name: str, **labels: str) -> None:
    """Create a Ready node with free resources."""
    all_labels = {**box.labels, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name, **labels}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    node = box.manifest(
        "v1", "Node", name, status={"capacity": RESOURCES, "allocatable": RESOURCES, "conditions": [ready]}
    )
    node["metadata"]["labels"] = all_labels
    box.cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))


def test_the_daemon_is_not_scheduled_on_fake_nodes(restricted: Sandbox, tmp_path: Path) -> None:
    """Also without a taint: it would be Running there without a process."""
    create_ready_node(restricted, "ours", **{"kwokfleet.dev/fleet": "lab"})
    create_ready_node(restricted, "theirs", type="kwok")
    [pod] = variant_pods("base", restricted, tmp_path)
    submit(restricted.cluster, [pod])

    def live_pod() -> Manifest:
        return restricted.cluster.get("pod", pod["metadata"]["name"], "-n", restricted.name)

    def scheduling_message() -> str:
        conditions = live_pod().get("status", {}).get("conditions") or ()
        return next((condition["message"] for condition in conditions if condition["type"] == "PodScheduled"), "")

    waiting.until(lambda: "node affinity" in scheduling_message())
    create_ready_node(restricted, "real")
    waiting.until(lambda: live_pod()["spec"].get("nodeName"))
    assert live_pod()["spec"]["nodeName"] == f"{restricted.name}-real"
