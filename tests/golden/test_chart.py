"""The Helm chart and the kustomize overlays render the same objects."""

from pathlib import Path

import pytest

import kwokfleet
from kwokfleet.embedded import versions
from kwokfleet.kube import objects
from kwokfleet.source import loader
from tests.harness import deploy_manifests, python_files


@pytest.mark.parametrize("variant", deploy_manifests.VARIANTS)
def test_the_chart_equals_the_overlay(variant: str, tmp_path: Path) -> None:
    """Except for the Namespace, which Helm creates."""
    chart = deploy_manifests.by_key(deploy_manifests.helm_template(*deploy_manifests.VARIANTS[variant]))
    overlay = deploy_manifests.by_key(deploy_manifests.kustomize(variant, tmp_path))
    del overlay[objects.ObjectKey("v1", "Namespace", "", deploy_manifests.NAMESPACE)]
    assert chart.keys() == overlay.keys()
    for key, manifest in overlay.items():
        assert chart[key] == manifest, key


def test_every_variant_is_compared() -> None:
    """A new overlay or component must be added."""
    folders = (*deploy_manifests.DEPLOY.glob("overlays/*"), *deploy_manifests.DEPLOY.glob("components/*"))
    assert {"base", *(str(folder.relative_to(deploy_manifests.DEPLOY)) for folder in folders)} == set(
        deploy_manifests.VARIANTS
    )


def test_generated_files_are_up_to_date() -> None:
    """The bundle of `kwokfleet install` equals `kubectl kustomize`; the chart's files are copies."""
    render = python_files.load(deploy_manifests.DEPLOY / "render.py")
    texts: dict[Path, str] = render.files()
    assert {path for folder in render.folders() for path in folder.iterdir()} == texts.keys()
    for path, text in texts.items():
        assert path.read_text() == text, f"{path} is not up to date: run make manifests"


def test_a_release_in_another_namespace_uses_only_that() -> None:
    """For objects and subjects of bindings; rights in kube-node-lease stay."""
    options = ("--set", "monitoring.enabled=true,viewer.enabled=true,kwokPods.enabled=true")
    default = deploy_manifests.helm_template(*options)
    other = deploy_manifests.helm_template(*options, namespace="elsewhere")
    spaces = {manifest["metadata"].get("namespace", "") for manifest in default}
    assert {manifest["metadata"].get("namespace", "") for manifest in other} == spaces - {"kwokfleet"} | {"elsewhere"}
    subjects = [subject for manifest in other for subject in manifest.get("subjects", ())]
    assert subjects
    assert {subject["namespace"] for subject in subjects} == {"elsewhere"}


@pytest.mark.parametrize("overlay", ["configmap", "shards"])
def test_fleet_files_of_overlays_are_valid(overlay: str, tmp_path: Path) -> None:
    """In the pod: a folder with the files of the ConfigMap."""
    manifests = deploy_manifests.kustomize(f"overlays/{overlay}", tmp_path)
    [files] = [manifest["data"] for manifest in manifests if manifest["metadata"]["name"] == "kwokfleet-fleets"]
    folder = tmp_path / "fleets"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    loaded = loader.Loader().load(folder)
    assert loaded.problems == ()
    assert loaded.tree.fleets
    kwok_pods = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "StatefulSet"}
    assert {loaded.tree.controller.stateful_set} - {None} == kwok_pods


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("replica=2", "replica"),
        ("replicas=two", "replicas"),
        ("source.type=folder", "source/type"),
        ("source.type=git", "git/url"),
        ("source.type=gitSync", "gitSync/url"),
        ("source.git.interval=60", "interval"),
        ("extraArgs[0]=interval=5m", "extraArgs"),
        ("networkPolicy.apiServerPorts[0]=0", "apiServerPorts"),
    ],
)
def test_invalid_values_are_rejected(options: str, named: str) -> None:
    """The error names the value, before any object is created."""
    done = deploy_manifests.try_helm_template("--set", options)
    assert done.returncode != 0
    assert named in done.stderr


def test_values_are_rendered() -> None:
    """Image, options, ports and node selection; and no policy if it is disabled."""
    options = (
        "image.repository=registry.example.org/fleet,image.tag=next,imagePullSecrets[0].name=pull,"
        "extraArgs[0]=--interval=5m,nodeSelector.disk=ssd,tolerations[0].key=infra,tolerations[0].operator=Exists,"
        "networkPolicy.apiServerPorts[0]=8443,admissionPolicy.enabled=false,kwokPods.enabled=true"
    )
    manifests = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in deploy_manifests.helm_template("--set", options)
    }
    pod = manifests["Deployment", "kwokfleet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.org/fleet:next"
    assert pod["containers"][0]["args"][-1] == "--interval=5m"
    assert manifests["StatefulSet", "kwokfleet-kwok"]["spec"]["template"]["spec"]["containers"][0]["image"].endswith(
        ":next"
    )
    for account in ("kwokfleet", "kwokfleet-kwok"):
        assert manifests["ServiceAccount", account]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert {toleration["key"] for toleration in pod["tolerations"]} >= {"infra", "node.kubernetes.io/unreachable"}
    for policy in ("kwokfleet", "kwokfleet-kwok"):
        assert manifests["NetworkPolicy", policy]["spec"]["egress"][1]["ports"] == [{"port": 8443, "protocol": "TCP"}]
    assert ("ValidatingAdmissionPolicy", "kwokfleet-fake-nodes-only") not in manifests
    without_policy = deploy_manifests.helm_template("--set", "networkPolicy.enabled=false,kwokPods.enabled=true")
    assert "NetworkPolicy" not in {manifest["kind"] for manifest in without_policy}


def test_versions_are_equal_to_the_package(tmp_path: Path) -> None:
    """Of the image, of the chart, and of kwok in the instructions for its CRDs."""
    [chart] = deploy_manifests.parse((deploy_manifests.CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == kwokfleet.__version__
    workloads = [
        manifest
        for manifest in deploy_manifests.kustomize("overlays/shards", tmp_path)
        if "template" in manifest.get("spec", {})
    ]
    images = {
        container["image"] for workload in workloads for container in workload["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"ghcr.io/kwokfleet/kwokfleet:{kwokfleet.__version__}"}
    for page in (deploy_manifests.CHART / "templates" / "NOTES.txt", deploy_manifests.DEPLOY / "README.md"):
        assert f"kustomize/crd?ref={versions.KWOK}" in page.read_text()
