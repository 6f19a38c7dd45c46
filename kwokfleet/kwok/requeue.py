"""Requeue: kwok processes an object again only when the object changes, not when a Stage changes.

kwokfleet writes one annotation to each object that a changed Stage may match. Only labels decide; the finer
selectors are kwok's task. Other objects are not touched, because any change restarts their pending delays.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import orjson

from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed, is_finished
from kwokfleet.kube.requests import NODE, POD, Patch, Request

JSON_PATCH = "application/json-patch+json"
_DIGEST_LENGTH = 12


def _pointer(section: str, name: str) -> str:
    """Return the JSON pointer of a label or annotation."""
    return f"/metadata/{section}/{name.replace('/', '~1')}"


_SHARD = _pointer("labels", objects.SHARD)


def of_kind(stages: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Return the Stages for a kind."""
    return [stage for stage in stages if (stage["spec"].get("resourceRef") or {}).get("kind") == kind]


def affected(stages: Sequence[Manifest], candidates: Iterable[Observed]) -> Iterator[Observed]:
    """Yield the objects that one of the Stages may match."""
    selectors = [_known_labels(stage) for stage in stages]
    for candidate in candidates:
        if candidate.key.kind == "Pod" and is_finished(candidate):
            continue
        labels = objects.labels(candidate.manifest)
        if any(all(labels.get(key) == value for key, value in selector.items()) for selector in selectors):
            yield candidate


def _known_labels(stage: Manifest) -> dict[str, str]:
    """Return the labels that a Stage matches; for pods only kwokfleet's labels, as the informer keeps no others."""
    labels = (stage["spec"].get("selector") or {}).get("matchLabels") or {}
    if (stage["spec"].get("resourceRef") or {}).get("kind") != "Pod":
        return dict(labels)
    return {key: value for key, value in labels.items() if key.startswith(objects.PREFIX)}


def requeue_patch(target: Observed, stages: Sequence[Manifest]) -> Patch:
    """Return the patch that requeues an object for changed Stages."""
    digest = hashlib.sha256(orjson.dumps(list(stages), option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGEST_LENGTH]
    return Patch("", {"metadata": {"uid": target.uid, "annotations": {objects.REQUEUE: digest}}})


def requeue_request(metadata: Manifest, stamp: str) -> Request:
    """Return the request that requeues a pod."""
    key = ObjectKey(POD.api_version, POD.kind, metadata["namespace"], metadata["name"])
    body = {"metadata": {"uid": metadata["uid"], "annotations": {objects.REQUEUE: stamp}}}
    return requests.patch(key, Patch("", body))


def unassign_request(node: str, shard: str) -> Request:
    """Return the request that removes a managed node from a shard, if it belongs to it."""
    return _label_request(node, {"op": "test", "path": _SHARD, "value": shard}, {"op": "remove", "path": _SHARD})


def assign_request(node: str, shard: str) -> Request:
    """Return the request that adds a managed node to a shard."""
    return _label_request(node, {"op": "add", "path": _SHARD, "value": shard})


def _label_request(node: str, *operations: Manifest) -> Request:
    """Return a JSON patch that the API server rejects for a node that is not managed."""
    is_managed = (
        {"op": "test", "path": _pointer("labels", objects.MANAGED_BY), "value": objects.KWOKFLEET},
        {"op": "test", "path": _pointer("annotations", objects.FAKE_NODE_KEY), "value": objects.FAKE_NODE_VALUE},
    )
    path = requests.path(ObjectKey(NODE.api_version, NODE.kind, "", node))
    return Request("PATCH", f"{path}?{requests.write_query()}", orjson.dumps((*is_managed, *operations)), JSON_PATCH)
