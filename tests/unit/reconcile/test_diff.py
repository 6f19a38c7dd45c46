"""Differences between desired and live objects, and field ownership."""

from typing import Any

import pytest

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.diff import ABSENT
from tests.harness import manifests

Differences = dict[str, tuple[Any, Any]]
FAKE = objects.FAKE_NODE_TAINT
SPOT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


def differences(want: Manifest, have: Observed) -> Differences:
    """Return the differences as `field: (live, desired)`."""
    return {
        ".".join(difference.path): (difference.live, difference.desired) for difference in diff.differences(want, have)
    }


def with_field(manifest: Manifest, *path: str, value: Any) -> Manifest:  # noqa: ANN401  # any part of a manifest
    """Return a manifest with one more field of another manager."""
    if len(path) == 1:
        return {**manifest, path[0]: value}
    return {**manifest, path[0]: with_field(manifest.get(path[0], {}), *path[1:], value=value)}


# equal values in other notation


@pytest.mark.parametrize(
    ("want", "live"),
    [
        ("1024Gi", "1Ti"),
        ("0.5", "500m"),
        ("1500m", "1.5"),
        ("1e3", "1k"),
        ("2", "2"),
        ("0", "0"),
        ("1000000Ki", "1024000000"),
    ],
)
def test_equal_quantities_are_no_difference(want: str, live: str) -> None:
    """The API server normalizes quantities."""
    assert (
        differences(manifests.node(capacity={"cpu": want}), manifests.observe(manifests.node(capacity={"cpu": live})))
        == {}
    )


@pytest.mark.parametrize(("want", "live"), [("1Gi", "1G"), ("1", "1m"), ("2", "1"), ("1", "nonsense")])
def test_another_quantity_is_a_difference(want: str, live: str) -> None:
    """In capacity and in allocatable."""
    differing = differences(
        manifests.node(capacity={"cpu": want}), manifests.observe(manifests.node(capacity={"cpu": live}))
    )
    assert differing == {"status.capacity.cpu": (live, want), "status.allocatable.cpu": (live, want)}


def test_label_values_are_not_compared_as_quantities() -> None:
    """In a label `1` is not `1.0`."""
    differing = differences(manifests.node(labels={"a": "1.0"}), manifests.observe(manifests.node(labels={"a": "1"})))
    assert differing == {"metadata.labels.a": ("1", "1.0")}


@pytest.mark.parametrize("zero", [False, 0, "", [], {}, None])
def test_zero_values_of_built_in_kinds_may_be_absent(zero: object) -> None:
    """The API server drops them."""
    assert differences(manifests.node(spec={"unschedulable": zero}), manifests.observe(manifests.node())) == {}


def test_zero_values_in_lists_of_built_in_kinds_may_be_absent() -> None:
    """At any depth; any other value is a difference."""

    def images(**fields: object) -> Manifest:
        return manifests.node(status={"images": [{"names": ["a"], **fields}, {"names": ["b"]}]})

    bare = manifests.observe(images())
    assert differences(images(sizeBytes=0, inner={"on": False, "all": []}), bare) == {}
    assert list(differences(images(sizeBytes=1), bare)) == ["status.images"]
    assert list(differences(images(), manifests.observe(images(sizeBytes=1)))) == ["status.images"]
    assert differences(manifests.stage(steps=[{"weight": 0}]), manifests.observe(manifests.stage(steps=[{}]))) != {}


def test_an_empty_label_or_annotation_is_a_value() -> None:
    """Its absence is a difference."""
    want = manifests.node(labels={"a": ""}, annotations={"b": ""})
    assert differences(want, manifests.observe(manifests.node())) == {
        "metadata.labels.a": (ABSENT, ""),
        "metadata.annotations.b": (ABSENT, ""),
    }


def test_custom_resources_keep_zero_values() -> None:
    """Only null is dropped, so a missing zero value is a difference."""
    have = manifests.observe(manifests.stage())
    assert differences(manifests.stage(immediateNextStage=False), have) == {"spec.immediateNextStage": (ABSENT, False)}
    assert differences(manifests.stage(immediateNextStage=None), have) == {}


def test_a_boolean_difference_is_reported() -> None:
    """True and False differ."""
    have = manifests.observe(manifests.node(spec={"unschedulable": True}))
    assert differences(manifests.node(spec={"unschedulable": False}), have) == {"spec.unschedulable": (True, False)}


def test_missing_parts_are_reported_field_by_field() -> None:
    """A patch then sets nothing else."""
    want = manifests.node(status={"nodeInfo": {"osImage": "a", "kernelVersion": "b"}})
    assert differences(want, manifests.observe(manifests.node())) == {
        "status.nodeInfo.osImage": (ABSENT, "a"),
        "status.nodeInfo.kernelVersion": (ABSENT, "b"),
    }


