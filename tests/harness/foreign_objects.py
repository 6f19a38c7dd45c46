"""Objects that are not ours, and a check that they do not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kwokfleet.embedded import state
from tests.harness import kwok, waiting
from tests.harness.control_plane import ControlPlane

NAMESPACE = "foreign"
REAL, FAKE = "foreign-real", "foreign-fake"
Manifest = dict[str, Any]

QUIET = state.Spec(
    extra_args=(("kube-controller-manager", "controllers", "*,-node-lifecycle-controller,-ttl-controller"),)
)
"""Control plane without the two controllers that change nodes by themselves."""


def _node(name: str, **annotations: str) -> Manifest:
    metadata = {"name": name, "labels": {"team": "others"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": {"cpu": "4"}}}


def _objects() -> list[Manifest]:
    inside = {"namespace": NAMESPACE, "labels": {"team": "others"}}
    selector = {"matchLabels": {"team": "others"}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _node(REAL),
        _node(FAKE, **{"kwok.x-k8s.io/node": "fake"}),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "resident", **inside},
            "spec": {
                "nodeName": FAKE,
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none"}],
            },
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", **inside}, "data": {"a": "b"}},
        {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Stage",
            "metadata": {"name": "foreign-stage"},
            "spec": {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": selector, "next": {"delete": True}},
        },
    ]


_SEEN = (f"nodes/{REAL}", f"nodes/{FAKE}")
_INSIDE = ("pods/resident", "configmaps/notes")
_STAGE = "stages.kwok.x-k8s.io/foreign-stage"


def _state(cluster: ControlPlane) -> str:
    show = ("--output", "json", "--show-managed-fields")
    return "\n".join(
        (
            cluster.kubectl("get", *_SEEN, *show),
            cluster.kubectl("get", "--namespace", NAMESPACE, *_INSIDE, *show),
            cluster.kubectl("get", _STAGE, *show),
        )
    )


def _create(cluster: ControlPlane) -> None:
    kwok.install_crds(cluster)
    namespace, *others = _objects()
    cluster.apply(namespace)
    waiting.until(lambda: not cluster.try_kubectl("get", "sa/default", "--namespace", NAMESPACE).returncode)
    cluster.apply({"apiVersion": "v1", "kind": "List", "items": others})


def _is_complete(cluster: ControlPlane) -> bool:
    queries = (_STAGE, *_SEEN), ("--namespace", NAMESPACE, *_INSIDE)
    return not any(cluster.try_kubectl("get", *query).returncode for query in queries)


@contextmanager
def assert_unchanged(cluster: ControlPlane) -> Iterator[None]:
    """Check that the block does not change foreign objects."""
    if not _is_complete(cluster):  # kwok may have applied the Stage in an earlier test
        _create(cluster)
    before = _state(cluster)
    yield
    assert _state(cluster) == before
