"""What of a live object differs, and whose it is."""

from typing import Any

import pytest

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile.diff import ABSENT
from tests.harness import manifests

Found = dict[str, tuple[Any, Any]]
FAKE = objects.FAKE_NODE_TAINT
SPOT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


def found(want: Manifest, have: Observed) -> Found:
    """Return the differences as `field: (live, wanted)`."""
    return {".".join(each.path): (each.live, each.desired) for each in diff.differences(want, have)}


def added(manifest: Manifest, *path: str, value: Any) -> Manifest:  # noqa: ANN401  # any part of a manifest
    """Return a manifest with one more field, which somebody else has set."""
    if len(path) == 1:
        return {**manifest, path[0]: value}
    return {**manifest, path[0]: added(manifest.get(path[0], {}), *path[1:], value=value)}


# equal though written otherwise


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
def test_the_same_amount_is_the_same(want: str, live: str) -> None:
    """The API server writes quantities in its own way."""
    assert (
        found(manifests.node(capacity={"cpu": want}), manifests.observe(manifests.node(capacity={"cpu": live}))) == {}
    )


@pytest.mark.parametrize(("want", "live"), [("1Gi", "1G"), ("1", "1m"), ("2", "1"), ("1", "nonsense")])
def test_another_amount_is_a_difference(want: str, live: str) -> None:
    """In what there is and in what can be had of it."""
    differing = found(manifests.node(capacity={"cpu": want}), manifests.observe(manifests.node(capacity={"cpu": live})))
    assert differing == {"status.capacity.cpu": (live, want), "status.allocatable.cpu": (live, want)}


def test_texts_that_look_like_amounts_are_compared_as_texts() -> None:
    """Elsewhere `1` is not `1.0`."""
    differing = found(manifests.node(labels={"a": "1.0"}), manifests.observe(manifests.node(labels={"a": "1"})))
    assert differing == {"metadata.labels.a": ("1", "1.0")}


@pytest.mark.parametrize("zero", [False, 0, "", [], {}, None])
def test_zero_values_of_built_in_kinds_need_not_be_there(zero: object) -> None:
    """The API server drops them."""
    assert found(manifests.node(spec={"unschedulable": zero}), manifests.observe(manifests.node())) == {}


def test_zero_values_in_lists_of_built_in_kinds_need_not_be_there() -> None:
    """As deep as they may be; any other value there is a difference."""

    def images(**fields: object) -> Manifest:
        return manifests.node(status={"images": [{"names": ["a"], **fields}, {"names": ["b"]}]})

    bare = manifests.observe(images())
    assert found(images(sizeBytes=0, inner={"on": False, "all": []}), bare) == {}
    assert list(found(images(sizeBytes=1), bare)) == ["status.images"]
    assert list(found(images(), manifests.observe(images(sizeBytes=1)))) == ["status.images"]
    assert found(manifests.stage(steps=[{"weight": 0}]), manifests.observe(manifests.stage(steps=[{}]))) != {}


def test_an_empty_label_or_annotation_is_a_value() -> None:
    """It has to be there."""
    want = manifests.node(labels={"a": ""}, annotations={"b": ""})
    assert found(want, manifests.observe(manifests.node())) == {
        "metadata.labels.a": (ABSENT, ""),
        "metadata.annotations.b": (ABSENT, ""),
    }


def test_custom_resources_keep_zero_values() -> None:
    """All but null, so one that is asked for and missing is a difference."""
    have = manifests.observe(manifests.stage())
    assert found(manifests.stage(immediateNextStage=False), have) == {"spec.immediateNextStage": (ABSENT, False)}
    assert found(manifests.stage(immediateNextStage=None), have) == {}


def test_a_yes_is_not_a_one() -> None:
    """Booleans and numbers are told apart."""
    have = manifests.observe(manifests.node(spec={"unschedulable": True}))
    assert found(manifests.node(spec={"unschedulable": False}), have) == {"spec.unschedulable": (True, False)}


def test_parts_that_are_missing_are_named_field_by_field() -> None:
    """So that a patch sets nothing else."""
    want = manifests.node(status={"nodeInfo": {"osImage": "a", "kernelVersion": "b"}})
    assert found(want, manifests.observe(manifests.node())) == {
        "status.nodeInfo.osImage": (ABSENT, "a"),
        "status.nodeInfo.kernelVersion": (ABSENT, "b"),
    }


# whose a field is


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_what_we_set_and_no_longer_ask_for_goes(part: str) -> None:
    """The API server's managedFields say that we did."""
    parts: dict[str, Any] = {part: {"example.com/a": "1"}}
    have = manifests.observe(manifests.node(**parts))
    assert found(manifests.node(), have) == {f"metadata.{part}.example.com/a": ("1", ABSENT)}


