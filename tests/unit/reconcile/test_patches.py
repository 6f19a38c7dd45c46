"""Patches reach the desired object and change nothing else."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff, patches, plan_formats
from kwokfleet.reconcile.changes import Change, ChangeAction
from tests.harness import manifests

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


def merged(target: Any, patch: Any) -> Any:  # noqa: ANN401  # any JSON
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def patched(have: Observed, differences: tuple[diff.Difference, ...]) -> Manifest:
    """Return an object after all patches; each patch changes one subresource, as in the API server."""
    manifest = have.manifest
    for patch in patches.build_patches(have, differences):
        assert patch.body["metadata"]["uid"] == have.uid
        assert ("status" in patch.body) == (patch.subresource == "status")
        body = {name: value for name, value in patch.body.items() if name != "metadata"}
        metadata = {key: value for key, value in patch.body["metadata"].items() if key in ("labels", "annotations")}
        manifest = merged(manifest, {**body, "metadata": metadata})
    return manifest


# any node


def maps(*names: str) -> st.SearchStrategy[dict[str, str]]:
    """Draw labels, annotations or amounts."""
    return st.dictionaries(st.sampled_from(names), st.sampled_from(["", "1", "two"]), max_size=4)


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu"]),
    st.sampled_from(["1", "1000m", "0.5", "500m", "1Ti", "1024Gi", "0"]),
    max_size=4,
)
TAINTS = st.lists(
    st.builds(
        lambda key, value, effect: {"key": key, "effect": effect} | ({"value": value} if value else {}),
        st.sampled_from(["a", "example.com/b", "c"]),
        st.sampled_from(["", "1", "two"]),
        st.sampled_from(["NoSchedule", "NoExecute"]),
    ),
    max_size=4,
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)
ADDRESSES = st.lists(
    st.builds(
        lambda kind, address: {"type": kind, "address": address},
        st.sampled_from(["InternalIP", "Hostname", "ExternalIP"]),
        st.sampled_from(["10.0.0.1", "a"]),
    ),
    max_size=3,
    unique_by=lambda address: address["type"],
)


@st.composite
def nodes(draw: st.DrawFn) -> Manifest:
    """Draw a desired node."""
    status: Manifest = {"nodeInfo": draw(maps("osImage", "kernelVersion"))}
    addresses = draw(ADDRESSES)
    return manifests.node(
        labels=draw(maps("a", "example.com/b", "c")),
        annotations=draw(maps("a", "example.com/b", "c")),
        taints=draw(TAINTS) + draw(st.sampled_from([[], [objects.FAKE_NODE_TAINT]])),
        capacity=draw(AMOUNTS),
        spec=draw(st.sampled_from([{}, {"unschedulable": True}])),
        status=status | ({"addresses": addresses} if addresses else {}),
    )


def with_others(node: Manifest) -> Manifest:
    """Return a node with a foreign label, annotation, taint and resource."""
    metadata = node["metadata"]
    return {
        **node,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], "theirs": "1"},
            "annotations": {**metadata["annotations"], "theirs": "1"},
        },
        "spec": {**node["spec"], "taints": [NOT_READY, *node["spec"].get("taints", [])]},
        "status": {**node["status"], "capacity": {**node["status"]["capacity"], "example.com/theirs": "1"}},
    }


THEIRS: dict[str, Any] = {"f:status": {"f:capacity": {"f:example.com/theirs": {}}}}


@settings(
    max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(before=nodes(), want=nodes())
def test_patches_leave_no_difference_and_keep_foreign_fields(before: Manifest, want: Manifest) -> None:
    """For any pair of nodes."""
    ours = manifests.owned_fields(before)
    have = manifests.observe(with_others(before), ours, THEIRS)
    differences = diff.differences(want, have)
    after = patched(have, differences)
    assert (
        diff.differences(
            want, manifests.observe(after, manifests.fields({"metadata": after["metadata"]}) | ours, THEIRS)
        )
        == ()
    )
    assert NOT_READY in after["spec"]["taints"]
    assert after["status"]["capacity"]["example.com/theirs"] == "1"
    assert after["metadata"]["labels"]["theirs"] == after["metadata"]["annotations"]["theirs"] == "1"


@settings(
    max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(before=nodes(), want=nodes())
def test_a_diff_shows_what_the_patches_do(before: Manifest, want: Manifest) -> None:
    """The merged object in `diff` equals the patched object."""
    have = manifests.observe(with_others(before), manifests.owned_fields(before), THEIRS)
    differences = diff.differences(want, have)
    change = Change(ChangeAction.UPDATE, have.key, "lab", "gpu", "differs", want, have, differences)
    assert normal(plan_formats.merged_manifest(change)) == normal(patched(have, differences))


def normal(part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part of a manifest with sorted lists and without empty parts."""
    if isinstance(part, dict):
        return {name: normalized for name, value in part.items() if (normalized := normal(value)) not in ({}, [])}
    if isinstance(part, list):
        return sorted((normal(value) for value in part), key=str)
    return part


# one patch


def test_a_patch_of_single_fields_has_no_resource_version() -> None:
    """It has only the UID, so concurrent changes of other fields do not conflict."""
    have = manifests.observe(manifests.node(labels={"a": "1", "b": "1"}))
    [patch] = patches.build_patches(have, diff.differences(manifests.node(labels={"a": "2"}), have))
    assert (patch.subresource, patch.body) == (
        "",
        {"metadata": {"uid": have.uid, "labels": {"a": "2", "b": None}}},
    )


def test_a_patch_of_a_list_has_the_resource_version() -> None:
    """Otherwise it could remove items added concurrently."""
    have = manifests.observe(manifests.node())
    [patch] = patches.build_patches(have, diff.differences(manifests.node(taints=[]), have))
    assert patch.body == {"metadata": {"uid": have.uid, "resourceVersion": "7"}, "spec": {"taints": None}}


def test_a_status_is_patched_as_subresource() -> None:
    """Two requests: one for the object, one for its status."""
    have = manifests.observe(manifests.node())
    want = manifests.node(labels={"a": "1"}, capacity={"cpu": "64"})
    built = patches.build_patches(have, diff.differences(want, have))
    assert [patch.subresource for patch in built] == ["", "status"]
    assert built[1].body["status"] == {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "64"}}


def test_a_cordon_changes_only_unschedulable() -> None:
    """The UID protects a recreated node."""
    have = manifests.observe(manifests.node())
    assert patches.cordon(have).body == {"metadata": {"uid": have.uid}, "spec": {"unschedulable": True}}
