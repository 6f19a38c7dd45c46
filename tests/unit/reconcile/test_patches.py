"""Patches make an object what is asked for, and touch nothing else."""

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
    """Apply a JSON merge patch, as RFC 7386 has it."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made


def patched(have: Observed, found: tuple[diff.Difference, ...]) -> Manifest:
    """Return an object after all patches; each subresource takes only what is its own, as the API server does."""
    made = have.manifest
    for each in patches.build_patches(have, found):
        assert each.body["metadata"]["uid"] == have.uid
        assert ("status" in each.body) == (each.subresource == "status")
        body = {name: value for name, value in each.body.items() if name != "metadata"}
        metadata = {key: value for key, value in each.body["metadata"].items() if key in ("labels", "annotations")}
        made = merged(made, {**body, "metadata": metadata})
    return made


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
    """Draw a node that a file could ask for."""
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
    """Return a node on which others have left something: a label, an annotation, a taint, a resource."""
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
def test_patches_leave_no_difference_and_what_is_not_ours(before: Manifest, want: Manifest) -> None:
    """From any node that we made to any other, with the traces of others on it."""
    ours = manifests.owned_fields(before)
    have = manifests.observe(with_others(before), ours, THEIRS)
    found = diff.differences(want, have)
    after = patched(have, found)
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
    """The object that `diff` shows as the outcome is the one that comes of the patches."""
    have = manifests.observe(with_others(before), manifests.owned_fields(before), THEIRS)
    found = diff.differences(want, have)
    change = Change(ChangeAction.UPDATE, have.key, "lab", "gpu", "differs", want, have, found)
    assert normal(plan_formats.merged_manifest(change)) == normal(patched(have, found))


def normal(part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part of a manifest without the order of lists, and without parts that are empty."""
    if isinstance(part, dict):
        return {name: made for name, each in part.items() if (made := normal(each)) not in ({}, [])}
    if isinstance(part, list):
        return sorted((normal(each) for each in part), key=str)
    return part


# one patch


def test_a_patch_of_single_fields_bears_a_newer_version() -> None:
    """It names the UID, not the version: somebody else's change of another field does not matter."""
    have = manifests.observe(manifests.node(labels={"a": "1", "b": "1"}))
    [patch] = patches.build_patches(have, diff.differences(manifests.node(labels={"a": "2"}), have))
    assert (patch.subresource, patch.body) == (
        "",
        {"metadata": {"uid": have.uid, "labels": {"a": "2", "b": None}}},
    )


def test_a_patch_of_a_list_names_the_version_that_it_was_read_from() -> None:
    """Else it would take away what somebody else has put into it meanwhile."""
    have = manifests.observe(manifests.node())
    [patch] = patches.build_patches(have, diff.differences(manifests.node(taints=[]), have))
    assert patch.body == {"metadata": {"uid": have.uid, "resourceVersion": "7"}, "spec": {"taints": None}}


def test_a_status_is_patched_in_its_own_place() -> None:
    """Two requests: the API server takes the rest from one, the status from the other."""
    have = manifests.observe(manifests.node())
    want = manifests.node(labels={"a": "1"}, capacity={"cpu": "64"})
    made = patches.build_patches(have, diff.differences(want, have))
    assert [each.subresource for each in made] == ["", "status"]
    assert made[1].body["status"] == {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "64"}}


def test_a_cordon_touches_nothing_else() -> None:
    """And reaches no namesake."""
    have = manifests.observe(manifests.node())
    assert patches.cordon(have).body == {"metadata": {"uid": have.uid}, "spec": {"unschedulable": True}}
