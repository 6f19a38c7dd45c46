"""What `kwokfleet install --dry-run=client` prints: the objects that `kubectl kustomize` makes."""

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
    """Return objects by what tells them apart."""
    return {
        f"{each['kind']}/{each['metadata'].get('namespace', '')}/{each['metadata']['name']}": each for each in manifests
    }


def kustomized(folder: Path) -> dict[str, Manifest]:
    """Return what kubectl makes of a kustomization."""
    kubectl = str(binaries.ensure(settings.from_environment(os.environ), progress.discard).path("kubectl"))
    text = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    return by_name([each.value for each in parser.parse("k", text)[0]])  # type: ignore[misc]  # mappings all


def printed(kwokfleet: cli.Cli, *options: str) -> dict[str, Manifest]:
    """Return what install would apply."""
    said = kwokfleet.ok("install", "--dry-run=client", "--output=json", "--no-kwok-crds", *options)
    return by_name([json.loads(line) for line in said.splitlines()])


@pytest.mark.parametrize("overlay", [each.name for each in sorted((DEPLOY / "overlays").iterdir())])
def test_install_and_kustomize_make_the_same_objects(kwokfleet: cli.Cli, overlay: str, tmp_path: Path) -> None:
    """For every overlay there are options that say the same."""
    shown = DEPLOY / "overlays" / overlay
    files = tmp_path / "files"
    shutil.copytree(shown, files, ignore=shutil.ignore_patterns("kustomization.yaml"))
    options = [each.replace("FILES", str(files)) for each in OVERLAYS[overlay]]
    theirs, ours = kustomized(shown), printed(kwokfleet, *options)
    assert ours.keys() == theirs.keys()
    for name, each in theirs.items():
        assert ours[name] == each, name


@pytest.mark.parametrize(
    ("component", "options"),
    [("monitoring", ("--monitoring",)), ("viewer", ("--viewer",)), ("kwok-pods", ("--shards=2",))],
)
def test_install_and_kustomize_agree_on_every_component(
    kwokfleet: cli.Cli, component: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Each of them alone, laid over the base."""
    deploy = os.path.relpath(DEPLOY, tmp_path)
    lines = ["kind: Kustomization", f"resources: [{deploy}/base]", f"components: [{deploy}/components/{component}]"]
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines))
    theirs, ours = kustomized(tmp_path), printed(kwokfleet, *options)
    assert ours.keys() == theirs.keys()
    for name, each in theirs.items():
        assert ours[name] == each, name


def test_nothing_is_printed_of_files_that_are_wrong(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """The line is named, as `validate` names it."""
    (tmp_path / "bad.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: x}\nspec: {nope: 1}\n"
    )
    done = kwokfleet.run("install", "--dry-run=client", "--no-kwok-crds", "--from", str(tmp_path / "bad.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.yaml:4" in done.stderr


def test_files_that_are_too_many_for_a_configmap_are_refused(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """The limit is said, and which files are the largest."""
    pools = "{nodePools: [{name: p, replicas: 1}]}"
    fleet = f"apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {{name: x}}\nspec: {pools}\n"
    (tmp_path / "large.yaml").write_text(fleet + "# padding\n" * 120_000)
    done = kwokfleet.run("install", "--dry-run=client", "--no-kwok-crds", "--from", str(tmp_path))
    assert done.returncode == 2
    assert "a ConfigMap holds at most 1,024 KiB; the largest: large.yaml" in done.stderr
    assert "--git-url" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", ".", "--git-url", "x"), "exclude each other"),
        (("--git-sync",), "--git-url"),
        (("--output", "yaml"), "--dry-run=client"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    kwokfleet: cli.Cli, options: tuple[str, ...], said: str
) -> None:
    """Before anybody is asked anything."""
    done = kwokfleet.run("install", *options)
    assert done.returncode == 2
    assert said in done.stderr