@pytest.mark.parametrize(
    "path", [("metadata", "labels", "a"), ("metadata", "annotations", "a"), ("spec", "externalID")]
)
def test_what_others_set_stays(path: tuple[str, ...]) -> None:
    """A field that is not asked for and not ours is none of our business."""
    ours = manifests.owned_fields(manifests.node())
    assert found(manifests.node(), manifests.observe(added(manifests.node(), *path, value="theirs"), ours)) == {}


def test_what_is_asked_for_is_ours_whoever_wrote_it_last() -> None:
    """Drift is mended."""
    want = manifests.node(labels={"a": "ours"})
    ours = manifests.owned_fields(manifests.node())
    have = manifests.observe(manifests.node(labels={"a": "theirs"}), ours)
    assert found(want, have) == {"metadata.labels.a": ("theirs", "ours")}


def test_of_a_part_that_two_wrote_only_our_fields_go() -> None:
    """Field by field, however deep."""
    node = manifests.node(spec={"configSource": {"configMap": {"ours": "1"}}})
    have = manifests.observe(
        added(node, "spec", "configSource", "configMap", "theirs", value="1"), manifests.owned_fields(node)
    )
    assert found(manifests.node(), have) == {"spec.configSource.configMap.ours": ("1", ABSENT)}


def test_all_of_a_stages_spec_is_ours() -> None:
    """It is a program: what somebody adds to it makes it another one; labels of others do no harm."""
    want = manifests.stage(selector={"matchExpressions": []}, next={"statusTemplate": "a"})
    live = added(want, "spec", "selector", "matchLabels", value={"theirs": "1"})
    live = added(live, "spec", "next", "delete", value=True)
    live = added(live, "metadata", "labels", "theirs", value="1")
    assert found(want, manifests.observe(live, manifests.owned_fields(want))) == {
        "spec.selector.matchLabels": ({"theirs": "1"}, ABSENT),
        "spec.next.delete": (True, ABSENT),
    }


def test_a_list_that_is_ours_goes_whole() -> None:
    """Lists that are no maps have one owner."""
    have = manifests.observe(manifests.stage(steps=[{"a": 1}]))
    assert found(manifests.stage(), have) == {"spec.steps": ([{"a": 1}], ABSENT)}


def test_a_status_that_nobody_claims_came_with_the_creation() -> None:
    """The API server keeps the status of a POST and notes no owner for it."""
    have = manifests.observe(manifests.node(capacity={"cpu": "32", "nvidia.com/gpu": "8"}))
    assert found(manifests.node(), have) == {
        "status.capacity.nvidia.com/gpu": ("8", ABSENT),
        "status.allocatable.nvidia.com/gpu": ("8", ABSENT),
    }


def test_a_status_that_another_manager_claims_is_theirs() -> None:
    """A device plugin's resource, an agent's feature."""
    live = manifests.node(capacity={"cpu": "32", "example.com/nic": "2"}, status={"runtimeHandlers": [{"name": "a"}]})
    theirs = manifests.fields(
        {"status": {"capacity": {"example.com/nic": ""}, "allocatable": {"example.com/nic": ""}, "runtimeHandlers": []}}
    )
    assert found(manifests.node(), manifests.observe(live, theirs=theirs)) == {}


