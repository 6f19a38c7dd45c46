"""Requests to the API server as values: built here, sent elsewhere.

Every write of kwokfleet is built in this module. A delete names one object and its UID, or a whole pool by a
selector that cannot be empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import orjson

from kwokfleet.kube import backoff, objects
from kwokfleet.kube.objects import Manifest, ObjectKey

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
PAGE_SIZE = 500
CRD_API_VERSION = "apiextensions.k8s.io/v1"
_READS = ("GET", "HEAD")
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Kind(NamedTuple):
    """A kind and its resource name in paths."""

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
    *(Kind(objects.STAGE_API_VERSION, *names) for names in objects.KWOK_CLUSTER_KINDS.items()),
    *(Kind(objects.STAGE_API_VERSION, *names, namespaced=True) for names in objects.KWOK_NAMESPACED_KINDS.items()),
)
"""kwok's kinds other than Stage. Few fleets use them, and a cluster may lack them."""
MANAGED_KINDS = (NODE, STAGE, NAMESPACE, CONFIG_MAP, STORAGE_CLASS, *KWOK_KINDS)
"""Kinds that fleet files declare; the StorageClass belongs to a stage set of the library."""
_OTHERS = (POD, LEASE, DEPLOYMENT, STATEFUL_SET, FLEET, EVENT, CUSTOM_RESOURCE_DEFINITION)
_KINDS = {(kind.api_version, kind.kind): kind for kind in (*MANAGED_KINDS, *_OTHERS)}

MANAGED_SELECTOR = f"{objects.MANAGED_BY}={objects.KWOKFLEET}"
DECLARED_SELECTOR = f"{MANAGED_SELECTOR},!{objects.WAVE}"
"""Managed objects that files declare; objects of Waves are not among them."""
UNMANAGED_SELECTOR = f"{objects.MANAGED_BY}!={objects.KWOKFLEET}"


@dataclass(frozen=True, slots=True)
class Patch:
    """Body of a PATCH request, and its subresource."""

    subresource: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the API server."""

    method: str
    path: str
    """Path and query."""
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON

    @property
    def is_write(self) -> bool:
        """Whether the request changes an object; an access review is a POST that changes none."""
        return self.method not in _READS and self.path != _ACCESS_REVIEWS


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the API server."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Manifest:
        """Return the body as a value; empty if it is not a JSON object."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """The error message."""
        message = self.json().get("message")
        return str(message) if message else self.body[:200].decode(errors="replace").strip()

    @property
    def retry_after_s(self) -> float:
        """The Retry-After header in seconds, up to a maximum."""
        return backoff.retry_after_s(self.headers.get("Retry-After") or "")


class RequestSender(Protocol):
    """Sends requests: a KubeClient once, a ThrottledClient with retries."""

    @property
    def host(self) -> str:
        """The API server's address."""

    def send(self, request: Request) -> Response:
        """Return the response to a request."""


def in_namespace(kind: Kind, namespace: str) -> Kind:
    """Return a kind limited to one namespace, for lists and watches with the rights of that namespace."""
    return kind._replace(plural=f"namespaces/{quote(namespace, safe='')}/{kind.plural}")


def collection(kind: Kind, namespace: str = "") -> str:
    """Return the path of all objects of a kind."""
    group = "/api/v1" if kind.api_version == "v1" else f"/apis/{kind.api_version}"
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{group}{inside}/{kind.plural}"


def item_key(kind: Kind, item: Manifest) -> ObjectKey:
    """Return the key of a list item; items do not name their kind."""
    metadata = item["metadata"]
    return ObjectKey(kind.api_version, kind.kind, metadata.get("namespace", ""), metadata["name"])


def path(key: ObjectKey, subresource: str = "", kind: Kind | None = None) -> str:
    """Return the path of one object. An empty name is an error, because its path would mean all objects."""
    kind = kind or _KINDS[key.api_version, key.kind]
    if not key.name or (kind.namespaced and not key.namespace):
        raise ValueError(f"an object needs a name, and a namespace if it is namespaced: {key}")
    below = f"/{subresource}" if subresource else ""
    return f"{collection(kind, key.namespace if kind.namespaced else '')}/{quote(key.name, safe='')}{below}"


def get(key: ObjectKey) -> Request:
    """Return the request that reads one object."""
    return Request("GET", path(key))


def list_page(  # noqa: PLR0913  # the filters of a list
    kind: Kind,
    selector: str = "",
    token: str = "",
    *,
    namespace: str = "",
    fields: str = "",
    metadata_only: bool = False,
) -> Request:
    """Return the request for one page of a list; *token* continues a list."""
    query = {"limit": str(PAGE_SIZE), "labelSelector": selector, "fieldSelector": fields, "continue": token}
    return Request("GET", _with(collection(kind, namespace), query), accept=METADATA_ONLY if metadata_only else JSON)


