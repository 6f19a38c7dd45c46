"""Requests to the API server as values: built here, sent elsewhere.

Every write kwokfleet ever makes has its shape in this module, and one look tells that a delete
names an object and its UID, or a whole pool by a selector that cannot be empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
PAGE_SIZE = 500
MAX_RETRY_AFTER_S = 30.0
CRD_API_VERSION = "apiextensions.k8s.io/v1"
_READS = ("GET", "HEAD")
_MAY_WE = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Kind(NamedTuple):
    """What a kind is called in a path."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = False


NODE = Kind("v1", "Node", "nodes")
STAGE = Kind(objects.STAGE_API_VERSION, "Stage", "stages")
NAMESPACE = Kind("v1", "Namespace", "namespaces")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps", namespaced=True)
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses")
POD = Kind("v1", "Pod", "pods", namespaced=True)
SECRET = Kind("v1", "Secret", "secrets", namespaced=True)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases", namespaced=True)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", namespaced=True)
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets", namespaced=True)
FLEET = Kind(objects.API_VERSION, "Fleet", "fleets")
EVENT = Kind("v1", "Event", "events", namespaced=True)
CUSTOM_RESOURCE_DEFINITION = Kind(CRD_API_VERSION, "CustomResourceDefinition", "customresourcedefinitions")
KWOK_KINDS = (
    *(Kind(objects.STAGE_API_VERSION, *each) for each in objects.KWOK_CLUSTER_KINDS.items()),
    *(Kind(objects.STAGE_API_VERSION, *each, namespaced=True) for each in objects.KWOK_NAMESPACED_KINDS.items()),
)
"""kwok's kinds beside Stage. Few fleets need one, and a cluster may lack them."""
MANAGED_KINDS = (NODE, STAGE, NAMESPACE, CONFIG_MAP, STORAGE_CLASS, *KWOK_KINDS)
"""The kinds whose objects the files stand for; a set of the library brings a StorageClass along."""
_OTHERS = (POD, LEASE, DEPLOYMENT, STATEFUL_SET, FLEET, EVENT, CUSTOM_RESOURCE_DEFINITION)
_KINDS = {(each.api_version, each.kind): each for each in (*MANAGED_KINDS, *_OTHERS)}

MANAGED_SELECTOR = f"{objects.MANAGED_BY}={objects.KWOKFLEET}"
DECLARED_SELECTOR = f"{MANAGED_SELECTOR},!{objects.WAVE}"
"""Of ours, what the files say is there; not what Waves have made, which comes and stays by itself."""
UNMANAGED_SELECTOR = f"{objects.MANAGED_BY}!={objects.KWOKFLEET}"


@dataclass(frozen=True, slots=True)
class Patch:
    """One PATCH request's body, and where it goes."""

    subresource: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    path: str
    """With its query."""
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON

    @property
    def changes_something(self) -> bool:
        """Whether it is more than a question; one about rights is sent like a change, and is none."""
        return self.method not in _READS and self.path != _MAY_WE


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Manifest:
        """Return the body as a value; anything that is not a JSON object is empty."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """What the API server says is wrong."""
        said = self.json().get("message")
        return str(said) if said else self.body[:200].decode(errors="replace").strip()

    @property
    def retry_after_s(self) -> float:
        """How long the API server does not want to hear of us, as far as we heed it."""
        text = self.headers.get("Retry-After") or ""
        return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0

    @property
    def reason(self) -> str:
        """The API server's one word for it."""
        return str(self.json().get("reason", ""))


class RequestSender(Protocol):
    """Whoever sends requests: the cluster's edge at once, the applier at a pace and with patience."""

    @property
    def host(self) -> str:
        """Whom it sends them to."""

    def send(self, request: Request) -> Response:
        """Return the answer to a request."""


def in_namespace(kind: Kind, namespace: str) -> Kind:
    """Return a kind as it is called inside one namespace: who has no rights beyond it may list it there."""
    return kind._replace(plural=f"namespaces/{quote(namespace, safe='')}/{kind.plural}")


def collection(kind: Kind, namespace: str = "") -> str:
    """Return the path of all objects of a kind."""
    group = "/api/v1" if kind.api_version == "v1" else f"/apis/{kind.api_version}"
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{group}{inside}/{kind.plural}"


def path(key: ObjectKey, subresource: str = "") -> str:
    """Return the path of one object. An empty name would mean all of them: that is never meant."""
    kind = _KINDS[key.api_version, key.kind]
    if not key.name or (kind.namespaced and not key.namespace):
        raise ValueError(f"an object without a name or namespace: {key}")
    below = f"/{subresource}" if subresource else ""
    return f"{collection(kind, key.namespace)}/{quote(key.name, safe='')}{below}"


def get(key: ObjectKey) -> Request:
    """Read one object."""
    return Request("GET", path(key))


