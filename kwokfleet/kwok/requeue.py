"""Objects that kwok must look at again after a Stage has changed: it does so only when they change themselves.

One annotation is written on each object that a changed Stage may act on: found by the labels that the
Stage asks for, and by nothing finer, for that is kwok's to judge. An object that no changed Stage can
concern is left alone, because any change of an object starts its pending delays again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import orjson

from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed, is_finished
from kwokfleet.kube.requests import NODE, POD, Patch, Request

JSON_PATCH = "application/json-patch+json"
_LENGTH = 12


def _pointer(part: str, name: str) -> str:
    """Return where in an object a label or annotation is."""
    return f"/metadata/{part}/{name.replace('/', '~1')}"


_SHARD = _pointer("labels", objects.SHARD)


def of_kind(stages: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Return the Stages that act on objects of a kind."""
    return [each for each in stages if (each["spec"].get("resourceRef") or {}).get("kind") == kind]


def affected(stages: Sequence[Manifest], candidates: Iterable[Observed]) -> Iterator[Observed]:
    """Yield the objects that one of some Stages may act on."""
    asked = [_asked(stage) for stage in stages]
    for each in candidates:
        if each.key.kind == "Pod" and is_finished(each):
            continue
        found = objects.labels(each.manifest)
        if any(all(found.get(key) == value for key, value in wanted.items()) for wanted in asked):
            yield each


def _asked(stage: Manifest) -> dict[str, str]:
    """Return the labels that a Stage asks for; of pods, only ours are known, so only those can rule one out."""
    labels = (stage["spec"].get("selector") or {}).get("matchLabels") or {}
    if (stage["spec"].get("resourceRef") or {}).get("kind") != "Pod":
        return dict(labels)
    return {key: value for key, value in labels.items() if key.startswith(objects.PREFIX)}


def requeue_request(metadata: Manifest, stamp: str) -> Request:
    """Return the request that lets kwok look again at a pod."""
    key = ObjectKey(POD.api_version, POD.kind, metadata["namespace"], metadata["name"])
    body = {"metadata": {"uid": metadata["uid"], "annotations": {objects.REQUEUE: stamp}}}
    return requests.patch(key, Patch("", body))


def unassign_request(node: str, shard: str) -> Request:
    """Return the request that takes a node from the kwok of a shard, if it is ours and that one's."""
    return _relabelled(node, {"op": "test", "path": _SHARD, "value": shard}, {"op": "remove", "path": _SHARD})


def assign_request(node: str, shard: str) -> Request:
    """Return the request that gives a node to the kwok of a shard, if it is ours."""
    return _relabelled(node, {"op": "add", "path": _SHARD, "value": shard})


def _relabelled(node: str, *steps: Manifest) -> Request:
    """Return a request that the API server refuses for a node of somebody else, whatever it is called."""
    ours = (
        {"op": "test", "path": _pointer("labels", objects.MANAGED_BY), "value": objects.KWOKFLEET},
        {"op": "test", "path": _pointer("annotations", objects.FAKE_NODE_KEY), "value": objects.FAKE_NODE_VALUE},
    )
    where = requests.path(ObjectKey(NODE.api_version, NODE.kind, "", node))
    return Request("PATCH", f"{where}?{requests.write_query()}", orjson.dumps((*ours, *steps)), JSON_PATCH)


def requeue_patch(each: Observed, stages: Sequence[Manifest]) -> Patch:
    """Return the patch that lets kwok look again."""
    digest = hashlib.sha256(orjson.dumps(list(stages), option=orjson.OPT_SORT_KEYS)).hexdigest()[:_LENGTH]
    return Patch("", {"metadata": {"uid": each.uid, "annotations": {objects.REQUEUE: digest}}})