# field ownership


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_owned_fields_that_are_no_longer_desired_are_removed(part: str) -> None:
    """ManagedFields record the ownership."""
    parts: dict[str, Any] = {part: {"example.com/a": "1"}}
    have = manifests.observe(manifests.node(**parts))
    assert differences(manifests.node(), have) == {f"metadata.{part}.example.com/a": ("1", ABSENT)}


@pytest.mark.parametrize(
    "path", [("metadata", "labels", "a"), ("metadata", "annotations", "a"), ("spec", "externalID")]
)
def test_fields_of_other_managers_are_kept(path: tuple[str, ...]) -> None:
    """They are neither desired nor owned."""
    ours = manifests.owned_fields(manifests.node())
    assert (
        differences(manifests.node(), manifests.observe(with_field(manifests.node(), *path, value="theirs"), ours))
        == {}
    )


def test_desired_fields_are_compared_regardless_of_their_manager() -> None:
    """Drift is corrected."""
    want = manifests.node(labels={"a": "ours"})
    ours = manifests.owned_fields(manifests.node())
    have = manifests.observe(manifests.node(labels={"a": "theirs"}), ours)
    assert differences(want, have) == {"metadata.labels.a": ("theirs", "ours")}


def test_only_owned_fields_of_a_shared_part_are_removed() -> None:
    """At any depth."""
    node = manifests.node(spec={"configSource": {"configMap": {"ours": "1"}}})
    have = manifests.observe(
        with_field(node, "spec", "configSource", "configMap", "theirs", value="1"), manifests.owned_fields(node)
    )
    assert differences(manifests.node(), have) == {"spec.configSource.configMap.ours": ("1", ABSENT)}


def test_the_whole_spec_of_a_stage_is_owned() -> None:
    """Any added field changes its behaviour; foreign labels do not."""
    want = manifests.stage(selector={"matchExpressions": []}, next={"statusTemplate": "a"})
    live = with_field(want, "spec", "selector", "matchLabels", value={"theirs": "1"})
    live = with_field(live, "spec", "next", "delete", value=True)
    live = with_field(live, "metadata", "labels", "theirs", value="1")
    assert differences(want, manifests.observe(live, manifests.owned_fields(want))) == {
        "spec.selector.matchLabels": ({"theirs": "1"}, ABSENT),
        "spec.next.delete": (True, ABSENT),
    }


def test_an_owned_list_is_removed_completely() -> None:
    """Atomic lists have one owner."""
    have = manifests.observe(manifests.stage(steps=[{"a": 1}]))
    assert differences(manifests.stage(), have) == {"spec.steps": ([{"a": 1}], ABSENT)}


def test_status_fields_without_manager_are_owned() -> None:
    """The API server records no manager for the status of a POST."""
    have = manifests.observe(manifests.node(capacity={"cpu": "32", "nvidia.com/gpu": "8"}))
    assert differences(manifests.node(), have) == {
        "status.capacity.nvidia.com/gpu": ("8", ABSENT),
        "status.allocatable.nvidia.com/gpu": ("8", ABSENT),
    }


def test_status_fields_of_another_manager_are_kept() -> None:
    """A device plugin's resource, an agent's feature."""
    live = manifests.node(capacity={"cpu": "32", "example.com/nic": "2"}, status={"runtimeHandlers": [{"name": "a"}]})
    theirs = manifests.fields(
        {"status": {"capacity": {"example.com/nic": ""}, "allocatable": {"example.com/nic": ""}, "runtimeHandlers": []}}
    )
    assert differences(manifests.node(), manifests.observe(live, theirs=theirs)) == {}


