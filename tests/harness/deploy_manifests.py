"""The manifests of deploy/, rendered by kustomize and helm."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from kwokfleet import settings
from kwokfleet.embedded import binaries, progress
from kwokfleet.kube import objects
from tests import tools

Manifest = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart" / "kwokfleet"
NAMESPACE = "kwokfleet"
KUBERNETES = "1.36.3"
"""For `--kube-version`: an unreleased helm build assumes an old cluster."""
_URL = "https://git.example.org/team/fleets.git"


def _files(overlay: str, *names: str) -> tuple[str, ...]:
    """Return the helm options that pass files of an overlay to the chart."""
    keys = {name: name.replace(".", r"\.") for name in names}
    return tuple(
        word
        for name, key in keys.items()
        for word in ("--set-file", f"source.configMap.files.{key}={DEPLOY / 'overlays' / overlay / name}")
    )


VARIANTS = {
    "base": (),
    "overlays/configmap": _files("configmap", "fleet.yaml"),
    "overlays/git": ("--set", f"source.type=git,source.git.url={_URL}"),
    "overlays/git-sync": ("--set", f"source.type=gitSync,source.gitSync.url={_URL}"),
    "overlays/ha": ("--set", "replicas=2"),
    "overlays/shards": ("--set", "kwokPods.enabled=true", *_files("shards", "fleet.yaml", "kwok.yaml")),
    "components/kwok-pods": ("--set", "kwokPods.enabled=true"),
    "components/monitoring": ("--set", "monitoring.enabled=true"),
    "components/viewer": ("--set", "viewer.enabled=true"),
}
"""Folders of deploy/ and the equivalent chart options. Components are applied over the base."""


def find_program(name: str) -> str:
    """Return the path of a test tool; without it the test fails."""
    path = tools.present(settings.from_environment(os.environ)).get(name)
    if path is None:
        pytest.fail(f"{name} is not built; `make test` builds it, and so does: {sys.executable} -m tests.tools")
    return str(path)


def kustomize(folder: str, scratch: Path) -> list[Manifest]:
    """Return the output of `kubectl kustomize` for a folder of deploy/."""
    where = DEPLOY / folder
    if folder.startswith("components/"):
        where = scratch / "over"
        where.mkdir(exist_ok=True)
        base, over = (os.path.relpath(source, where.resolve()) for source in (DEPLOY / "base", DEPLOY / folder))
        (where / "kustomization.yaml").write_text(f"resources: [{base}]\ncomponents: [{over}]\n")
    kubectl = binaries.ensure(settings.from_environment(os.environ), progress.discard).path("kubectl")
    return parse(_output(str(kubectl), "kustomize", str(where)))


def helm_template(*options: str, namespace: str = NAMESPACE) -> list[Manifest]:
    """Return the rendered chart."""
    return parse(_output(*_template(), "--namespace", namespace, *options))


def helm(kubeconfig: Path, namespace: str, *arguments: str) -> str:
    """Run helm on a cluster."""
    return _output(find_program("helm"), "--kubeconfig", str(kubeconfig), "--namespace", namespace, *arguments)


def try_helm_template(*options: str) -> subprocess.CompletedProcess[str]:
    """Run `helm template`; return its result, also when it fails."""
    return subprocess.run([*_template(), *options], capture_output=True, text=True, timeout=60, check=False)


def _template() -> list[str]:
    chart = ["template", "kwokfleet", str(CHART), "--include-crds", "--kube-version", KUBERNETES]
    return [find_program("helm"), *chart]


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def parse(text: str) -> list[Manifest]:
    """Return the documents of a YAML text."""
    return [document for document in YAML(typ="safe", pure=False).load_all(text) if document]


def by_key(manifests: Iterable[Manifest]) -> dict[objects.ObjectKey, Manifest]:
    """Return objects by key; a duplicate fails."""
    manifests_by_key: dict[objects.ObjectKey, Manifest] = {}
    for manifest in manifests:
        key = objects.key(manifest)
        assert key not in manifests_by_key, f"{key} is a duplicate"
        manifests_by_key[key] = manifest
    return manifests_by_key


def in_namespace(manifests: Iterable[Manifest], namespace: str) -> list[Manifest]:
    """Return objects with our namespace replaced."""
    return [_in_namespace(manifest, namespace) for manifest in manifests]


def _in_namespace(manifest: Manifest, namespace: str) -> Manifest:
    if manifest["metadata"].get("namespace") != NAMESPACE:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
