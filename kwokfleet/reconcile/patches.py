"""Differences to minimal JSON merge patches.

Why not server-side apply: creations are a third slower, and taints are one field there, so applying ours would
remove those of the node controllers. A patch names single fields and the UID, so that it never reaches another object
of the same name. A patch with a whole list also names the resourceVersion that the list was read at.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Patch
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.diff import ABSENT, Difference, Path


def build_patches(live_object: Observed, differences: Iterable[Difference]) -> list[Patch]:
    """Return the patches that remove the differences; status is a subresource with a patch of its own."""
    split: dict[str, list[Difference]] = {"": [], "status": []}
    for difference in differences:
        split["status" if difference.path[0] == "status" else ""].append(difference)
    return [Patch(name, _body(live_object, part)) for name, part in split.items() if part]


def cordon(live_object: Observed) -> Patch:
    """Return the patch that makes a node unschedulable."""
    return Patch("", {"metadata": {"uid": live_object.uid}, "spec": {"unschedulable": True}})


def remove_not_ready_taint(node: Manifest, version: int) -> Patch:
    """Return the patch that removes the not-ready taint of a node created Ready.

    The API server adds the taint to every new node, and the controller manager removes it with two requests per node.
    This patch is one request, valid only for the created version.
    """
    taints = node["spec"].get("taints")
    return Patch("", {"metadata": {"resourceVersion": str(version)}, "spec": {"taints": taints}})


def _body(live_object: Observed, differences: Sequence[Difference]) -> Manifest:
    metadata: Manifest = {"uid": live_object.uid}
    body: Manifest = {"metadata": metadata}
    for path in (diff.TAINTS, diff.ADDRESSES):
        entries = [difference for difference in differences if difference.path[:2] == path]
        if entries:
            metadata["resourceVersion"] = str(live_object.resource_version)
            _put(body, path, _list(live_object, path, entries) or None)
    for difference in differences:
        if difference.path[:2] not in (diff.TAINTS, diff.ADDRESSES):
            _put(body, difference.path, None if difference.desired is ABSENT else difference.desired)
    return body


def _list(live_object: Observed, path: Path, differences: Sequence[Difference]) -> list[Any]:
    """Return the live list with the differences applied."""
    live = live_object.manifest.get(path[0], {}).get(path[1]) or []
    names = [diff.entry_name(path, entry) for entry in live]
    changed = {difference.path[2]: difference.desired for difference in differences}
    entries = [changed.get(name, entry) for name, entry in zip(names, live, strict=True)]
    entries += [desired for name, desired in changed.items() if name not in names]
    return [entry for entry in entries if entry is not ABSENT]


def _put(body: Manifest, path: Path, value: Any) -> None:  # noqa: ANN401  # any part of a manifest
    for step in path[:-1]:
        body = body.setdefault(step, {})
    body[path[-1]] = value