def test_zeros_in_a_status_stand_there_by_themselves() -> None:
    """The API server writes them where nothing was said."""
    live = manifests.node(status={"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {"bootID": ""}})
    assert found(manifests.node(), manifests.observe(live)) == {}


def test_what_moves_by_itself_is_never_compared() -> None:
    """Conditions, images in use, the TTL controller's annotation."""
    moving = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running", "volumesInUse": ["a"]}
    live = manifests.node(status=moving, annotations={"node.alpha.kubernetes.io/ttl": "15"})
    assert found(manifests.node(), manifests.observe(live)) == {}


def test_a_heartbeat_changes_nothing_that_matters() -> None:
    """Two states that differ in a condition's time mean the same; one that turns not Ready does not."""

    def beat(status: str, time: str, version: str) -> Observed:
        condition = {"type": "Ready", "status": status, "lastHeartbeatTime": time}
        return manifests.observe(manifests.node(status={"conditions": [condition]}), resourceVersion=version)

    assert beat("True", "08:00", "7").is_equivalent(beat("True", "08:10", "8"))
    assert not beat("True", "08:00", "7").is_equivalent(beat("False", "08:00", "8"))


# what the API server adds


def test_what_the_api_server_adds_to_a_namespace_stays() -> None:
    """Its own label and finalizer, though managedFields call them ours."""
    live = manifests.namespace()
    live = added(live, "metadata", "labels", "kubernetes.io/metadata.name", value="work")
    live = added(live, "spec", "finalizers", value=["kubernetes"])
    assert found(manifests.namespace(), manifests.observe(live)) == {}


def test_defaults_of_a_stage_stay() -> None:
    """They are there whether anybody asks or not; another value than the default was ours."""
    live = manifests.stage(weight=0, next={"delete": True, "statusSubresource": "status"})
    assert found(manifests.stage(next={"delete": True}), manifests.observe(live)) == {}
    assert found(manifests.stage(), manifests.observe(manifests.stage(weight=3))) == {"spec.weight": (3, ABSENT)}


# taints


def test_taints_are_told_apart_by_key_and_effect() -> None:
    """Their order means nothing; the same key with another effect is another taint."""
    both = [SPOT, {**SPOT, "effect": "NoExecute"}]
    assert found(manifests.node(taints=both), manifests.observe(manifests.node(taints=both[::-1]))) == {}
    differing = found(manifests.node(taints=both), manifests.observe(manifests.node(taints=both[:1])))
    assert differing["spec.taints.spot:NoExecute"] == (ABSENT, both[1])


def test_a_taints_value_is_a_difference() -> None:
    """An empty one is as good as none."""
    other = {**SPOT, "value": "no"}
    have = manifests.observe(manifests.node(taints=[other]))
    assert found(manifests.node(taints=[SPOT]), have) == {"spec.taints.spot:NoSchedule": (other, SPOT)}
    bare = {"key": "spot", "effect": "NoSchedule"}
    assert found(manifests.node(taints=[{**SPOT, "value": ""}]), manifests.observe(manifests.node(taints=[bare]))) == {}


def test_taints_of_others_stay() -> None:
    """The node controllers put theirs into the same list, which managedFields may even call ours."""
    live = manifests.node()
    live = added(live, "spec", "taints", value=[FAKE, NOT_READY, {"key": "mine", "effect": "NoSchedule"}])
    assert found(manifests.node(), manifests.observe(live)) == {}


def test_a_taint_of_ours_goes_with_its_mark() -> None:
    """An annotation lists the ones that we put there."""
    have = manifests.observe(manifests.node(taints=[FAKE, SPOT]))
    assert found(manifests.node(), have) == {
        "metadata.annotations.kwokfleet.dev/taints": ("spot:NoSchedule", ABSENT),
        "spec.taints.spot:NoSchedule": (SPOT, ABSENT),
    }


def test_the_fake_taint_is_ours_without_a_mark() -> None:
    """`taint: false` takes it away, and leaves the others' in place."""
    live = added(manifests.node(), "spec", "taints", value=[FAKE, NOT_READY])
    assert found(manifests.node(taints=[]), manifests.observe(live)) == {
        "spec.taints.kwok.x-k8s.io/node:NoSchedule": (FAKE, ABSENT)
    }


# addresses


def addresses(**given: str) -> list[dict[str, str]]:
    """Write addresses by type."""
    return [{"type": kind, "address": address} for kind, address in given.items()]


def test_addresses_are_told_apart_by_type() -> None:
    """Order means nothing, another address does."""
    want = manifests.node(status={"addresses": addresses(InternalIP="10.0.0.1", Hostname="a")})
    same = manifests.node(status={"addresses": addresses(Hostname="a", InternalIP="10.0.0.1")})
    assert found(want, manifests.observe(same)) == {}
    other = manifests.node(status={"addresses": addresses(Hostname="a", InternalIP="10.9.9.9")})
    assert list(found(want, manifests.observe(other))) == ["status.addresses.InternalIP"]


def test_an_address_goes_unless_somebody_claims_it() -> None:
    """What came with the creation is ours; what kwok or a cloud controller set is not."""
    want = manifests.node(status={"addresses": addresses(Hostname="a")})
    live = manifests.node(status={"addresses": addresses(Hostname="a", ExternalIP="1.2.3.4")})
    assert list(found(want, manifests.observe(live))) == ["status.addresses.ExternalIP"]
    claimed: dict[str, Any] = {
        "f:status": {"f:addresses": {'k:{"type":"ExternalIP"}': {".": {}, "f:address": {}, "f:type": {}}}}
    }
    assert found(want, manifests.observe(live, theirs=claimed)) == {}


# what cannot be changed


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
def test_some_fields_only_a_new_node_can_have(before: Manifest, after: Manifest) -> None:
    """The API server lets nobody change or remove them once they are set."""
    differing = diff.differences(manifests.node(spec=after), manifests.observe(manifests.node(spec=before)))
    assert diff.needs_replacement("Node", differing)


def test_a_field_that_was_never_set_can_be_set() -> None:
    """Then no new node is needed; nor for anything else of it."""
    want = manifests.node(spec={"providerID": "kwok://a", "podCIDR": "10.0.0.0/24"}, labels={"a": "b"})
    assert diff.needs_replacement("Node", diff.differences(want, manifests.observe(manifests.node()))) is None
