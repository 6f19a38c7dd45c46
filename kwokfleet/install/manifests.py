"""Builds the objects of `kwokfleet install`: layers of deploy/bundle, edited by options.

deploy/ defines every object. Options change the namespace, image, replicas and the source of the files.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import join, normpath
from typing import Any

from kwokfleet.install import ownership
from kwokfleet.install.fleet_configmap import FleetConfigMap
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey

Bundle = Mapping[str, Sequence[Any]]
"""The objects of each layer of deploy/bundle."""
NAME = "kwokfleet"
NAMESPACE = "kwokfleet"
"""Namespace in deploy/."""
FILES = "kwokfleet-fleets"
"""ConfigMap of the fleet files."""
MOUNTED = "/fleets"
KWOK = "kwokfleet-kwok"
"""StatefulSet of the kwok pods."""
KWOK_FILE = "kwok-controller.yaml"
IMAGE = "ghcr.io/kwokfleet/kwokfleet"
_ACCOUNT = "system:serviceaccount"
_ADMISSION = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
_CHECKOUT = "/git/current"


@dataclass(frozen=True, slots=True)
class InstallGitSource:
    """A git repository of fleet files."""

    url: str
    ref: str = "HEAD"
    path: str = "."
    sidecar: bool = False
    """Whether a git-sync sidecar fetches the files, not the daemon."""


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Options of an installation."""

    namespace: str = NAMESPACE
    image: str = ""
    """Empty: the image of deploy/."""
    replicas: int = 1
    source: FleetConfigMap | InstallGitSource | None = None
    """None: a ConfigMap that is created later."""
    kwok_pods: bool = False
    monitoring: bool = False
    viewer: bool = False
    admission: bool = True
    network_policy: bool = True


def build(bundle: Bundle, options: InstallOptions) -> list[Manifest]:
    """Return the objects of an installation in apply order."""
    selected: dict[ObjectKey, Manifest] = {}
    for layer in _layers(options):
        selected |= {objects.key(manifest): manifest for manifest in bundle.get(layer, ())}
    excluded = (() if options.admission else _ADMISSION) + (() if options.network_policy else ("NetworkPolicy",))
    manifests = [copy.deepcopy(manifest) for manifest in selected.values() if manifest["kind"] not in excluded]
    if isinstance(options.source, FleetConfigMap):
        manifests.append(_files(options.source))
    for manifest in manifests:
        _edit(manifest, options)
    return sorted(manifests, key=ownership.rank)


def _layers(options: InstallOptions) -> list[str]:
    """Return the layers of the bundle; objects of a later layer replace those of an earlier one."""
    layers = ["base"]
    if isinstance(options.source, InstallGitSource):
        layers.append("git-sync" if options.source.sidecar else "git")
    if options.kwok_pods:
        layers += ["kwok-pods", f"{layers[-1]}+kwok-pods"]
    return layers + ["monitoring"] * options.monitoring + ["viewer"] * options.viewer


def _files(packed: FleetConfigMap) -> Manifest:
    labels = {"app.kubernetes.io/name": NAME, ownership.PART_OF: NAME, "app.kubernetes.io/component": "daemon"}
    metadata = {"name": FILES, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(sorted(packed.data.items()))}


def _edit(manifest: Manifest, options: InstallOptions) -> None:
    """Apply options to an object, in place."""
    if options.namespace != NAMESPACE:
        _move(manifest, options.namespace)
    if options.image:
        for container in _containers(manifest):
            if container["image"].partition(":")[0] == IMAGE:
                container["image"] = options.image
    if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == NAME:
        manifest["spec"]["replicas"] = options.replicas
        _read_from(manifest, options.source)


def _containers(manifest: Manifest) -> list[Manifest]:
    pod = ((manifest.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]


# namespace


def _move(manifest: Manifest, namespace: str) -> None:
    """Move an object, and its references, to another namespace."""
    metadata = manifest["metadata"]
    if manifest["kind"] == "Namespace":
        metadata["name"] = namespace
    if metadata.get("namespace") == NAMESPACE:
        metadata["namespace"] = namespace
    for subject in manifest.get("subjects") or ():
        if subject.get("namespace") == NAMESPACE:
            subject["namespace"] = namespace
    if manifest["kind"] in _ADMISSION:
        mark, moved = f"{_ACCOUNT}:{NAMESPACE}:", f"{_ACCOUNT}:{namespace}:"
        manifest["spec"] = json.loads(json.dumps(manifest["spec"]).replace(mark, moved))


# source of the files


def _read_from(deployment: Manifest, source: FleetConfigMap | InstallGitSource | None) -> None:
    containers = {entry["name"]: entry for entry in _containers(deployment)}
    daemon = containers[NAME]
    match source:
        case InstallGitSource(sidecar=True):
            values = {"--repo": source.url, "--ref": source.ref}
            containers["git-sync"]["args"] = _with(containers["git-sync"]["args"], values)
            daemon["args"][1] = normpath(join(_CHECKOUT, source.path))
        case InstallGitSource():
            values = {"--git-url": source.url, "--git-ref": source.ref, "--git-path": source.path}
            daemon["args"] = _with(daemon["args"], values)
        case FleetConfigMap():
            daemon["args"][1] = normpath(join(MOUNTED, source.start))
            if source.items:
                volumes = deployment["spec"]["template"]["spec"]["volumes"]
                volume = next(entry["configMap"] for entry in volumes if entry["name"] == "fleets")
                volume["items"] = source.items


def _with(arguments: Sequence[str], values: dict[str, str]) -> list[str]:
    """Return arguments with other values for the given flags."""
    return [
        f"{flag}={values[flag]}" if (flag := argument.partition("=")[0]) in values else argument
        for argument in arguments
    ]


def kwok_document(shards: int) -> str:
    """Return a KwokController that runs kwok in pods, for files without one."""
    return (
        "# Written by kwokfleet install --shards.\n"
        f"apiVersion: {objects.API_VERSION}\n"
        "kind: KwokController\n"
        "metadata:\n"
        "  name: default\n"
        "spec:\n"
        f"  shards: {shards}\n"
        f"  statefulSet: {KWOK}\n"
    )


def reads_git(live: Iterable[Manifest]) -> bool:
    """Return whether a live daemon reads its files from git."""
    return any(
        argument.startswith(("--git-url=", _CHECKOUT))
        for manifest in live
        if manifest["metadata"]["name"] == NAME
        for container in _containers(manifest)
        for argument in container.get("args") or ()
    )