def watch(kind: Kind, selector: str, since: str, timeout_s: int, *, fields: str = "") -> Request:
    """Return the request for a watch from a version on; without one, the current objects come first."""
    query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
    query |= {"labelSelector": selector, "fieldSelector": fields, "resourceVersion": since}
    if not since:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    return Request("GET", _with(collection(kind), query))


def list_access_review(kind: Kind, namespace: str = "") -> Request:
    """Return the access review for listing a kind in a namespace; without one, in all."""
    group = kind.api_version.rpartition("/")[0]
    attributes = {"verb": "list", "group": group, "resource": kind.plural, "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    return Request("POST", _ACCESS_REVIEWS, orjson.dumps(body | {"spec": {"resourceAttributes": attributes}}))


def create(manifest: Manifest, *, dry_run: bool = False) -> Request:
    """Return the request that creates an object."""
    return create_any(_KINDS[manifest["apiVersion"], manifest["kind"]], manifest, dry_run=dry_run)


def create_any(kind: Kind, manifest: Manifest, *, dry_run: bool = False) -> Request:
    """Return the request that creates an object of a discovered kind."""
    parent = collection(kind, manifest["metadata"].get("namespace", "") if kind.namespaced else "")
    return Request("POST", _with(parent, _write_options(dry_run)), orjson.dumps(manifest))


def get_any(kind: Kind, manifest: Manifest) -> Request:
    """Return the request that reads the object with a manifest's name."""
    return Request("GET", path(item_key(kind, manifest), kind=kind))


def delete_any(kind: Kind, manifest: Manifest, uid: str) -> Request:
    """Return the request that deletes the object of a discovered kind with this UID."""
    return delete(item_key(kind, manifest), uid, kind=kind)


def apply_any(kind: Kind, manifest: Manifest, manager: str, *, force: bool = False, dry_run: bool = False) -> Request:
    """Return the server-side apply of an object; a field of another manager is a conflict without *force*."""
    query = {**_write_options(dry_run), "fieldManager": manager} | ({"force": "true"} if force else {})
    target = path(item_key(kind, manifest), kind=kind)
    return Request("PATCH", _with(target, query), orjson.dumps(manifest), APPLY_PATCH)


def patch(key: ObjectKey, change: Patch, *, dry_run: bool = False) -> Request:
    """Return the request that changes some fields of an object."""
    target = _with(path(key, change.subresource), _write_options(dry_run))
    return Request("PATCH", target, orjson.dumps(change.body), MERGE_PATCH)


def replace(manifest: Manifest) -> Request:
    """Return the request that replaces an object in the version of the manifest."""
    return Request("PUT", _with(path(objects.key(manifest)), _write_options(dry_run=False)), orjson.dumps(manifest))


def delete(
    key: ObjectKey, uid: str, *, kind: Kind | None = None, dry_run: bool = False, grace_s: int | None = None
) -> Request:
    """Return the request that deletes the object with this UID."""
    if not uid:
        raise ValueError(f"a delete needs a UID: {key}")
    options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    return Request("DELETE", path(key, kind=kind), _delete_options(options))


def delete_pool(fleet: str, pool: str, resource_version: int) -> Request:
    """Return the request that deletes all nodes of a pool in a version: no node that was created or labelled later."""
    if not fleet or not pool or not resource_version:
        raise ValueError("a pool delete needs fleet, pool and version")
    query = {
        "labelSelector": f"{MANAGED_SELECTOR},{objects.FLEET}={fleet},{objects.POOL}={pool}",
        "resourceVersion": str(resource_version),
        "resourceVersionMatch": "Exact",
    }
    return Request("DELETE", _with(collection(NODE), query), _delete_options({}))


def evict(key: ObjectKey, uid: str) -> Request:
    """Return the eviction of a pod; PodDisruptionBudgets may reject it."""
    metadata, options = {"name": key.name, "namespace": key.namespace}, {"preconditions": {"uid": uid}}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    return Request("POST", path(key, "eviction"), orjson.dumps(body))


def _delete_options(options: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": "v1", "kind": "DeleteOptions", **options})


def _write_options(dry_run: bool) -> dict[str, str]:  # noqa: FBT001  # passed on
    strict = {"fieldManager": objects.FIELD_MANAGER, "fieldValidation": "Strict"}
    return strict | ({"dryRun": "All"} if dry_run else {})


def write_query() -> str:
    """Return the query of a write that is built elsewhere."""
    return urlencode(_write_options(dry_run=False))


def _with(path: str, query: Mapping[str, str]) -> str:
    parameters = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(parameters)}" if parameters else path
