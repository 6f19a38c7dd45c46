"""deploy/ on a real API server: every field is one, every pod is let in, and none lands on a fake node."""

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
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"}


def submit(cluster: ControlPlane, manifests: list[Manifest], *options: str) -> None:
    """Apply objects the way that people do, with every field checked."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.kubectl("apply", "--server-side", "--validate=strict", *options, "-f", "-", stdin=json.dumps(listed))


@pytest.fixture
def operated(cluster: ControlPlane) -> Iterator[None]:
    """Let the API server know the Prometheus operator's kinds."""
    definitions = crds.files(settings.from_environment(os.environ), progress.discard, tools.PROMETHEUS_OPERATOR)
    kinds = ("prometheusrules", "servicemonitors")
    files = [word for path in definitions if path.stem.endswith(kinds) for word in ("-f", str(path))]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.kubectl("wait", "--for=condition=Established", *files)
    yield
    cluster.kubectl("delete", "--wait=false", *files)


PLAIN = [each for each in deploy_manifests.VARIANTS if each != "components/monitoring"]


@pytest.mark.parametrize("variant", PLAIN)
def test_every_manifest_passes_strict_validation(variant: str, box: Sandbox, tmp_path: Path) -> None:
    """A field that does not exist, or exists twice, would be refused here."""
    made = deploy_manifests.in_namespace(deploy_manifests.kustomize(variant, tmp_path), box.name)
    submit(box.cluster, made, "--dry-run=server")


def test_what_monitoring_adds_passes_strict_validation(operated: None, box: Sandbox, tmp_path: Path) -> None:
    """By the definitions that the Prometheus operator publishes."""
    made = deploy_manifests.in_namespace(deploy_manifests.kustomize("components/monitoring", tmp_path), box.name)
    assert {"ServiceMonitor", "PrometheusRule"} <= {each["kind"] for each in made}
    submit(box.cluster, made, "--dry-run=server")


def test_the_chart_with_everything_on_passes_strict_validation(operated: None, box: Sandbox) -> None:
    """In a namespace of its own choice."""
    made = deploy_manifests.helm_template(
        *deploy_manifests.VARIANTS["overlays/git-sync"],
        "--set",
        "replicas=3,kwokPods.enabled=true,monitoring.enabled=true,viewer.enabled=true",
        namespace=box.name,
    )
    submit(box.cluster, made, "--dry-run=server")


def test_a_field_that_is_none_would_be_noticed(box: Sandbox, tmp_path: Path) -> None:
    """The tests above see what they look for."""
    [made] = [each for each in deploy_manifests.kustomize("base", tmp_path) if each["kind"] == "Service"]
    [wrong] = deploy_manifests.in_namespace([{**made, "spec": {**made["spec"], "port": 8265}}], box.name)
    done = box.cluster.try_kubectl(
        "apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong)
    )
    assert done.returncode != 0
    assert "spec.port" in done.stderr


def test_a_release_comes_and_goes(box: Sandbox) -> None:
    """Helm itself finds nothing amiss, changes what a value changes, and leaves nothing but the definition behind."""
    ours = ("all,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies", "-A")
    mine = ("-l", "app.kubernetes.io/part-of=kwokfleet", "-o", "name")
    release = ("kwokfleet", str(deploy_manifests.CHART))
    deploy_manifests.helm(box.cluster.kubeconfig, box.name, "install", *release)
    deploy_manifests.helm(
        box.cluster.kubeconfig, box.name, "upgrade", *release, "--set", "replicas=2,viewer.enabled=true"
    )
    there = box.cluster.get("deployment", "kwokfleet", "-n", box.name)
    assert there["spec"]["replicas"] == 2
    assert "clusterrole.rbac.authorization.k8s.io/kwokfleet-viewer" in box.cluster.kubectl("get", *ours, *mine)
    deploy_manifests.helm(box.cluster.kubeconfig, box.name, "uninstall", "kwokfleet")
    waiting.until(lambda: not box.cluster.kubectl("get", *ours, *mine))


@pytest.fixture
def restricted(box: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """Hold a namespace to what ours is held to, with what a pod refers to."""
    everything = deploy_manifests.kustomize("components/kwok-pods", tmp_path)
    made = {each["kind"]: each for each in everything}
    labels = {**made["Namespace"]["metadata"]["labels"], **box.labels}
    submit(box.cluster, [{**made["Namespace"], "metadata": {"name": box.name, "labels": labels}}], "--force-conflicts")
    accounts = [each for each in everything if each["kind"] == "ServiceAccount"]
    submit(box.cluster, [made["PriorityClass"], *deploy_manifests.in_namespace(accounts, box.name)])
    yield box
    box.cluster.kubectl("delete", "priorityclass", made["PriorityClass"]["metadata"]["name"], "--wait=false")


def pods_of(variant: str, box: Sandbox, scratch: Path) -> list[Manifest]:
    """Return a pod for each template of a variant, as a controller would make it."""
    found = []
    for each in deploy_manifests.kustomize(variant, scratch):
        template = (each.get("spec") or {}).get("template")
        if template:
            metadata = {**template["metadata"], "name": each["metadata"]["name"], "namespace": box.name}
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return found


@pytest.mark.parametrize("variant", ["overlays/shards", "overlays/git", "overlays/git-sync"])
def test_pods_are_let_into_a_namespace_that_is_restricted(variant: str, restricted: Sandbox, tmp_path: Path) -> None:
    """Really made, not only judged; one that claims more is refused there."""
    made = pods_of(variant, restricted, tmp_path)
    submit(restricted.cluster, made)
    names = {each["metadata"]["name"] for each in restricted.cluster.get("pods", "-n", restricted.name)["items"]}
    assert names == {each["metadata"]["name"] for each in made}
    bold = json.loads(json.dumps(made[0]))
    bold["metadata"]["name"] = "bold"
    bold["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    done = restricted.cluster.try_kubectl("create", "-f", "-", stdin=json.dumps(bold))
    assert "violates PodSecurity" in done.stderr


def machine(box: Sandbox, name: str, **labels: str) -> None:
    """Make a node that is Ready and has room."""
    all_labels = {**box.labels, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name, **labels}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    node = box.manifest("v1", "Node", name, status={"capacity": ROOM, "allocatable": ROOM, "conditions": [ready]})
    node["metadata"]["labels"] = all_labels
    box.cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))


def test_the_daemon_keeps_away_from_fake_nodes(restricted: Sandbox, tmp_path: Path) -> None:
    """Also from those without a taint, ours or not: it would be Running there without a process."""
    machine(restricted, "ours", **{"kwokfleet.dev/fleet": "lab"})
    machine(restricted, "theirs", type="kwok")
    [pod] = pods_of("base", restricted, tmp_path)
    submit(restricted.cluster, [pod])

    def look() -> Manifest:
        return restricted.cluster.get("pod", pod["metadata"]["name"], "-n", restricted.name)

    def why() -> str:
        conditions = look().get("status", {}).get("conditions") or ()
        return next((each["message"] for each in conditions if each["type"] == "PodScheduled"), "")

    waiting.until(lambda: "node affinity" in why())
    machine(restricted, "real")
    waiting.until(lambda: look()["spec"].get("nodeName"))
    assert look()["spec"]["nodeName"] == f"{restricted.name}-real"