def list_page(  # noqa: PLR0913  # what a list can be narrowed by
    kind: Kind,
    selector: str = "",
    token: str = "",
    *,
    namespace: str = "",
    fields: str = "",
    metadata_only: bool = False,
) -> Request:
    """Read some objects of a kind, from where *token* says."""
    query = {"limit": str(PAGE_SIZE), "labelSelector": selector, "fieldSelector": fields, "continue": token}
    return Request("GET", _with(collection(kind, namespace), query), accept=METADATA_ONLY if metadata_only else JSON)


def watch(kind: Kind, selector: str, since: str, timeout_s: int, *, fields: str = "") -> Request:
    """Watch a kind: from a version on or, without one, from its current objects on."""
    query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
    query |= {"labelSelector": selector, "fieldSelector": fields}
    query |= (
        {"resourceVersion": since} if since else {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    )
    return Request("GET", _with(collection(kind), query))


def list_access_review(kind: Kind, namespace: str = "") -> Request:
    """Ask whether we may list a kind: there or, without a namespace, everywhere."""
    group = kind.api_version.rpartition("/")[0]
    asked = {"verb": "list", "group": group, "resource": kind.plural, "namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return Request("POST", _MAY_WE, orjson.dumps(body))


def create(manifest: Manifest, *, dry_run: bool = False) -> Request:
    """Create an object."""
    key = objects.key(manifest)
    kind = _KINDS[key.api_version, key.kind]
    return Request("POST", _with(collection(kind, key.namespace), _writing(dry_run)), orjson.dumps(manifest))


def create_any(kind: Kind, manifest: Manifest) -> Request:
    """Create an object of a kind that the cluster told of."""
    where = collection(kind, manifest["metadata"].get("namespace", "") if kind.namespaced else "")
    return Request("POST", _with(where, _writing(dry_run=False)), orjson.dumps(manifest))


def get_any(kind: Kind, manifest: Manifest) -> Request:
    """Read the object that has the name of a manifest."""
    return Request("GET", _path_any(kind, manifest))


def delete_any(kind: Kind, manifest: Manifest, uid: str) -> Request:
    """Delete this very object of a kind that the cluster told of, not a namesake."""
    if not uid:
        raise ValueError("a delete without a UID")
    options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    return Request("DELETE", _path_any(kind, manifest), _delete_options(options))


def apply_any(kind: Kind, manifest: Manifest, manager: str, *, force: bool = False, dry_run: bool = False) -> Request:
    """Say what an object must be, under a manager's name; a field that another one keeps otherwise is a conflict."""
    query = {**_writing(dry_run), "fieldManager": manager} | ({"force": "true"} if force else {})
    return Request("PATCH", _with(_path_any(kind, manifest), query), orjson.dumps(manifest), APPLY_PATCH)


def _path_any(kind: Kind, manifest: Manifest) -> str:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace", "")
    if not name or (kind.namespaced and not namespace):
        raise ValueError("an object without a name or namespace")
    return f"{collection(kind, namespace if kind.namespaced else '')}/{quote(name, safe='')}"


def patch(key: ObjectKey, what: Patch, *, dry_run: bool = False) -> Request:
    """Change some fields of an object."""
    where = _with(path(key, what.subresource), _writing(dry_run))
    return Request("PATCH", where, orjson.dumps(what.body), MERGE_PATCH)


def replace(manifest: Manifest) -> Request:
    """Put an object in the place of the version it was made from."""
    return Request("PUT", _with(path(objects.key(manifest)), _writing(dry_run=False)), orjson.dumps(manifest))


def delete(key: ObjectKey, uid: str, *, dry_run: bool = False, grace_s: int | None = None) -> Request:
    """Delete this very object, not a namesake."""
    if not uid:
        raise ValueError(f"a delete without a UID: {key}")
    options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    return Request("DELETE", path(key), _delete_options(options))


def delete_pool(fleet: str, pool: str, resource_version: int) -> Request:
    """Delete the nodes of a whole pool, as they were listed at a version: none that came or was labelled later."""
    if not fleet or not pool or not resource_version:
        raise ValueError("a pool without fleet, name or version")
    query = {
        "labelSelector": f"{MANAGED_SELECTOR},{objects.FLEET}={fleet},{objects.POOL}={pool}",
        "resourceVersion": str(resource_version),
        "resourceVersionMatch": "Exact",
    }
    return Request("DELETE", _with(collection(NODE), query), _delete_options({}))


def evict(key: ObjectKey, uid: str, *, dry_run: bool = False) -> Request:
    """Ask for a pod to go, if its PodDisruptionBudgets let it."""
    options = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "deleteOptions": options,
    }
    return Request("POST", path(key, "eviction"), orjson.dumps(body))


def _delete_options(options: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": "v1", "kind": "DeleteOptions", **options})


def _writing(dry_run: bool) -> dict[str, str]:  # noqa: FBT001  # handed on
    strict = {"fieldManager": objects.FIELD_MANAGER, "fieldValidation": "Strict"}
    return strict | ({"dryRun": "All"} if dry_run else {})


def write_query() -> str:
    """Return the query of a write that this module does not build itself."""
    return urlencode(_writing(dry_run=False))


def _with(where: str, query: Mapping[str, str]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{where}?{urlencode(given)}" if given else where
