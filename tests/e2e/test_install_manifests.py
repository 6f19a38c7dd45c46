"""Output of `kwokfleet install --dry-run=client`: the same objects as `kubectl kustomize`."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kwokfleet import settings
from kwokfleet.documents import parser
from kwokfleet.embedded import binaries, progress
from tests.harness import cli

DEPLOY = Path(__file__).parents[2] / "deploy"
Manifest = dict[str, Any]
OVERLAYS = {
    "configmap": ("--from=FILES",),
    "git": ("--git-url=https://git.example.org/team/fleets.git", "--git-ref=main", "--git-path=fleets"),
    "git-sync": (
        "--git-sync",
        "--git-url=https://git.example.org/team/fleets.git",
        "--git-ref=main",
        "--git-path=fleets",
    ),
    "ha": ("--replicas=2",),
    "shards": ("--from=FILES", "--shards=2"),
}


def by_name(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return objects by kind, namespace and name."""
    return {
        f"{manifest['kind']}/{manifest['metadata'].get('namespace', '')}/{manifest['metadata']['name']}": manifest
        for manifest in manifests
    }


def kustomized(folder: Path) -> dict[str, Manifest]:
    """Return the objects of a kustomization, built by kubectl."""
    kubectl = str(binaries.ensure(settings.from_environment(os.environ), progress.discard).path("kubectl"))
    text = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    return by_name([document.value for document in parser.parse("k", text)[0]])  # type: ignore[misc]  # mappings all


def printed(kwokfleet: cli.Cli, *options: str) -> dict[str, Manifest]:
    """Return the objects that install prints."""
    output = kwokfleet.ok("install", "--dry-run=client", "--output=json", "--no-kwok-crds", *options)
    return by_name([json.loads(line) for line in output.splitlines()])


@pytest.mark.parametrize("overlay", [path.name for path in sorted((DEPLOY / "overlays").iterdir())])
def test_install_and_kustomize_give_the_same_objects(kwokfleet: cli.Cli, overlay: str, tmp_path: Path) -> None:
    """Each overlay has equivalent options."""
    shown = DEPLOY / "overlays" / overlay
    files = tmp_path / "files"
    shutil.copytree(shown, files, ignore=shutil.ignore_patterns("kustomization.yaml"))
    options = [option.replace("FILES", str(files)) for option in OVERLAYS[overlay]]
    expected, actual = kustomized(shown), printed(kwokfleet, *options)
    assert actual.keys() == expected.keys()
    for name, manifest in expected.items():
        assert actual[name] == manifest, name


@pytest.mark.parametrize(
    ("component", "options"),
    [("monitoring", ("--monitoring",)), ("viewer", ("--viewer",)), ("kwok-pods", ("--shards=2",))],
)
def test_install_and_kustomize_agree_on_every_component(
    kwokfleet: cli.Cli, component: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Each component alone, with the base."""
    deploy = os.path.relpath(DEPLOY, tmp_path)
    lines = ["kind: Kustomization", f"resources: [{deploy}/base]", f"components: [{deploy}/components/{component}]"]
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines))
    expected, actual = kustomized(tmp_path), printed(kwokfleet, *options)
    assert actual.keys() == expected.keys()
    for name, manifest in expected.items():
        assert actual[name] == manifest, name


def test_invalid_files_print_no_objects(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """The error has the line, as in `validate`."""
    (tmp_path / "bad.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: x}\nspec: {nope: 1}\n"
    )
    done = kwokfleet.run("install", "--dry-run=client", "--no-kwok-crds", "--from", str(tmp_path / "bad.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.yaml:4" in done.stderr


def test_files_too_large_for_a_configmap_are_an_error(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """With the limit and the largest files."""
    pools = "{nodePools: [{name: p, replicas: 1}]}"
    fleet = f"apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {{name: x}}\nspec: {pools}\n"
    (tmp_path / "large.yaml").write_text(fleet + "# padding\n" * 120_000)
    done = kwokfleet.run("install", "--dry-run=client", "--no-kwok-crds", "--from", str(tmp_path))
    assert done.returncode == 2
    assert "a ConfigMap holds at most 1,024 KiB; the largest: large.yaml" in done.stderr
    assert "--git-url" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", ".", "--git-url", "x"), "exclude each other"),
        (("--git-sync",), "--git-url"),
        (("--output", "yaml"), "--dry-run=client"),
    ],
)
def test_contradicting_options_are_an_error(kwokfleet: cli.Cli, options: tuple[str, ...], message: str) -> None:
    """Before the cluster is contacted."""
    done = kwokfleet.run("install", *options)
    assert done.returncode == 2
    assert message in done.stderr
