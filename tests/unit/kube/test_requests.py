"""Requests: each names one object, and a delete its UID."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from kwokfleet.kube import objects, requests
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.requests import Patch
from tests.harness import manifests

NODE = ObjectKey("v1", "Node", "", "lab-gpu-0")
POD = ObjectKey("v1", "Pod", "work", "web")


def query(request: requests.Request) -> dict[str, str]:
    """Return a request's query."""
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


def path(request: requests.Request) -> str:
    """Return a request's path without its query."""
    return urlsplit(request.path).path


@pytest.mark.parametrize(
    "key",
    [
        ObjectKey("v1", "Node", "", ""),
        ObjectKey("v1", "Pod", "", "web"),
        ObjectKey("v1", "ConfigMap", "", "config"),
        ObjectKey("v1", "Pod", "work", ""),
    ],
)
def test_a_name_is_never_empty(key: ObjectKey) -> None:
    """The path would mean all objects of the kind."""
    for make in (
        requests.get,
        lambda key: requests.delete(key, "uid"),
        lambda key: requests.patch(key, Patch("", {})),
        lambda key: requests.evict(key, "uid"),
    ):
        with pytest.raises(ValueError, match="needs a name"):
            make(key)


def test_names_are_quoted_in_paths() -> None:
    """Slashes and dots are part of the name."""
    assert path(requests.get(NODE._replace(name="a/../b?c"))) == "/api/v1/nodes/a%2F..%2Fb%3Fc"


def test_a_delete_names_the_uid() -> None:
    """Another object of the same name is never deleted."""
    request = requests.delete(NODE, "uid-1")
    assert (request.method, path(request)) == ("DELETE", "/api/v1/nodes/lab-gpu-0")
    assert json.loads(request.body or b"")["preconditions"] == {"uid": "uid-1"}
    with pytest.raises(ValueError, match="needs a UID"):
        requests.delete(NODE, "")


def test_a_pool_is_deleted_by_labels_that_cannot_be_empty() -> None:
    """Only in one version: a node that is labelled later is not deleted."""
    request = requests.delete_pool("lab", "gpu", 42)
    assert path(request) == "/api/v1/nodes"
    assert query(request) == {
        "labelSelector": "app.kubernetes.io/managed-by=kwokfleet,kwokfleet.dev/fleet=lab,kwokfleet.dev/pool=gpu",
        "resourceVersion": "42",
        "resourceVersionMatch": "Exact",
    }
    for wrong in (("", "gpu", 42), ("lab", "", 42), ("lab", "gpu", 0)):
        with pytest.raises(ValueError, match="a pool delete needs"):
            requests.delete_pool(*wrong)


def test_every_write_has_our_field_manager_and_strict_validation() -> None:
    """An unknown field is an error."""
    patch = Patch("status", {"status": {}})
    for request in (requests.create(manifests.node()), requests.patch(NODE, patch)):
        assert query(request) == {"fieldManager": "kwokfleet", "fieldValidation": "Strict"}
    assert path(requests.patch(NODE, patch)) == "/api/v1/nodes/lab-gpu-0/status"
    assert requests.patch(NODE, patch).content_type == "application/merge-patch+json"


def test_writes_can_be_dry_runs() -> None:
    """In the query, or in the body where the API server expects it."""
    assert query(requests.create(manifests.node(), dry_run=True))["dryRun"] == "All"
    assert query(requests.patch(NODE, Patch("", {}), dry_run=True))["dryRun"] == "All"
    assert json.loads(requests.delete(NODE, "uid", dry_run=True).body or b"")["dryRun"] == ["All"]


def test_paths_are_those_of_the_api() -> None:
    """Core kinds, custom kinds, namespaced kinds."""
    stage = objects.key(manifests.stage("a"))
    assert path(requests.get(stage)) == "/apis/kwok.x-k8s.io/v1alpha1/stages/a"
    assert path(requests.get(POD)) == "/api/v1/namespaces/work/pods/web"
    assert path(requests.evict(POD, "uid")) == "/api/v1/namespaces/work/pods/web/eviction"


def test_a_watch_without_a_version_begins_with_the_current_objects() -> None:
    """With a version, it continues from there."""
    first, later = (requests.watch(requests.NODE, requests.MANAGED_SELECTOR, since, 60) for since in ("", "42"))
    assert query(first)["sendInitialEvents"] == "true"
    assert "resourceVersion" not in query(first)
    assert query(later)["resourceVersion"] == "42"
    assert "sendInitialEvents" not in query(later)
    assert query(later)["labelSelector"] == "app.kubernetes.io/managed-by=kwokfleet"


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"\xff", b'{"message": 5}'])
def test_any_response_body_can_be_parsed(body: bytes) -> None:
    """A proxy may send anything; the message is a text."""
    answer = requests.Response(502, body)
    assert isinstance(answer.json(), dict)
    assert isinstance(answer.message, str)
