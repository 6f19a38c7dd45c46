"""The Helm chart and the kustomize overlays say the same, each in its own language."""

from pathlib import Path

import pytest

import kwokfleet
from kwokfleet.embedded import versions
from kwokfleet.kube import objects
from kwokfleet.source import loader
from tests.harness import deploy_manifests, python_files


@pytest.mark.parametrize("variant", deploy_manifests.VARIANTS)
def test_the_chart_says_what_the_overlay_says(variant: str, tmp_path: Path) -> None:
    """The same objects, but for the namespace: that is Helm's to make."""
    told = deploy_manifests.by_key(deploy_manifests.helm_template(*deploy_manifests.VARIANTS[variant]))
    wanted = deploy_manifests.by_key(deploy_manifests.kustomize(variant, tmp_path))
    del wanted[objects.ObjectKey("v1", "Namespace", "", deploy_manifests.NAMESPACE)]
    assert told.keys() == wanted.keys()
    for key, manifest in wanted.items():
        assert told[key] == manifest, key


def test_every_variant_is_compared() -> None:
    """A new overlay or component must be named."""
    folders = (*deploy_manifests.DEPLOY.glob("overlays/*"), *deploy_manifests.DEPLOY.glob("components/*"))
    assert {"base", *(str(each.relative_to(deploy_manifests.DEPLOY)) for each in folders)} == set(
        deploy_manifests.VARIANTS
    )


def test_generated_files_are_up_to_date() -> None:
    """The bundle of `kwokfleet install` is what `kubectl kustomize` renders; the chart's files are copies."""
    render = python_files.load(deploy_manifests.DEPLOY / "render.py")
    texts: dict[Path, str] = render.files()
    assert {path for folder in render.folders() for path in folder.iterdir()} == texts.keys()
    for path, text in texts.items():
        assert path.read_text() == text, f"{path} is not up to date: run make manifests"


def test_a_release_in_another_namespace_leaves_nothing_in_ours() -> None:
    """Objects, subjects of bindings, and nothing else: rights in kube-node-lease stay there."""
    options = ("--set", "monitoring.enabled=true,viewer.enabled=true,kwokPods.enabled=true")
    here = deploy_manifests.helm_template(*options)
    there = deploy_manifests.helm_template(*options, namespace="elsewhere")
    spaces = {each["metadata"].get("namespace", "") for each in here}
    assert {each["metadata"].get("namespace", "") for each in there} == spaces - {"kwokfleet"} | {"elsewhere"}
    subjects = [subject for each in there for subject in each.get("subjects", ())]
    assert subjects
    assert {subject["namespace"] for subject in subjects} == {"elsewhere"}


@pytest.mark.parametrize("overlay", ["configmap", "shards"])
def test_fleet_files_that_overlays_bring_along_are_sound(overlay: str, tmp_path: Path) -> None:
    """As the pod finds them: a folder with what is in the ConfigMap."""
    made = deploy_manifests.kustomize(f"overlays/{overlay}", tmp_path)
    [files] = [each["data"] for each in made if each["metadata"]["name"] == "kwokfleet-fleets"]
    folder = tmp_path / "fleets"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    loaded = loader.Loader().load(folder)
    assert loaded.problems == ()
    assert loaded.tree.fleets
    kwok_pods = {each["metadata"]["name"] for each in made if each["kind"] == "StatefulSet"}
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
def test_values_that_mean_nothing_are_refused(options: str, named: str) -> None:
    """By name, before anything is made."""
    done = deploy_manifests.try_helm_template("--set", options)
    assert done.returncode != 0
    assert named in done.stderr


def test_what_values_ask_for_is_there() -> None:
    """Another image, more options, ports and machines; and no policy where none is wanted."""
    options = (
        "image.repository=registry.example.org/fleet,image.tag=next,imagePullSecrets[0].name=pull,"
        "extraArgs[0]=--interval=5m,nodeSelector.disk=ssd,tolerations[0].key=infra,tolerations[0].operator=Exists,"
        "networkPolicy.apiServerPorts[0]=8443,admissionPolicy.enabled=false,kwokPods.enabled=true"
    )
    made = {(each["kind"], each["metadata"]["name"]): each for each in deploy_manifests.helm_template("--set", options)}
    pod = made["Deployment", "kwokfleet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.org/fleet:next"
    assert pod["containers"][0]["args"][-1] == "--interval=5m"
    assert made["StatefulSet", "kwokfleet-kwok"]["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":next")
    for account in ("kwokfleet", "kwokfleet-kwok"):
        assert made["ServiceAccount", account]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert {each["key"] for each in pod["tolerations"]} >= {"infra", "node.kubernetes.io/unreachable"}
    for policy in ("kwokfleet", "kwokfleet-kwok"):
        assert made["NetworkPolicy", policy]["spec"]["egress"][1]["ports"] == [{"port": 8443, "protocol": "TCP"}]
    assert ("ValidatingAdmissionPolicy", "kwokfleet-fake-nodes-only") not in made
    closed = deploy_manifests.helm_template("--set", "networkPolicy.enabled=false,kwokPods.enabled=true")
    assert "NetworkPolicy" not in {each["kind"] for each in closed}


def test_versions_are_this_version_s(tmp_path: Path) -> None:
    """Of the image in the base, of the chart, and of kwok where people are told to get its kinds."""
    [chart] = deploy_manifests.parse((deploy_manifests.CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == kwokfleet.__version__
    pods = [
        each for each in deploy_manifests.kustomize("overlays/shards", tmp_path) if "template" in each.get("spec", {})
    ]
    images = {container["image"] for each in pods for container in each["spec"]["template"]["spec"]["containers"]}
    assert images == {f"ghcr.io/kwokfleet/kwokfleet:{kwokfleet.__version__}"}
    for page in (deploy_manifests.CHART / "templates" / "NOTES.txt", deploy_manifests.DEPLOY / "README.md"):
        assert f"kustomize/crd?ref={versions.KWOK}" in page.read_text()