def test_zero_values_in_a_status_are_ignored() -> None:
    """The API server adds them by default."""
    live = manifests.node(status={"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {"bootID": ""}})
    assert differences(manifests.node(), manifests.observe(live)) == {}


def test_volatile_fields_are_not_compared() -> None:
    """Conditions, images in use, the TTL controller's annotation."""
    moving = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running", "volumesInUse": ["a"]}
    live = manifests.node(status=moving, annotations={"node.alpha.kubernetes.io/ttl": "15"})
    assert differences(manifests.node(), manifests.observe(live)) == {}


def test_a_heartbeat_is_an_equivalent_state() -> None:
    """Condition times are ignored; a change of the Ready status is not."""

    def beat(status: str, time: str, version: str) -> Observed:
        condition = {"type": "Ready", "status": status, "lastHeartbeatTime": time}
        return manifests.observe(manifests.node(status={"conditions": [condition]}), resourceVersion=version)

    assert beat("True", "08:00", "7").is_equivalent(beat("True", "08:10", "8"))
    assert not beat("True", "08:00", "7").is_equivalent(beat("False", "08:00", "8"))


# API server defaults


def test_api_server_fields_of_a_namespace_are_kept() -> None:
    """Its label and finalizer, although managedFields list us as manager."""
    live = manifests.namespace()
    live = with_field(live, "metadata", "labels", "kubernetes.io/metadata.name", value="work")
    live = with_field(live, "spec", "finalizers", value=["kubernetes"])
    assert differences(manifests.namespace(), manifests.observe(live)) == {}


def test_defaults_of_a_stage_are_kept() -> None:
    """Any value other than the default is removed."""
    live = manifests.stage(weight=0, next={"delete": True, "statusSubresource": "status"})
    assert differences(manifests.stage(next={"delete": True}), manifests.observe(live)) == {}
    assert differences(manifests.stage(), manifests.observe(manifests.stage(weight=3))) == {"spec.weight": (3, ABSENT)}


# taints


def test_taints_are_identified_by_key_and_effect() -> None:
    """Order is ignored; the same key with another effect is another taint."""
    both = [SPOT, {**SPOT, "effect": "NoExecute"}]
    assert differences(manifests.node(taints=both), manifests.observe(manifests.node(taints=both[::-1]))) == {}
    differing = differences(manifests.node(taints=both), manifests.observe(manifests.node(taints=both[:1])))
    assert differing["spec.taints.spot:NoExecute"] == (ABSENT, both[1])


def test_a_taints_value_is_a_difference() -> None:
    """An empty value equals no value."""
    other = {**SPOT, "value": "no"}
    have = manifests.observe(manifests.node(taints=[other]))
    assert differences(manifests.node(taints=[SPOT]), have) == {"spec.taints.spot:NoSchedule": (other, SPOT)}
    bare = {"key": "spot", "effect": "NoSchedule"}
    assert (
        differences(manifests.node(taints=[{**SPOT, "value": ""}]), manifests.observe(manifests.node(taints=[bare])))
        == {}
    )


def test_taints_of_other_managers_are_kept() -> None:
    """Node controllers use the same list, and managedFields may list us as manager."""
    live = manifests.node()
    live = with_field(live, "spec", "taints", value=[FAKE, NOT_READY, {"key": "mine", "effect": "NoSchedule"}])
    assert differences(manifests.node(), manifests.observe(live)) == {}


def test_an_owned_taint_is_removed_with_its_annotation() -> None:
    """The annotation lists owned taints."""
    have = manifests.observe(manifests.node(taints=[FAKE, SPOT]))
    assert differences(manifests.node(), have) == {
        "metadata.annotations.kwokfleet.dev/taints": ("spot:NoSchedule", ABSENT),
        "spec.taints.spot:NoSchedule": (SPOT, ABSENT),
    }


def test_the_fake_taint_is_owned_without_annotation() -> None:
    """`taint: false` removes it and keeps foreign taints."""
    live = with_field(manifests.node(), "spec", "taints", value=[FAKE, NOT_READY])
    assert differences(manifests.node(taints=[]), manifests.observe(live)) == {
        "spec.taints.kwok.x-k8s.io/node:NoSchedule": (FAKE, ABSENT)
    }


# addresses


def addresses(**by_type: str) -> list[dict[str, str]]:
    """Return status addresses."""
    return [{"type": kind, "address": address} for kind, address in by_type.items()]


def test_addresses_are_identified_by_type() -> None:
    """Order is ignored."""
    want = manifests.node(status={"addresses": addresses(InternalIP="10.0.0.1", Hostname="a")})
    same = manifests.node(status={"addresses": addresses(Hostname="a", InternalIP="10.0.0.1")})
    assert differences(want, manifests.observe(same)) == {}
    other = manifests.node(status={"addresses": addresses(Hostname="a", InternalIP="10.9.9.9")})
    assert list(differences(want, manifests.observe(other))) == ["status.addresses.InternalIP"]


def test_an_address_without_manager_is_removed() -> None:
    """Addresses set by kwok or a cloud controller are kept."""
    want = manifests.node(status={"addresses": addresses(Hostname="a")})
    live = manifests.node(status={"addresses": addresses(Hostname="a", ExternalIP="1.2.3.4")})
    assert list(differences(want, manifests.observe(live))) == ["status.addresses.ExternalIP"]
    claimed: dict[str, Any] = {
        "f:status": {"f:addresses": {'k:{"type":"ExternalIP"}': {".": {}, "f:address": {}, "f:type": {}}}}
    }
    assert differences(want, manifests.observe(live, theirs=claimed)) == {}


# immutable fields


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"providerID": "kwok://a"}, {"providerID": "kwok://b"}),
        ({"providerID": "kwok://a"}, {}),
        (
            {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
            {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        ),
        ({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}, {}),
    ],
)
def test_changed_immutable_fields_need_a_new_node(before: Manifest, after: Manifest) -> None:
    """The API server rejects changes once they are set."""
    differing = diff.differences(manifests.node(spec=after), manifests.observe(manifests.node(spec=before)))
    assert diff.needs_replacement("Node", differing)


def test_unset_immutable_fields_can_be_set() -> None:
    """No replacement is needed."""
    want = manifests.node(spec={"providerID": "kwok://a", "podCIDR": "10.0.0.0/24"}, labels={"a": "b"})
    assert diff.needs_replacement("Node", diff.differences(want, manifests.observe(manifests.node()))) is None
