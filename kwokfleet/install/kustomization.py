"""The part of kustomize that deploy/ is written in: resources, components, patches.

`kwokfleet install` builds its objects from the files that `kubectl apply -k` takes, so that there is one
place where each of them is written down. What kustomize can do beyond that is not needed, and refused.
"""

import re
from collections.abc import Mapping, Sequence
from posixpath import join, normpath
from typing import Any

from kwokfleet.documents import parser
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

Tree = Mapping[str, Sequence[Any]]
"""The documents of each file, by its path."""

BASE = "base"
_FILE = "kustomization.yaml"
_HEAD = ("apiVersion", "kind")
_IGNORED = ("configMapGenerator", "replicas", "images")
"""What an overlay shows by example and an option says: files, how many replicas, which image."""
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists that a patch changes entry by entry, and what tells their entries apart; others are replaced."""


def build(tree: Tree, folder: str, below: Sequence[Manifest] | None = None) -> list[Manifest]:
    """Return the objects of a kustomization; *below*: what stands for the base, if it is built already."""
    [given] = tree[join(folder, _FILE)]
    known = (*_HEAD, *_IGNORED, "resources", "components", "patches")
    if strange := sorted(set(given) - set(known)):
        raise ValueError(f"{folder}/{_FILE}: {', '.join(strange)} is not read here")
    made = [] if given["kind"] == "Kustomization" else list(below or ())
    for name in given.get("resources") or ():
        made += _resources(tree, normpath(join(folder, name)), below)
    for name in given.get("components") or ():
        made = build(tree, normpath(join(folder, name)), made)
    for patch in given.get("patches") or ():
        made = _patched(made, _documents(tree, folder, patch), patch.get("target"))
    return made


def _resources(tree: Tree, path: str, below: Sequence[Manifest] | None) -> list[Manifest]:
    if path == BASE and below is not None:
        return list(below)
    return list(tree[path]) if path in tree else build(tree, path)


def _documents(tree: Tree, folder: str, patch: Mapping[str, Any]) -> Sequence[Any]:
    if "path" in patch:
        return tree[normpath(join(folder, patch["path"]))]
    return [each.value for each in parser.parse(folder, patch["patch"])[0]]


def _patched(made: list[Manifest], patches: Sequence[Any], target: Mapping[str, str] | None) -> list[Manifest]:
    """Return objects with patches applied: each finds its own, or is for those that a target names."""
    for patch in patches:
        wanted = target or {"kind": patch["kind"], **patch["metadata"]}
        if not any(_is_meant(each, wanted) for each in made):
            raise ValueError(f"a patch for {wanted} finds nothing to change")
        change = _operated if isinstance(patch, list) else merged
        changed = [change(each, patch) if _is_meant(each, wanted) else each for each in made]
        made = [each for each in changed if each is not None]
    return made


def _is_meant(manifest: Manifest, target: Mapping[str, Any]) -> bool:
    key = objects.key(manifest)
    have = {"kind": key.kind, "name": key.name, "namespace": key.namespace}
    return all(re.fullmatch(target[name], have[name]) for name in have if name in target)


def merged(below: Any, patch: Any, name: str = "") -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a strategic merge patch laid over what it changes; None for what it deletes."""
    if isinstance(patch, Mapping):
        if patch.get("$patch") == "delete":
            return None
        if not isinstance(below, Mapping):
            return patch
        made = dict(below)
        for key, value in patch.items():
            if value is None:
                made.pop(key, None)
            else:
                made[key] = merged(made[key], value, key) if key in made else value
        return made
    if isinstance(patch, list) and isinstance(below, list) and name in _KEYS:
        return _merged_list(below, patch, _KEYS[name])
    return patch


def _merged_list(below: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Return entries changed where they are; new ones stand before them, as kustomize has it."""
    known = {each[key] for each in below}
    patches = {each[key]: each for each in patch}
    changed = [merged(each, patches[each[key]]) if each[key] in patches else each for each in below]
    return [each for each in patch if each[key] not in known] + [each for each in changed if each is not None]


def _operated(manifest: Manifest, operations: Sequence[Mapping[str, Any]]) -> Manifest:
    """Return an object after the steps of a JSON patch."""
    made: Any = manifest
    for each in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in each["path"].split("/")[1:]]
        made = _step(made, steps, each)
    whole: Manifest = made
    return whole


def _step(part: Any, steps: list[str], operation: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any part of a manifest
    step, *rest = steps
    if isinstance(part, list):
        copy: Any = list(part)
        place: Any = len(copy) if step == "-" else int(step)
    else:
        copy, place = dict(part), step
    if rest:
        copy[place] = _step(copy[place], rest, operation)
    elif operation["op"] == "remove":
        del copy[place]
    elif operation["op"] == "add" and isinstance(copy, list):
        copy.insert(place, operation["value"])
    elif operation["op"] in ("add", "replace"):
        copy[place] = operation["value"]
    else:
        raise ValueError(f"the operation {operation['op']} is not known")
    return copy
